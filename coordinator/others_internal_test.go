package coordinator

import (
	"context"
	"net"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A coordinator that does not answer may hear everybody, also where its port refuses: what refuses may be
// in between.
func TestARefusalIsNoWordOfACoordinator(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections wait to be accepted, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, closed, err := net.SplitHostPort(proctest.Addrs(t, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{
		"it refuses":                         "127.0.0.1:" + closed,
		"its name refuses":                   "localhost:" + closed,
		"it says nothing":                    silent.Addr().String(),
		"its address is that of any machine": "0.0.0.0:" + closed,
	} {
		t.Run(name, func(t *testing.T) {
			o := newOthers(nil, func() uint64 { return 1 })
			defer o.close()
			ctx, cancel := context.WithTimeout(t.Context(), attemptTime)
			defer cancel()
			if words, err := o.heard(ctx, &rootv1.Coordinator{Id: "c2", Address: address}, []state.MemberID{"m1"}); err == nil || len(words) != 0 {
				t.Errorf("it says %v, %v; want an error", words, err)
			}
		})
	}
}
