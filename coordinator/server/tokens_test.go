package server_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/bearer"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// rooted is what verifies tokens: what the root has by now.
func (w *world) rooted(secret *seal.Key) bearer.Rooted {
	w.root.mu.Lock()
	defer w.root.mu.Unlock()
	return bearer.Rooted{State: w.root.state.Fork(), Secret: secret}
}

// Tokens are made, revoked and outlived by their keys, by the Go client; nothing but
// that one was made is logged.
func TestTokensByTheGoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log written.Text
		w := start(t, func(c *server.Config) {
			c.Logger = log.Logger(hclog.Trace)
		})
		c, ctx := w.caller(t), within(t)
		if _, err := c.RevokeToken(ctx, "1-0000000000000005"); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("revoked before any key: %v", err)
		}
		var made []*coordinatorv1.CreateTokenResponse
		for _, role := range []string{"operator", "client"} {
			r, err := c.CreateToken(ctx, role, "ann", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			got, err := w.rooted(nil).Verify(r.GetToken(), time.Now())
			if err != nil || got.Role.String() != role || got.Name != "ann" || got.ID.String() != r.GetId() || got.ID.Key != 1 ||
				got.Expires.Unix() != int64(r.GetExpiresUnixSeconds()) || time.Until(got.Expires).Round(time.Minute) != time.Hour {
				t.Fatalf("%+v, %v, made %v", got, err, r)
			}
			made = append(made, r)
		}
		for name, ask := range map[string]func() error{
			"role":     func() error { return second(c.CreateToken(ctx, "root", "1", time.Hour)) },
			"no role":  func() error { return second(c.CreateToken(ctx, "king", "1", time.Hour)) },
			"name":     func() error { return second(c.CreateToken(ctx, "client", "a b", time.Hour)) },
			"long":     func() error { return second(c.CreateToken(ctx, "client", "a", bearer.MaxLife+time.Second)) },
			"longest":  func() error { return second(c.CreateToken(ctx, "client", "a", 1<<63-1)) },
			"short":    func() error { return second(c.CreateToken(ctx, "client", "a", time.Second)) },
			"negative": func() error { return second(c.CreateToken(ctx, "client", "a", -time.Hour)) },
			"id":       func() error { return second(c.RevokeToken(ctx, "x")) },
			"a token":  func() error { return second(c.RevokeToken(ctx, made[0].GetToken())) },
		} {
			if err := ask(); !errors.Is(err, client.ErrInvalidRequest) || strings.Contains(err.Error(), made[0].GetToken()[:20]) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for again := range 2 {
			if r, err := c.RevokeToken(ctx, made[0].GetId()); err != nil || r.GetChanged() != (again == 0) {
				t.Errorf("revoke: %v, %v", r, err)
			}
		}
		if _, err := w.rooted(nil).Verify(made[0].GetToken(), time.Now()); err == nil || !strings.Contains(err.Error(), "was revoked") {
			t.Errorf("a revoked token: %v", err)
		}
		for key := uint32(2); key <= 3; key++ {
			if _, err := w.rooted(nil).Verify(made[1].GetToken(), time.Now()); err != nil {
				t.Errorf("before key %d: %v", key, err)
			}
			if r, err := c.RotateTokenKey(ctx); err != nil || r.GetId() != key {
				t.Errorf("%v, %v, want key %d", r, err, key)
			}
		}
		if _, err := w.rooted(nil).Verify(made[1].GetToken(), time.Now()); err == nil {
			t.Error("a token outlives its key")
		}
		for _, r := range made {
			if text := log.String(); strings.Contains(text, r.GetToken()[:20]) || !strings.Contains(text, r.GetId()) {
				t.Errorf("the log should have %s, and not its token:\n%s", r.GetId(), text)
			}
		}
	})
}

// Asked twice under one identity, the key is rotated once.
func TestARepeatedRotationIsOne(t *testing.T) {
	w := start(t)
	ctx := within(t)
	req := &coordinatorv1.RotateTokenKeyRequest{Identity: &rootv1.CommandIdentity{Origin: 7, Sequence: 1}}
	for range 2 {
		if r, err := w.client.RotateTokenKey(ctx, req); err != nil || r.GetId() != 1 {
			t.Errorf("%v, %v", r, err)
		}
	}
}

// With a secret file the root is given sealed keys only, and who has no file or
// another one says so, and serves the rest.
func TestKeysAreSealed(t *testing.T) {
	secret := seal.New(bytes.Repeat([]byte{5}, 32))
	w := start(t, func(c *server.Config) { c.Secret = secret })
	ctx := within(t)
	if _, err := w.client.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{}); err != nil {
		t.Fatal(err)
	}
	ask := &coordinatorv1.CreateTokenRequest{Role: principal.Client.String(), Name: "a", TtlSeconds: 60}
	r, err := w.client.CreateToken(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.rooted(secret).Verify(r.GetToken(), time.Now()); err != nil {
		t.Error(err)
	}
	st := w.rooted(secret).State
	for purpose, keys := range map[seal.Purpose][]*rootv1.PinKey{seal.Pins: st.PinKeys(), seal.Tokens: st.TokenKeys()} {
		if len(keys) != 1 || !keys[0].GetSealed() {
			t.Fatalf("%s: %v", purpose, keys)
		}
		if key, err := secret.Open(purpose, keys[0]); err != nil || len(key) != state.KeySecretBytes {
			t.Errorf("%s: %d bytes, %v", purpose, len(key), err)
		}
	}
	for words, other := range map[string]*seal.Key{seal.ErrNoFile.Error(): nil, seal.ErrWrongFile.Error(): seal.New(bytes.Repeat([]byte{6}, 32))} {
		o := startOn(t, w.root, func(c *server.Config) { c.Secret = other })
		if _, err := o.client.CreateToken(ctx, ask); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
		if _, err := o.client.ListMembers(ctx, &coordinatorv1.ListMembersRequest{}); err != nil {
			t.Errorf("the rest: %v", err)
		}
	}
}
