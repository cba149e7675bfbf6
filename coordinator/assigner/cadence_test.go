package assigner_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// asking is a command that a member got.
type asking struct {
	at  time.Duration
	to  state.MemberID
	cmd *coordinatorv1.MemberCommand
}

// Command implements what UseStreams looks for: members answer a checkpoint when they
// next speak, at a frontier that rises.
func (w *world) Command(id state.MemberID, incarnation uint64, c *coordinatorv1.MemberCommand) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deaf[id] {
		return reason.New(rootv1.Reason_REASON_NOT_FOUND, "no stream")
	}
	w.orders = append(w.orders, asking{time.Since(w.begun), id, c})
	return nil
}

// checkpoints is a crowd whose members make the checkpoints that they are asked for.
type checkpoints struct {
	*crowd
	seen int
	made map[state.RegionID]int
}

func (c *checkpoints) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c.crowd.run(200 * time.Millisecond)
		for _, a := range c.commanded(c.seen) {
			c.seen++
			c.made[state.RegionID(a.cmd.GetRegionId())]++
			c.frame(a.to, func(f *server.HeardFrame) {
				f.Replies = append(f.Replies, &coordinatorv1.MemberCommandReply{
					Era: a.cmd.GetEra(), Id: a.cmd.GetId(), Done: true, RegionId: a.cmd.GetRegionId(), Epoch: a.cmd.GetEpoch(),
					Frontier: fmt.Append(nil, c.made[state.RegionID(a.cmd.GetRegionId())]), SetFrontier: true,
				})
			})
		}
	}
}

// commanded are the commands behind the first n.
func (w *world) commanded(n int) []asking {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.orders[n:])
}

func paced(t *testing.T, slots uint32, test func(t *testing.T, c *checkpoints)) {
	s := evened(slots, nil)
	s.Cadence = &rootv1.Cadence{CheckpointIntervalMillis: 10_000}
	gather(t, s, 4, func(t *testing.T, c *crowd) {
		test(t, &checkpoints{crowd: c, made: map[state.RegionID]int{}})
	})
}

// Each region is asked once in ten seconds, evenly over them, its owner at its epoch. Nobody
// waits for answers: members that make none are asked again in the next interval.
func TestR21R22R23R27CheckpointsAreAskedForEvenly(t *testing.T) {
	paced(t, 100, func(t *testing.T, c *checkpoints) {
		c.crowd.run(20 * time.Second)
		from := len(c.commanded(0))
		c.crowd.run(30 * time.Second)
		perSecond, perRegion := map[int]int{}, map[uint64][]time.Duration{}
		ids := map[uint64]bool{}
		for _, a := range c.commanded(from) {
			perSecond[int(a.at/time.Second)]++
			r := c.now().Region(state.RegionID(a.cmd.GetRegionId()))
			perRegion[a.cmd.GetRegionId()] = append(perRegion[a.cmd.GetRegionId()], a.at)
			if r.Owners[0].Member != a.to || r.Epoch != rooted.EpochFromProto(a.cmd.GetEpoch()) || a.cmd.GetEra() != 1 || ids[a.cmd.GetId()] ||
				a.cmd.GetKind() != coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT {
				t.Errorf("%v goes to %s", a.cmd, a.to)
			}
			ids[a.cmd.GetId()] = true
		}
		for second, n := range perSecond {
			if n > 15 {
				t.Errorf("%d of 100 regions in second %d", n, second)
			}
		}
		for id, at := range perRegion {
			if len(at) < 3 || at[1]-at[0] < 9*time.Second || at[1]-at[0] > 11*time.Second {
				t.Errorf("region %d is asked after %v", id, at)
			}
		}
		if len(perRegion) != 100 {
			t.Errorf("%d of 100 regions are asked", len(perRegion))
		}
	})
}

