package coordinator

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A coordinator whose process has ended hears nobody; one that cannot be asked otherwise may hear
// everybody. Of a name all addresses must refuse.
func TestWhoHasEndedHearsNobody(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections wait to be accepted, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, open, err := net.SplitHostPort(silent.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, closed, err := net.SplitHostPort(proctest.Addrs(t, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	one, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	for name, c := range map[string]struct {
		address string
		stands  []netip.Addr
		refuses map[string]bool
		ended   bool
	}{
		"it refuses":                         {"127.0.0.1:" + closed, []netip.Addr{one}, map[string]bool{"127.0.0.1:" + closed: true}, true},
		"all addresses of its name do":       {"c2:" + closed, []netip.Addr{one, other}, map[string]bool{"127.0.0.1:" + closed: true, "127.0.0.2:" + closed: true}, true},
		"one address of its name does":       {"c2:" + closed, []netip.Addr{one, other}, map[string]bool{"127.0.0.1:" + closed: true}, false},
		"its name stands for nothing":        {"c2:" + closed, nil, nil, false},
		"it says nothing":                    {"127.0.0.1:" + open, []netip.Addr{one}, nil, false},
		"its address is that of any machine": {"0.0.0.0:" + closed, []netip.Addr{netip.IPv4Unspecified()}, map[string]bool{"0.0.0.0:" + closed: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOthers(nil, func() uint64 { return 1 }, func(_ context.Context, address string) bool { return c.refuses[address] })
			defer o.close()
			o.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
				if c.stands == nil {
					return nil, errors.New("no such host")
				}
				return c.stands, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), attemptTime)
			defer cancel()
			words, err := o.heard(ctx, &rootv1.Coordinator{Id: "c2", Address: c.address}, []state.MemberID{"m1"})
			if ended := err == nil; ended != c.ended || len(words) != 0 {
				t.Errorf("it says %v, %v; ended: want %t", words, err, c.ended)
			}
		})
	}
}
