package router_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/pin"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// desk is what a coordinator does about pins.
type desk struct {
	key             pin.Key
	denies          bool // the keys, to this caller
	keys, opened    int
	keyspace, asked string
}

// PinKeys implements the service.
func (c *coordinator) PinKeys(context.Context, *coordinatorv1.PinKeysRequest) (*coordinatorv1.PinKeysResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.desk.keys++
	if c.desk.denies {
		return nil, reason.New(rootv1.Reason_REASON_PERMISSION_DENIED, "the keys of pins are not for this caller")
	}
	return &coordinatorv1.PinKeysResponse{ClusterId: 7, KeyspaceId: 1, Keys: []*coordinatorv1.KeyspacePinKey{{Id: c.desk.key.ID, Secret: c.desk.key.Secret[:]}}, Disclosure: c.says()}, nil
}

// ResolvePin implements the service.
func (c *coordinator) ResolvePin(_ context.Context, r *coordinatorv1.ResolvePinRequest) (*coordinatorv1.ResolvePinResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.desk.opened++
	c.desk.keyspace, c.desk.asked = r.GetKeyspace(), r.GetPin()
	if r.GetPin() == "of nobody" {
		return nil, reason.New(rootv1.Reason_REASON_PIN_LOST, "its process has ended")
	}
	return &coordinatorv1.ResolvePinResponse{Owner: &coordinatorv1.OwnerAddress{MemberId: "m4", Address: address(4), Incarnation: 9}, Disclosure: c.says()}, nil
}

// Who may not have the keys has a coordinator open each pin, and asks for the keys again once a
// minute: then it opens them by itself.
func TestP27P83PinsAreOpenedByACoordinatorForWhoMayNotHaveTheKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		key, err := pin.Derive(bytes.Repeat([]byte{1}, 32), 7, 1, 1)
		must(t, err)
		ring := pin.NewRing(7, 1)
		must(t, ring.Learn(time.Now(), key))
		text, err := ring.Seal(&pin.Pin{Region: 1, Member: "m2", Incarnation: 1, Expires: time.Now().Add(time.Hour)})
		must(t, err)
		b.snapshot(region(1, "", "", 2, 1))
		must(t, b.Wait(t.Context()))
		b.c.desk = desk{key: key, denies: true}
		look := func() desk {
			b.c.mu.Lock()
			defer b.c.mu.Unlock()
			return b.c.desk
		}
		for n := 1; n <= 3; n++ {
			got, err := b.Pinned(t.Context(), text, "")
			if d := look(); err != nil || got.Member != "m4" || got.Address != address(4) || got.Incarnation != 9 || got.Region != nil || d.keys != 1 || d.opened != n || d.asked != text || d.keyspace != "default" {
				t.Fatalf("pin %d: %+v, %v; the coordinator: %+v", n, got, err, d)
			}
		}
		if _, err := b.Pinned(t.Context(), "of nobody", ""); !errors.Is(err, client.ErrPinLost) {
			t.Errorf("a pin of nobody: %v", err)
		}
		ran := 0
		must(t, b.DoPinned(t.Context(), text, "", func(_ context.Context, at router.Target) error {
			if ran++; at.Member != "m4" {
				t.Errorf("it runs at %s", at.Member)
			}
			return nil
		}))
		before := look()
		b.c.mu.Lock()
		b.c.desk.denies = false // it was given the right
		b.c.mu.Unlock()
		if _, err := b.Pinned(t.Context(), text, ""); err != nil || look().keys != before.keys || look().opened != before.opened+1 {
			t.Errorf("within the minute: %v, %+v", err, look())
		}
		time.Sleep(time.Minute)
		for range 3 {
			if got, err := b.Pinned(t.Context(), text, ""); err != nil || got.Member != "m2" || look().keys != before.keys+1 || look().opened != before.opened+1 {
				t.Errorf("behind it: %+v, %v, %+v", got, err, look())
			}
		}
		if ran != 1 {
			t.Errorf("it ran %d times", ran)
		}
	})
}
