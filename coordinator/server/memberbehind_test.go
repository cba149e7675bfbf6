package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// behinds hears whether the last frame was of a member that is behind.
type behinds struct {
	listener
	is bool // guarded by mu
}

func (l *behinds) Frame(f server.HeardFrame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.is = f.Behind
}

// A member is behind when it has not taken for a minute what it was shown, on whichever of its streams, or
// not said all behind it; until it does.
func TestAMemberIsBehindWhatItIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := &behinds{}
		w := hosting(t, func(c *server.Config) { c.Members = heard })
		defer w.end(t)
		m := w.hosted(t, "m1")
		behind := func(what string, want bool) {
			t.Helper()
			heard.mu.Lock()
			defer heard.mu.Unlock()
			if heard.is != want {
				t.Errorf("%s: it is behind: %t, want %t", what, heard.is, want)
			}
		}
		says := func(what string, f *coordinatorv1.MemberFrame, want bool) {
			t.Helper()
			m.say(f)
			for m.hear().GetSequence() < m.sequence {
			}
			behind(what, want)
		}
		says("just shown", &coordinatorv1.MemberFrame{}, false)
		time.Sleep(59 * time.Second)
		says("shown 59 s ago", &coordinatorv1.MemberFrame{}, false)
		time.Sleep(2 * time.Second)
		says("shown 61 s ago", &coordinatorv1.MemberFrame{}, true)
		m.end()
		m = w.hosted(t, "m1")
		behind("on a new stream", true)
		says("taken", &coordinatorv1.MemberFrame{Shown: m.shown()}, false)
		time.Sleep(5 * time.Minute)
		says("nothing new", &coordinatorv1.MemberFrame{Shown: m.shown()}, false)
		w.must(t, assign(2, "m2"))
		m.hear()
		says("taken, with more to say", &coordinatorv1.MemberFrame{Shown: m.shown(), Partial: true}, false)
		time.Sleep(61 * time.Second)
		says("with ever more to say", &coordinatorv1.MemberFrame{Shown: m.shown(), Partial: true}, true)
		says("all said", &coordinatorv1.MemberFrame{Shown: m.shown()}, false)
	})
}
