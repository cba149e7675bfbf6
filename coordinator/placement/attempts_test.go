package placement_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
)

// A region that is not let go is served for longer and longer before it is asked for again:
// behind each deadline as long as that, then twice as long, up to an hour. What drains beside
// it does not wait for it, and a new epoch begins anew.
func TestMovesThatAreGivenUpAreTriedAgainLaterAndLater(t *testing.T) {
	c, id := moving(t, epochFence())
	c.tell(id, "m2", ready)
	c.one(c.round(), placement.Ready)
	pause := time.Minute
	for range 9 {
		c.now = c.now.Add(time.Minute) // the deadline
		c.one(c.round(), placement.Cancel)
		rests := c.refusal(c.round(), placement.Resting)
		if rests.Region != id || rests.At != c.now.Add(pause) {
			t.Fatalf("it rests until %v, want %v from now: %+v", rests.At, pause, rests)
		}
		if due := c.work.Due(c.now); due != rests.At {
			t.Fatalf("there is a plan again at %v, want %v", due, rests.At)
		}
		c.now = rests.At
		c.one(c.round(), placement.PlanMove)
		c.tell(id, "m2", ready)
		c.one(c.round(), placement.Ready)
		pause = min(2*pause, time.Hour)
	}
	c.tell(id, "m1", released, frontier("at last"))
	c.one(c.round(), placement.Complete)
	c.set("m2", draining)
	c.set("m1", active)
	if o := c.one(c.round(), placement.PlanMove); o.From.Member != "m2" {
		t.Errorf("behind a move that was done %+v", o)
	}
}

// What was given up because of who would have taken it goes to another one at once.
func TestWhoCannotTakeARegionHasItRestFromNothing(t *testing.T) {
	c, id := moving(t, epochFence())
	c.join("m3")
	c.settle()
	c.set("m2", failed)
	c.one(c.round(), placement.Cancel)
	if o := c.one(c.round(), placement.PlanMove); o.Region != id || o.To.Member != "m3" {
		t.Errorf("%+v", o)
	}
}

// Rule 8: the time that a change has counts from when it was planned, as this coordinator saw
// it, whoever holds the Tenure: a new holder gives up what its predecessor would have, then.
func TestRule8ANewHolderDoesNotCountADeadlineAnew(t *testing.T) {
	c, _ := moving(t, epochFence())
	for range 5 { // holders that end before the deadline
		c.now = c.now.Add(11 * time.Second)
		c.work = placement.NewWork(c.st, c.now)
		c.round()
	}
	c.now = c.now.Add(5 * time.Second)
	c.one(c.round(), placement.Cancel)
}

// Who does not know what happened in between knows since when what is still under way is, and
// that what is so no more was given up; of who has just begun nothing rests.
func TestAttemptsOverAJump(t *testing.T) {
	c, id := moving(t, epochFence())
	behind := placement.NewAttempts(c.st, c.now)
	c.now = c.now.Add(time.Minute)
	behind.Jump(c.st, c.now)
	c.one(c.round(), placement.Cancel)
	behind.Jump(c.st, c.now)
	r := c.st.Region(id)
	if at := behind.RestsUntil(r); at != c.now.Add(time.Minute) {
		t.Errorf("it rests until %v", at)
	}
	if at := placement.NewAttempts(c.st, c.now).RestsUntil(r); at != 0 {
		t.Errorf("of who has just begun it rests until %v", at)
	}
}
