package tenure_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const ms = time.Millisecond

// paced holds an era whose ttl may grow from 300 ms to 5 s.
func paced(t *testing.T, change func(*tenure.Settings)) *script {
	return newScript(t, func(s *tenure.Settings) {
		s.MostTTL = 5 * time.Second
		if change != nil {
			change(s)
		}
	}).hold(300 * ms)
}

// lateAnswer lets the newest confirmation be answered when all before it have run out.
func (s *script) lateAnswer(took time.Duration) {
	s.t.Helper()
	for s.after(took/8).core.Confirmed() == 0 {
		s.t.Fatal("the era is not confirmed")
	}
	seq := uint64(0)
	for range 8 {
		for _, a := range s.core.Actions() {
			if a.Kind == tenure.Confirm {
				seq = a.Seq
			}
		}
		s.after(took / 8)
	}
	if seq == 0 {
		s.t.Fatalf("no confirmation was sent within %v", took)
	}
	s.confirm(seq)
}

func (s *script) claimed() *rootv1.TenureClaimed {
	s.t.Helper()
	for _, a := range s.core.Actions() {
		if a.Kind == tenure.Claim {
			return a.Claim
		}
	}
	s.t.Fatal("nothing was claimed")
	return nil
}

// Two late confirmations make the holder end its era and claim the next one with a longer
// ttl; it serves nothing between the two.
func TestTTLGrowsByLateConfirmations(t *testing.T) {
	s := paced(t, nil)
	s.lateAnswer(2 * time.Second)
	if s.core.Era() != 1 {
		t.Fatal("one late confirmation ended the era")
	}
	s.lateAnswer(2 * time.Second)
	if s.core.Era() != 0 {
		t.Fatal("the era is held while the next one is claimed")
	}
	c := s.claimed()
	if c.ExpectedEra != 1 || c.TtlMillis != 1200 || c.LeastTtlMillis != 300 || c.HolderIncarnation != 11 {
		t.Fatalf("claim %v, want one over era 1 with a ttl of 1,200 ms", c)
	}
	next := tenureOf(2, "c1", 11, 1200*ms)
	next.LeastTtlMillis = 300
	s.core.OnClaimed(granted(next), nil, s.now)
	s.expect(tenure.Begin, tenure.Confirm)
	s.confirm(1)
	s.lateAnswer(3 * time.Second)
	s.lateAnswer(3 * time.Second)
	if c := s.claimed(); c.TtlMillis != 4800 {
		t.Errorf("a claim of %d ms, want 4,800", c.TtlMillis)
	}
}

// A pause, an election of the root, and what was under way with it are one event.
func TestTTLStaysBehindOnePause(t *testing.T) {
	for name, apart := range map[string]time.Duration{"two under way at once": 0, "two that are far apart": time.Minute} {
		s := paced(t, nil)
		s.used(100 * ms)
		s.used(100 * ms)
		s.expect(tenure.Confirm, tenure.Confirm)
		s.now = s.now.Add(time.Second)
		s.confirm(2)
		if apart == 0 {
			s.confirm(3)
		}
		for end := s.now.Add(apart); s.now < end; {
			for _, a := range s.after(50 * ms).core.Actions() {
				if a.Kind == tenure.Confirm {
					s.confirm(a.Seq)
				}
			}
		}
		if apart > 0 {
			s.lateAnswer(time.Second)
		}
		if s.core.Era() != 1 {
			t.Errorf("%s: the ttl changed", name)
		}
	}
}

// Confirmations that take half the ttl make it grow before the era lapses.
func TestTTLGrowsBeforeTheEraLapses(t *testing.T) {
	s := paced(t, nil)
	type sent struct {
		seq uint64
		at  clock.Instant
	}
	var open []sent
	busy := func(d, took time.Duration) {
		for end := s.now.Add(d); s.now < end && s.core.Era() != 0; s.used(10 * ms) {
			for _, a := range s.core.Actions() {
				open = append(open, sent{a.Seq, s.now})
			}
			for len(open) > 0 && s.now.Sub(open[0].at) >= took && s.core.Era() != 0 {
				s.confirm(open[0].seq)
				open = open[1:]
			}
		}
	}
	busy(time.Minute, 100*ms)
	if s.core.Era() != 1 {
		t.Fatal("the ttl grew by confirmations that take less than half of it")
	}
	busy(10*time.Second, 160*ms)
	if n := s.count.Lapses.Load(); s.core.Era() != 0 || n != 0 {
		t.Fatalf("era %d, %d lapses", s.core.Era(), n)
	}
	if c := s.claimed(); c.TtlMillis != 1200 {
		t.Errorf("a claim of %d ms, want 1,200", c.TtlMillis)
	}
}

