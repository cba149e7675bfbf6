package assigner_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// scaled is a keyspace of 24 slots, of which 10 fill a member.
func scaled(up, down uint64) *rootv1.KeyspaceSettings {
	s := evened(24, &rootv1.Rebalance{AbsoluteLimit: 10, IntervalMillis: 10_000})
	s.Scaling = &rootv1.Scaling{
		Enabled: true, UpPermille: up, DownPermille: down, SpacingMillis: 120_000, MinMembers: 2, MaxMembers: 4,
		HookUrl: "http://scale.example", HookTimeoutMillis: 500,
	}
	return s
}

func (w *world) wishing() []*hook.Wish {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wishes)
}

func (w *world) signal() *coordinatorv1.ScalingSignal {
	w.t.Helper()
	all := w.a.Scaling()
	if len(all) != 1 {
		w.t.Fatalf("%d keyspaces are shown: %v", len(all), all)
	}
	return all[0]
}

// Three members that are 80% full want a fourth, two minutes after the era began: that is
// published, and posted until it is taken, always with the same id.
func TestP67C31C32C33WishForMoreIsPosted(t *testing.T) {
	gather(t, scaled(790, 300), 3, func(t *testing.T, c *crowd) {
		c.mu.Lock()
		c.scale = func(*hook.Wish) error {
			if len(c.wishes) < 5 {
				return &hook.Error{Why: hook.Status, Err: errors.New("503")}
			}
			return nil
		}
		c.mu.Unlock()
		c.run(110 * time.Second)
		if s := c.signal(); s.GetReason() != "spacing" || s.GetActive() != 3 || s.GetDesired() != 3 || s.GetFullPermille() != 800 || s.GetId() != "" {
			t.Errorf("before: %v", s)
		}
		c.run(20 * time.Second)
		if s := c.signal(); s.GetReason() != "load" || s.GetDesired() != 4 || s.GetDelivered() || s.GetFailures() == 0 || s.GetProblem() != "status" || s.GetId() == "" {
			t.Errorf("while it is refused: %v", s)
		}
		c.run(time.Minute)
		wishes := c.wishing()
		if len(wishes) != 5 {
			t.Fatalf("it was posted %d times", len(wishes))
		}
		for i, w := range wishes {
			if w.ID != wishes[0].ID || w.Desired != 4 || w.Active != 3 || w.Keyspace != "ks" || w.Victim != "" {
				t.Errorf("a wish is %+v", w)
			}
			if pause := time.Second << max(i-1, 0); i > 0 && c.at[i].Sub(c.at[i-1]) < pause {
				t.Errorf("post %d comes %v after the one before, want %v", i, c.at[i].Sub(c.at[i-1]), pause)
			}
		}
		if s := c.signal(); !s.GetDelivered() || s.GetFailures() != 4 {
			t.Errorf("when it is taken: %v", s)
		}
		c.run(90 * time.Second) // nobody comes: it is another wish for the same
		if wishes = c.wishing(); len(wishes) != 6 || wishes[5].ID == wishes[0].ID || wishes[5].Desired != 4 {
			t.Errorf("then there are %d: %+v", len(wishes), wishes[len(wishes)-1])
		}
		c.come("m4")
		c.run(10 * time.Minute)
		if s := c.signal(); s.GetReason() != "steady" || s.GetId() != "" || s.GetActive() != 4 || len(c.wishing()) != 6 {
			t.Errorf("when it has come: %v", s)
		}
		if v := c.a.Vars(); v.Hooks["wish_taken"] != 2 || v.Hooks["wish_status"] != 4 || v.Scalings["up"] != 2 {
			t.Errorf("%v %v", v.Hooks, v.Scalings)
		}
		moved := len(c.planned())
		if moved != 6 { // to the fourth, as without a hook
			t.Errorf("%d regions moved", moved)
		}
	})
}