// What a member made becomes the region's rooted frontier, at the same epoch, many in one
// entry; whoever owns it next goes on from there. Evening out is not looked at for it.
func TestR20R30CheckpointsAreRooted(t *testing.T) {
	paced(t, 100, func(t *testing.T, c *checkpoints) {
		c.run(25 * time.Second)
		before := c.now()
		commands := len(c.commands())
		rounds := c.a.Vars().Rebalances
		c.run(20 * time.Second)
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			old := before.Region(r.ID)
			if r.Frontier == "" || r.Frontier == old.Frontier || r.Epoch != old.Epoch || r.Owners[0] != old.Owners[0] {
				t.Errorf("region %d was at %q of %s, and is at %q of %s", r.ID, old.Frontier, old.Epoch, r.Frontier, r.Epoch)
			}
			return true
		})
		if n := len(c.commands()) - commands; n > 45 {
			t.Errorf("%d commands for 200 frontiers in 20 s", n)
		}
		if after := c.a.Vars().Rebalances; fmt.Sprint(rounds) != fmt.Sprint(after) {
			t.Errorf("rounds were %v and are %v", rounds, after)
		}
		before = c.now()
		c.gone["m2"] = true
		c.close("m2")
		c.crowd.run(time.Second)
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			if old := before.Region(r.ID); old.Owners[0].Member == "m2" && (r.Owners[0].Member == "m2" || r.Frontier < old.Frontier) {
				t.Errorf("region %d goes to %v at %q, behind %q", r.ID, r.Owners, r.Frontier, old.Frontier)
			}
			return true
		})
	})
}

// A new holder goes on where the one before came to: it asks nothing again that was
// acknowledged in the same interval.
func TestR23NewHolderDoesNotAskAgain(t *testing.T) {
	paced(t, 100, func(t *testing.T, c *checkpoints) {
		c.run(34 * time.Second)
		from := len(c.commanded(0))
		last := map[uint64]time.Duration{}
		for _, a := range c.commanded(0) {
			last[a.cmd.GetRegionId()] = a.at
		}
		c.claim("other", 9)
		c.claim(self, life)
		c.run(12 * time.Second)
		early := 0
		for _, a := range c.commanded(from) {
			if was, ok := last[a.cmd.GetRegionId()]; ok && a.at-was < 7*time.Second {
				early++
			}
			delete(last, a.cmd.GetRegionId())
		}
		if early > 10 || len(last) > 0 { // what was asked in the last second is not acknowledged
			t.Errorf("%d regions are asked again within the interval, and %d not at all", early, len(last))
		}
	})
}

// What is said of another epoch, of a region that is not the sender's, of another era or
// too long is not rooted, and what a member says twice is rooted once.
func TestStrangeCheckpointsAreNotRooted(t *testing.T) {
	paced(t, 4, func(t *testing.T, c *checkpoints) {
		c.crowd.run(5 * time.Second)
		r := c.owned("m1")[0]
		other := c.owned("m2")[0]
		say := func(id state.MemberID, reply *coordinatorv1.MemberCommandReply) {
			reply.Done, reply.SetFrontier = true, true
			if reply.Frontier == nil {
				reply.Frontier = []byte("f")
			}
			c.frame(id, func(f *server.HeardFrame) { f.Replies = append(f.Replies, reply) })
		}
		era := uint64(c.now().Tenure().GetEra())
		say("m1", &coordinatorv1.MemberCommandReply{Era: era, RegionId: uint64(other.ID), Epoch: other.Epoch.Proto()})
		say("m1", &coordinatorv1.MemberCommandReply{Era: era + 1, RegionId: uint64(r.ID), Epoch: r.Epoch.Proto()})
		say("m1", &coordinatorv1.MemberCommandReply{Era: era, RegionId: uint64(r.ID), Epoch: &rootv1.RegionEpoch{Version: 9, ConfVersion: 9}})
		say("m1", &coordinatorv1.MemberCommandReply{Era: era, RegionId: 1 << 60, Epoch: r.Epoch.Proto()})
		say("m1", &coordinatorv1.MemberCommandReply{Era: era, RegionId: uint64(r.ID), Epoch: r.Epoch.Proto(), Frontier: make([]byte, state.MaxFrontierBytes+1)})
		say("m1", &coordinatorv1.MemberCommandReply{Era: era})
		before := len(c.commands())
		c.crowd.run(3 * time.Second)
		if c.now().Region(r.ID).Frontier != "" || c.now().Region(other.ID).Frontier != "" || len(c.commands()) != before {
			t.Errorf("frontiers %q and %q, %v", c.now().Region(r.ID).Frontier, c.now().Region(other.ID).Frontier, c.commands()[before:])
		}
		for range 3 {
			say("m1", &coordinatorv1.MemberCommandReply{Era: era, RegionId: uint64(r.ID), Epoch: r.Epoch.Proto()})
			c.crowd.run(2 * time.Second)
		}
		synctest.Wait()
		if c.now().Region(r.ID).Frontier != "f" || len(c.commands()) != before+1 {
			t.Errorf("frontier %q behind %d commands", c.now().Region(r.ID).Frontier, len(c.commands())-before)
		}
	})
}