// A process whose era was taken while it lived asks for a longer ttl when it claims again, for ten
// minutes; one whose era was asked to end, or that gave it up, does not.
func TestTTLGrowsByErasThatWereTaken(t *testing.T) {
	for name, c := range map[string]struct {
		ended func(*rootv1.Tenure)
		after time.Duration
		want  uint64
	}{
		"it lapsed":          {func(*rootv1.Tenure) {}, time.Minute, 1200},
		"it lapsed long ago": {func(*rootv1.Tenure) {}, 11 * time.Minute, 300},
		"it was given up":    {func(t *rootv1.Tenure) { t.Retired = true }, time.Minute, 300},
		"it was to end":      {func(t *rootv1.Tenure) { t.End = &rootv1.TenureEnd{} }, time.Minute, 300},
	} {
		s := paced(t, nil)
		mine := proto.CloneOf(s.core.Tenure())
		c.ended(mine)
		s.view(mine)
		other := tenureOf(2, "c2", 22, 300*ms)
		other.LeastTtlMillis = 300
		s.after(time.Second).view(other)
		for _, a := range s.core.Actions() {
			if a.Kind == tenure.Claim { // made behind the end of its own era, too late
				s.core.OnClaimed(refusedClaim(rootv1.Reason_REASON_ERA_STALE, 2, 0), nil, s.now)
			}
		}
		s.core.Actions()
		s.after(c.after)
		if got := s.claimed(); got.TtlMillis != c.want {
			t.Errorf("%s: a claim of %d ms, want %d", name, got.TtlMillis, c.want)
		}
	}
}

// A ttl that has nowhere to grow, or trusts no clock, stays.
func TestTTLHasItsBounds(t *testing.T) {
	for name, change := range map[string]func(*script){
		"by the setting": func(*script) {},
		"by the cluster": func(s *script) {
			s.core.OnView(tenure.Authority{Tenure: s.core.Tenure(), MostTTL: 300 * ms}, s.now)
		},
	} {
		s := paced(t, func(c *tenure.Settings) {
			if name == "by the setting" {
				c.MostTTL = 0
			}
		})
		change(s)
		for range 3 {
			s.lateAnswer(2 * time.Second)
		}
		if s.core.Era() != 1 {
			t.Errorf("%s: the ttl grew", name)
		}
	}
}

// calm confirms the era for a time, each time after took.
func (s *script) calm(d, took time.Duration) {
	for end := s.now.Add(d); s.now < end && s.core.Era() != 0; {
		for _, a := range s.core.Actions() {
			if a.Kind == tenure.Confirm {
				s.after(took)
				s.confirm(a.Seq)
			}
		}
		s.after(50 * ms)
	}
}

// Whoever takes over keeps what slowness has taught; ten calm minutes undo a step of it.
func TestTTLShrinksWhenCalm(t *testing.T) {
	grown := func() *script {
		s := newScript(t, func(c *tenure.Settings) { c.MostTTL = 5 * time.Second })
		last := tenureOf(1, "c9", 9, 800*ms)
		last.LeastTtlMillis, last.Retired = 200, true
		a := s.view(last).expect(tenure.Claim)
		if c := a[0].Claim; c.TtlMillis != 1200 || c.LeastTtlMillis != 300 {
			t.Fatalf("the successor claims %v, want four times its own setting", c)
		}
		next := tenureOf(2, "c1", 11, 1200*ms)
		next.LeastTtlMillis = 300
		s.core.OnClaimed(granted(next), nil, s.now)
		s.expect(tenure.Begin, tenure.Confirm)
		s.confirm(1)
		return s
	}
	s := grown()
	s.calm(599*time.Second, 10*ms)
	if s.core.Era() != 2 {
		t.Fatal("the era ended before ten minutes")
	}
	s.calm(2*time.Second, 10*ms)
	if c := s.claimed(); c.TtlMillis != 300 || c.ExpectedEra != 2 {
		t.Errorf("claim %v, want 300 ms over era 2", c)
	}
	s = grown()
	s.calm(30*time.Minute, 100*ms) // a third of what would be left
	if s.core.Era() != 2 {
		t.Error("the ttl shrank to what confirmations do not keep")
	}
}

// One burst: confirmations take 160 ms of a ttl of 300 ms for some hundred milliseconds, and 1 ms before and behind.
func TestTTLStaysBehindOneShortBurst(t *testing.T) {
	for _, burst := range []time.Duration{200 * ms, 250 * ms, 300 * ms, 400 * ms} {
		s := paced(t, nil)
		type sent struct {
			seq uint64
			at  clock.Instant
			due clock.Instant
		}
		var open []sent
		busy := func(d, took time.Duration) {
			for end := s.now.Add(d); s.now < end && s.core.Era() != 0; s.used(5 * ms) {
				for _, a := range s.core.Actions() {
					open = append(open, sent{a.Seq, s.now, s.now.Add(took)})
				}
				for len(open) > 0 && s.now >= open[0].due && s.core.Era() != 0 {
					s.confirm(open[0].seq)
					open = open[1:]
				}
			}
		}
		busy(time.Minute, ms)
		busy(burst, 160*ms)
		busy(time.Minute, ms)
		if s.core.Era() == 0 {
			t.Errorf("a single burst of %v in which nothing lapsed gives the era up for a ttl of %d ms", burst, s.claimed().TtlMillis)
		}
	}
}
