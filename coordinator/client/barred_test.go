package client_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// certified opens certificates of a new authority: for a day, those of coordinators
// for a year.
func certified(t *testing.T, roles ...principal.Role) map[principal.Role]*mtls.Source {
	t.Helper()
	authority, err := ca.New("test", time.Now(), ca.DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	out := map[principal.Role]*mtls.Source{}
	for _, role := range roles {
		life := 24 * time.Hour
		if role == principal.Coordinator {
			life *= 365
		}
		pair, err := authority.Issue(ca.Request{Role: role, Name: "x", Life: life}, time.Now())
		dir := filepath.Join(t.TempDir(), role.String())
		if err == nil {
			err = pair.Save(dir)
		}
		if err == nil {
			out[role], err = mtls.Open(dir, mtls.Options{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// certain is a coordinator that answers all of calls.
func certain() *fake {
	return &fake{cluster: newCluster(7), watch: func(_ *coordinatorv1.WatchRegionsRequest, s grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]) error {
		return s.Send(whole(1))
	}}
}

// calls are one of each way in which the client asks.
var calls = map[string]func(context.Context, *client.Client) error{
	"read": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionByKey(ctx, []byte("k"))
		return err
	},
	"stream": func(ctx context.Context, c *client.Client) error { _, err := c.Tso(ctx, 1); return err },
	"change": func(ctx context.Context, c *client.Client) error {
		_, err := c.RemoveRegion(ctx, 1, rooted.Epoch{})
		return err
	},
	"watch": func(ctx context.Context, c *client.Client) error {
		for _, err := range c.WatchRegions(ctx, client.Position{}) {
			return err
		}
		return nil
	},
}

// What certificates refuse does not pass by itself: the error comes at once, in one
// sentence, when all coordinators refuse.
func TestRefusedByAllCertificates(t *testing.T) {
	for name, call := range calls {
		for _, endpoints := range [][]string{{"a"}, {"a", "b"}} {
			synctest.Test(t, func(t *testing.T) {
				w, theirs, ours := newWorld(t), certified(t, principal.Coordinator), certified(t, principal.Client)
				for _, e := range endpoints {
					w.start(e, certain(), grpc.Creds(theirs[principal.Coordinator].Server()))
				}
				c, end := w.client(client.Config{TLS: ours[principal.Client]}, endpoints...)
				defer end()
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := call(ctx, c)
				refused, ok := errors.AsType[*mtls.Refusal](err)
				if !ok || strings.Count(err.Error(), refused.Sentence) != 1 || len(err.Error()) > len(refused.Sentence)+40 {
					t.Errorf("%s of %v: %v, want one refusal", name, endpoints, err)
				}
				wantWithin(t, start, 0, 100*time.Millisecond)
			})
		}
	}
}

// Where one refuses the others serve, also one that is away for a while.
func TestRefusedByCertificatesOfOne(t *testing.T) {
	for name, call := range calls {
		for _, away := range []time.Duration{0, time.Second} {
			for _, endpoints := range [][]string{{"stranger", "a"}, {"a", "stranger"}} {
				synctest.Test(t, func(t *testing.T) {
					theirs, own := certified(t, principal.Coordinator), certified(t, principal.Coordinator, principal.Client)
					w := newWorld(t)
					w.start("stranger", certain(), grpc.Creds(theirs[principal.Coordinator].Server()))
					serve := func() {
						w.start("a", certain(), grpc.Creds(own[principal.Coordinator].Server()))
					}
					if away == 0 {
						serve()
					} else {
						defer time.AfterFunc(away, serve).Stop()
					}
					c, end := w.client(client.Config{TLS: own[principal.Client]}, endpoints...)
					defer end()
					start := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if err := call(ctx, c); err != nil {
						t.Errorf("%s of %v: %v", name, endpoints, err)
					}
					wantWithin(t, start, away, away+2*time.Second)
				})
			}
		}
	}
}

// Whose own certificate ends while it asks hears of it, by a watch that is open and
// by calls one behind the other, whatever else it waits for.
func TestOwnCertificateEnds(t *testing.T) {
	for name, call := range calls {
		for _, endpoints := range [][]string{{"a"}, {"a", "b"}, {"a", "away"}} {
			synctest.Test(t, func(t *testing.T) {
				w, own := newWorld(t), certified(t, principal.Coordinator, principal.Client)
				for _, e := range endpoints {
					if e == "away" {
						continue
					}
					k := certain()
					k.watch = func(_ *coordinatorv1.WatchRegionsRequest, s grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]) error {
						for err := s.Send(whole(1)); ; err = s.Send(whole(1)) {
							if err != nil {
								return err
							}
							select {
							case <-s.Context().Done():
								return s.Context().Err()
							case <-time.After(time.Second):
							}
						}
					}
					w.start(e, k, grpc.Creds(own[principal.Coordinator].Server()))
				}
				c, end := w.client(client.Config{TLS: own[principal.Client]}, endpoints...)
				defer end()
				time.Sleep(24*time.Hour - 2*time.Minute)
				start := time.Now()
				var err error
				if name == "watch" {
					for _, err = range c.WatchRegions(t.Context(), client.Position{}) {
					}
				}
				for err == nil && time.Since(start) < 10*time.Minute {
					time.Sleep(time.Second)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					err = call(ctx, c)
					cancel()
				}
				refused, ok := errors.AsType[*mtls.Refusal](err)
				if !ok || !strings.Contains(refused.Sentence, "our own certificate of client/x") {
					t.Errorf("%s of %v: %v, want that the own certificate ended", name, endpoints, err)
				}
				wantWithin(t, start, time.Minute, 2*time.Minute+5*time.Second)
			})
		}
	}
}
