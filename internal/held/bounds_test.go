package held_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What an application says with its goodbye neither makes a frame that no coordinator takes,
// nor takes the room of what is reported.
func TestGoodbyesAreBounded(t *testing.T) {
	for name, why := range map[string]string{"long": strings.Repeat("x", 300<<10), "no text": "disk \xff"} {
		t.Run(name, func(t *testing.T) {
			c := serving(t, 100, rootv1.Fence_FENCE_EPOCH)
			c.Goodbye(clock.Instant(time.Minute), why)
			c.Open(1)
			told := 0
			for range 1000 {
				f := c.Frame(1, 10)
				if f == nil {
					break
				}
				b, err := proto.Marshal(f)
				if err != nil {
					t.Fatalf("frame %d cannot be sent: %v", f.GetSequence(), err)
				}
				if len(b) > held.MaxFrameBytes {
					t.Fatalf("frame %d has %d bytes", f.GetSequence(), len(b))
				}
				told += len(f.GetRegions())
			}
			if told != 100 {
				t.Errorf("%d of 100 regions are reported", told)
			}
		})
	}
}
