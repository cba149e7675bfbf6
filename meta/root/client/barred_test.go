package client_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// Whose own certificate ends while it asks hears of it in one sentence, by whatever it
// asks, instead of trying peers until its deadline.
func TestOwnCertificateEnds(t *testing.T) {
	for name, call := range map[string]func(context.Context, *client.Client) error{
		"Propose":   func(ctx context.Context, c *client.Client) error { _, err := c.Propose(ctx, command(1)); return err },
		"ReadIndex": func(ctx context.Context, c *client.Client) error { _, err := c.ReadIndex(ctx); return err },
		"Confirm": func(ctx context.Context, c *client.Client) error {
			_, err := c.Confirm(ctx, &rootv1.ConfirmTenureRequest{Era: 1, HolderId: "c"})
			return err
		},
		"Tail": func(ctx context.Context, c *client.Client) error {
			tail, err := c.Tail(ctx, state.Token{})
			if err == nil {
				defer tail.Close()
				_, err = tail.Recv()
			}
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			authority, err := ca.New("test", time.Now(), ca.DefaultAuthorityLife)
			if err != nil {
				t.Fatal(err)
			}
			certified := func(role principal.Role, name string, life time.Duration) *mtls.Source {
				dir := filepath.Join(t.TempDir(), "certs")
				pair, err := authority.Issue(ca.Request{Role: role, Name: name, Life: life}, time.Now())
				if err == nil {
					err = pair.Save(dir)
				}
				if err != nil {
					t.Fatal(err)
				}
				source, err := mtls.Open(dir, mtls.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return source
			}
			r := newFakeRoot(t, 3)
			for id, p := range r.peers {
				p.stop()
				p.options = []grpc.ServerOption{grpc.Creds(certified(principal.Root, fmt.Sprint(id), 365*24*time.Hour).Server())}
				p.start()
			}
			config := r.config()
			config.TLS = certified(principal.Coordinator, "1", 24*time.Hour)
			c, err := client.New(config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = c.Run(ctx) }()
			defer func() {
				stop()
				<-ended
				for _, p := range r.peers {
					p.stop()
				}
			}()
			ask := func() error {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				return call(ctx, c)
			}
			if err := ask(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			time.Sleep(24*time.Hour + time.Second)
			start := time.Now()
			err = ask()
			refused, ok := errors.AsType[*mtls.Refusal](err)
			if !ok || !strings.Contains(refused.Sentence, "our own certificate of coordinator/1") || strings.Count(err.Error(), refused.Sentence) != 1 {
				t.Errorf("%s: %v, want that the own certificate ended", name, err)
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("%s: said after %v", name, took)
			}
		})
	}
}
