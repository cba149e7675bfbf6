package client_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// bad is no text.
const bad = "m\xff"

// textCalls are all calls that take text, each given what is none, and the field
// that it is in.
var textCalls = map[string]struct {
	field string
	call  func(ctx context.Context, c *client.Client) error
}{
	"RegisterMember": {"id", func(ctx context.Context, c *client.Client) error {
		_, err := c.RegisterMember(ctx, &rootv1.Member{Id: bad})
		return err
	}},
	"RegisterMember labels": {"labels", func(ctx context.Context, c *client.Client) error {
		_, err := c.RegisterMember(ctx, &rootv1.Member{Id: "m", Labels: map[string]string{bad: "x"}})
		return err
	}},
	"DrainMember": {"reason", func(ctx context.Context, c *client.Client) error {
		_, err := c.DrainMember(ctx, "m", 1, bad, false)
		return err
	}},
	"FailMember": {"signals[1]", func(ctx context.Context, c *client.Client) error {
		_, err := c.FailMember(ctx, "m", 1, "x", "fine", bad)
		return err
	}},
	"RemoveMember": {"member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.RemoveMember(ctx, bad, 1, "")
		return err
	}},
	"AssignRegions": {"assignments[0].owners[0].member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.AssignRegions(ctx, 0, &rootv1.Assignment{RegionId: 1, Owners: []*rootv1.Owner{{MemberId: bad}}})
		return err
	}},
	"CreateKeyspace": {"name", func(ctx context.Context, c *client.Client) error {
		_, err := c.CreateKeyspace(ctx, bad, "", nil)
		return err
	}},
	"UpdateKeyspace": {"name", func(ctx context.Context, c *client.Client) error {
		_, err := c.UpdateKeyspace(ctx, bad, 1, nil)
		return err
	}},
	"DeleteKeyspace": {"name", func(ctx context.Context, c *client.Client) error {
		_, err := c.DeleteKeyspace(ctx, bad, 0)
		return err
	}},
	"GetKeyspace": {"name", func(ctx context.Context, c *client.Client) error {
		_, err := c.GetKeyspace(ctx, bad)
		return err
	}},
	"GetRegionByKey": {"keyspace", func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionByKey(ctx, []byte("k"), client.In(bad))
		return err
	}},
	"GetRegionsByKeys": {"keyspace", func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionsByKeys(ctx, [][]byte{[]byte("k")}, client.In(bad))
		return err
	}},
	"ScanRegions": {"keyspace", func(ctx context.Context, c *client.Client) error {
		for _, err := range c.ScanRegions(ctx, nil, nil, client.In(bad)) {
			return err
		}
		return nil
	}},
	"WatchRegions": {"keyspace", func(ctx context.Context, c *client.Client) error {
		for _, err := range c.WatchRegions(ctx, client.Position{}, client.In(bad)) {
			return err
		}
		return nil
	}},
	"Publish": {"events[0].member_state_changed.member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.PublishEvent(ctx, memberEvent(bad))
		return err
	}},
	"PublishRootEvent": {"event.member_state_changed.member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.PublishRootEvent(ctx, memberEvent(bad))
		return err
	}},
	"AssessRootEvent": {"event.member_state_changed.member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.AssessRootEvent(ctx, memberEvent(bad))
		return err
	}},
	"PublishRegion": {"owners[0].member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.PublishRegion(ctx, &rooted.Region{Owners: []rooted.Owner{{Member: bad}}})
		return err
	}},
	"StoreHeartbeat": {"member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.StoreHeartbeat(ctx, &coordinatorv1.StoreHeartbeatRequest{MemberId: bad})
		return err
	}},
	"RegionHeartbeat": {"member_id", func(ctx context.Context, c *client.Client) error {
		_, err := c.RegionHeartbeat(ctx, &coordinatorv1.RegionHeartbeatRequest{MemberId: bad})
		return err
	}},
}

func memberEvent(id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id}}}
}

// What is no text is refused before anybody is asked, in whatever call, and the
// refusal says where it is.
func TestWhatIsNoTextIsNotSent(t *testing.T) {
	for name, o := range textCalls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var sent atomic.Int64
				count := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					sent.Add(1)
					return handler(ctx, req)
				}
				streams := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
					sent.Add(1)
					return handler(srv, s)
				}
				for _, address := range []string{"a", "b"} {
					w.start(address, &fake{cluster: newCluster(7)}, grpc.ChainUnaryInterceptor(count), grpc.ChainStreamInterceptor(streams))
				}
				c, end := w.client(client.Config{}, "a", "b")
				defer end()
				err := o.call(t.Context(), c)
				wantIs(t, err, client.ErrInvalidRequest)
				e, ok := errors.AsType[*client.Error](err)
				if !ok || e.Endpoint != "" || len(e.Tries) != 0 || sent.Load() != 0 {
					t.Fatalf("%d requests were sent: %+v", sent.Load(), err)
				}
				if !strings.Contains(err.Error(), o.field) || !strings.Contains(err.Error(), "UTF-8") {
					t.Errorf("%q does not say that %s is not UTF-8", err, o.field)
				}
			})
		})
	}
}