// Four members that are hardly used want one fewer: the one with least is drained, with the
// reason in the log; the hook hears of it when nothing is its own any more, and a new holder
// goes on from there with the same id. What ends has ended the wish.
func TestC33C34WishForFewerFollowsTheDrain(t *testing.T) {
	gather(t, scaled(900, 610), 4, func(t *testing.T, c *crowd) {
		c.clinging["m1"], c.clinging["m2"], c.clinging["m3"], c.clinging["m4"] = true, true, true, true
		var victim *rootv1.Member
		drains := func() int {
			n := 0
			c.now().Members(func(m *rootv1.Member) bool {
				if m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING {
					n++
					victim = m
				}
				return true
			})
			return n
		}
		c.run(11 * time.Minute)
		if n := drains(); n != 1 || len(c.wishing()) != 0 {
			t.Fatalf("%d members drain, and the hook has heard %d wishes", n, len(c.wishing()))
		}
		if !slices.Equal(victim.GetSignals(), []string{state.ScalingSignal, "ks"}) || victim.GetReason() != "scaling: members of keyspace ks are 600 of 1,000 full, 3 are enough" {
			t.Errorf("the victim is %v", victim)
		}
		if s := c.signal(); s.GetReason() != "draining" || s.GetVictim() != victim.GetId() || s.GetDrained() || s.GetActive() != 3 || s.GetDesired() != 3 {
			t.Errorf("while it drains: %v", s)
		}
		if !slices.Contains(c.whys(), victim.GetReason()) {
			t.Errorf("the log says %q", c.whys())
		}
		clear(c.clinging)
		c.run(2 * time.Minute)
		wishes := c.wishing()
		if len(wishes) != 1 || wishes[0].Victim != victim.GetId() || wishes[0].VictimIncarnation != victim.GetIncarnation() || wishes[0].Desired != 3 || wishes[0].VictimAddress == "" {
			t.Fatalf("the wishes are %+v", wishes)
		}
		if n := len(c.owned(state.MemberID(victim.GetId()))); n != 0 {
			t.Errorf("it is to end, and has %d regions", n)
		}
		c.claim(other, 1)
		c.run(time.Second)
		if len(c.a.Scaling()) != 0 {
			t.Errorf("without the Tenure: %v", c.a.Scaling())
		}
		c.claim(self, life)
		c.run(30 * time.Second)
		if wishes = c.wishing(); len(wishes) != 2 || wishes[1].ID != wishes[0].ID {
			t.Errorf("the next holder posts %+v", wishes)
		}
		c.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
			MemberId: victim.GetId(), State: rootv1.MemberState_MEMBER_STATE_REMOVED,
		}}})
		c.gone[state.MemberID(victim.GetId())] = true
		c.run(10 * time.Minute)
		if s := c.signal(); drains() != 0 || s.GetReason() != "steady" || s.GetActive() != 3 || s.GetVictim() != "" || len(c.wishing()) != 2 {
			t.Errorf("when it has ended, %d drain: %v", drains(), s)
		}
	})
}

// The drain is of the member as it was seen: what somebody did to it meanwhile makes the root
// refuse it.
func TestC34DrainForScalingIsOfWhatWasSeen(t *testing.T) {
	gather(t, scaled(900, 610), 4, func(t *testing.T, c *crowd) {
		c.run(9*time.Minute + 40*time.Second)
		c.world.root.mu.Lock()
		c.root.slow = make(chan struct{})
		c.world.root.mu.Unlock()
		c.run(30 * time.Second) // it is on its way
		c.now().Members(func(m *rootv1.Member) bool {
			c.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
				MemberId: m.GetId(), State: m.GetState(), Reason: "an operator looked at it", ExpectedRevision: m.GetRevision(),
			}}})
			return true
		})
		c.world.root.mu.Lock()
		close(c.root.slow)
		c.root.slow = nil
		c.world.root.mu.Unlock()
		synctest.Wait()
		c.run(5 * time.Second)
		c.now().Members(func(m *rootv1.Member) bool {
			if m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
				t.Errorf("%v", m)
			}
			return true
		})
		if v := c.a.Vars(); v.Refusals["version_stale"] != 1 {
			t.Errorf("refusals are %v", v.Refusals)
		}
	})
}

// A new holder does not judge before it knows what members have, nor is anything wished for
// while one of them is suspected.
func TestC31NewHolderDoesNotScaleByIgnorance(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		ids := []state.MemberID{"m1", "m2"}
		w.join("m1")
		w.join("m2")
		w.keyspaceOf("ks", scaled(790, 300))
		w.claim(self, life)
		w.pass(5 * time.Second)
		if all := w.a.Scaling(); len(all) != 0 {
			t.Errorf("before anybody said anything: %v", all)
		}
		w.open("m1")
		w.open("m2")
		w.pass(3*time.Minute, ids...)
		if s := w.signal(); s.GetReason() != "load" || s.GetDesired() != 3 {
			t.Errorf("with 24 of 20: %v", s)
		}
		n := len(w.wishing())
		w.pass(5*time.Second, "m1") // m2 is not heard
		if s := w.signal(); s.GetReason() != "members_unwell" || len(w.wishing()) != n {
			t.Errorf("while one is suspected: %v", s)
		}
	})
}
