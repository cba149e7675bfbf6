package server_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// slowListener is slow to hear of odd streams: of their first frame, and of the next.
type slowListener struct {
	listener
	first, next chan struct{}
	frames      atomic.Int64
}

func (l *slowListener) Frame(f server.HeardFrame) {
	if f.Stream%2 == 1 {
		if l.frames.Add(1) == 1 {
			<-l.first
		} else {
			<-l.next
		}
	}
	l.listener.Frame(f)
}

func (l *slowListener) Answered(state.MemberID, uint64, clock.Instant) bool { return true }

// TestAnOlderStreamComesLate: a stream that another one took the place of, and whose
// frames are looked at behind that one's, takes nothing from it: what changes is shown there.
func TestAnOlderStreamComesLate(t *testing.T) {
	for range 60 { // whether a frame is read that came before the end is a matter of chance
		if !olderStreamComesLate(t) {
			return
		}
	}
}

func olderStreamComesLate(t *testing.T) (shown bool) {
	synctest.Test(t, func(t *testing.T) {
		heard := &slowListener{first: make(chan struct{}), next: make(chan struct{})}
		w := hosting(t, func(c *server.Config) { c.Members = heard })
		defer w.end(t)
		old := w.speak(t, "m1", w.incarnation("m1"))
		old.say(&coordinatorv1.MemberFrame{Complete: true})
		for range 20 {
			old.say(&coordinatorv1.MemberFrame{})
		}
		synctest.Wait()
		m := w.hosted(t, "m1")
		if len(m.has) != 2 {
			t.Fatalf("it is shown %v", m.has)
		}
		close(heard.first)
		synctest.Wait()
		w.must(t, assign(2, "m2"))
		answers := make(chan *coordinatorv1.MemberAnswer, 1000)
		go func() {
			defer close(answers)
			for {
				a, err := m.stream.Recv()
				if err != nil {
					return
				}
				answers <- a
			}
		}()
		confirmed := 0
		for i := range 20 {
			m.say(&coordinatorv1.MemberFrame{Shown: m.shown()})
			time.Sleep(time.Second)
			synctest.Wait()
			for len(answers) > 0 {
				a := <-answers
				shown = shown || a.GetSet() != nil
				if a.GetConfirmed() {
					confirmed++
				}
			}
			if i == 0 {
				close(heard.next)
			}
		}
		if !shown {
			t.Errorf("it was confirmed %d times in 20 s, and never shown that region 2 is another member's", confirmed)
		}
		m.end()
	})
	return shown
}
