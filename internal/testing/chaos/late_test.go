package chaos

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
)

// The holder is stopped between generate and reply, and goes on after another
// coordinator has taken over and has answered. Proxies make certain where the
// reply is at that moment; from then on the old holder hears nothing of the
// root but what lies in its sockets, until its late replies have been seen.
//
// What must hold: a late reply is a value only when it was generated before a
// confirmation of its era, asked for after that or still good then, that the
// root gave before the takeover; its call was open all the time, so it has its
// place before the successor's values. Every other late reply is a refusal, and
// a client that has seen the successor's era takes neither.

// lateScript is one way to be late.
type lateScript struct {
	name string
	ttl  time.Duration
	// stop has everybody ask the holder, has what they wait for held back, and
	// stops the holder.
	stop func(*lateRound)
	// covered is how many of the questions get a value of the ended era, first
	// which comes first.
	covered, first int
	// newsFirst: what was held back, and the news, arrive before the holder goes on.
	newsFirst bool
	// either: they arrive together after that, and the covered ones get a value
	// or a refusal, whichever the holder reads first.
	either bool
}

const (
	allQuestions = 7
	onTheWay     = "generated, and the question to the root on its way"
	onTheWayBack = "generated and confirmed, and the root's answer on its way"
	notRead      = "generated and confirmed, and the root's answer not read"
)

var lateScripts = []lateScript{
	{name: onTheWay, ttl: 0, stop: (*lateRound).holdQuestion, newsFirst: true},
	{name: onTheWayBack, ttl: 0, stop: (*lateRound).holdAnswer, covered: 2, either: true},
	// A holder has two confirmations on the way, each for who was there before it.
	{name: notRead, ttl: 0, stop: (*lateRound).leaveAnswer, covered: 2, first: 0},
	{name: notRead, ttl: 0, stop: (*lateRound).leaveAnswer, covered: 2, first: 2},
	{name: notRead, ttl: 0, stop: (*lateRound).leaveAnswer, covered: 2, first: 4},
	{name: notRead, ttl: 0, stop: (*lateRound).leaveAnswer, covered: 2, first: 6},
	{name: "replied, and the reply on its way", ttl: defaultTTL, stop: (*lateRound).holdReply, covered: allQuestions},
	{name: "asked, and the request and a confirmation not read", ttl: defaultTTL, stop: (*lateRound).holdRequest},
}

// late is all scripts on one cluster.
type late struct {
	*run
	caller  *caller
	goDoors []string

	rounds, repeated           int
	values, refusals, unserved int
	discarded                  uint64
	longest                    time.Duration
}

// TestLateReplies plays every script until it has shown what it is for.
func TestLateReplies(t *testing.T) {
	t.Parallel()
	e := &evidence{staleness: staleness}
	l := &late{run: &run{t: t, s: &schedule{}, e: e, began: time.Now(), done: newTotals()}}
	defer l.keep()
	l.c = newCluster(t, lateScripts[0].ttl)
	for m := range members {
		l.c.start(m, nil)
	}
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	for i := range roots {
		following.Go(func() { l.c.follow(ctx, i, e) })
	}
	l.load = &load{t: t, c: l.c, e: e, began: l.began, stop: stop}
	l.caller = l.load.caller(latePlace, 0)
	for k := range coordinators {
		l.goDoors = append(l.goDoors, l.c.net.Door(lateGoPlace, coordinatorPlace(k), l.c.CoordinatorAddrs[k]))
	}
	l.c.WaitHealthy(patience)
	for _, s := range lateScripts {
		l.play(s)
	}
	l.c.WaitHealthy(patience)
	proctest.Eventually(t, patience, l.rests)
	for m := range members {
		e.violations = append(e.violations, l.counted(m)...)
	}
	stop()
	following.Wait()
	l.judge()
	testreport.Linef(t, "late replies: %d takeovers from a stopped holder (%d rounds again), %s stopped at most: %d late values of the ended era, all lawful, %d late refusals, %d values generated and never served, %d replies discarded by Go clients that had seen the next era, %d answers judged",
		l.rounds, l.repeated, l.longest.Round(ms), l.values, l.refusals, l.unserved, l.discarded, l.done.operations)
}

// play repeats a script until the late replies were there: what lies in a socket must
// be read within the second that its reader gave it, which a busy machine does not
// always do.
func (l *late) play(s lateScript) {
	l.t.Helper()
	if l.c.ttl != s.ttl {
		l.c.ttl = s.ttl
		for m := roots; m < members; m++ {
			l.c.kill(m)
			l.c.start(m, nil)
		}
		l.c.WaitHealthy(patience)
	}
	for begun := time.Now(); time.Since(begun) < patience; l.repeated++ {
		l.rounds++
		if l.round(s) || l.t.Failed() {
			return
		}
	}
	l.t.Errorf("%s: what was to be late was not, within %s; the log says why", s.name, patience)
}
