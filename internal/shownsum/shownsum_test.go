package shownsum_test

import (
	"testing"

	"github.com/nokv/nokv/internal/shownsum"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestHash: the numbers are those of another implementation of XXH64.
func TestHash(t *testing.T) {
	for _, c := range []struct {
		shown shownsum.Shown
		want  uint64
	}{
		{shownsum.Shown{}, 0x257b09a147b82a19},
		{shownsum.Shown{ID: 1, Version: 2, ConfVersion: 3}, 0xf95f0714fd2b151d},
		{shownsum.Shown{ID: 7, Version: 1, ConfVersion: 9, Role: coordinatorv1.MoveRole_MOVE_ROLE_TAKES, PeerIncarnation: 42}, 0x6cf69e4117ff76a3},
		{shownsum.Shown{ID: 1<<63 - 1, Version: 5, ConfVersion: 6, Role: coordinatorv1.MoveRole_MOVE_ROLE_GIVES, PeerIncarnation: 1 << 40, ReleaseNow: true}, 0x59e6dd678f4568fb},
	} {
		if got := c.shown.Hash(); got != c.want {
			t.Errorf("%+v: %#x, want %#x", c.shown, got, c.want)
		}
		r := &coordinatorv1.ShownRegion{Region: &rootv1.Region{Id: c.shown.ID, Epoch: &rootv1.RegionEpoch{Version: c.shown.Version, ConfVersion: c.shown.ConfVersion}}}
		if c.shown.Role != 0 {
			r.Move = &coordinatorv1.ShownMove{Role: c.shown.Role, PeerIncarnation: c.shown.PeerIncarnation, ReleaseNow: c.shown.ReleaseNow}
		}
		if got := shownsum.Of(r); got != c.want {
			t.Errorf("%v: %#x, want %#x", r, got, c.want)
		}
	}
}
