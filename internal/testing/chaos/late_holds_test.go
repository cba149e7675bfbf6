package chaos

import (
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/rpcstats"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Where replies are when the holder stops, and what shows that they are there.

// generated waits until the values have been taken from their window, and the
// root has been asked as often as it can be at a time.
func (r *lateRound) generated(a *ask, before sight) {
	r.t.Helper()
	most := r.before.Authority.Confirmations + tenure.MaxConfirmations
	asks := min(before.Authority.Confirmations+1, most)
	r.until(a.question.String()+" is generated", func() bool {
		now := r.vars()
		if now.Authority.Confirmations > most || a.ended() && a.refused() {
			r.spoil("the holder gave up waiting for the root, or asked again: nobody knows who is covered")
		}
		if a.ended() && a.err == nil {
			r.t.Fatalf("%s: before the root confirmed it: %s", r.s.name, a)
		}
		if r.void != "" || now.Authority.Confirmations != asks {
			return r.void != ""
		}
		if a.op == history.OpID {
			return now.IDWindowLeft == before.IDWindowLeft-a.count
		}
		return now.TSOWindowLeft < before.TSOWindowLeft
	})
}

// replied waits until the holder has sent the values.
func (r *lateRound) replied(a *ask, before sight) {
	r.t.Helper()
	r.until(a.question.String()+" is replied to", func() bool {
		now := r.vars().Authority
		if a.ended() {
			r.spoil("the holder gave up waiting for the root")
			return true
		}
		if a.op == history.OpID {
			return now.IDs == before.Authority.IDs+a.count
		}
		return now.Timestamps == before.Authority.Timestamps+a.count
	})
}

// delivered waits until the question lies in the stopped holder's sockets.
func (r *lateRound) delivered(a *ask, before sight) {
	r.t.Helper()
	r.until(a.question.String()+" is with the holder", func() bool { return r.bytes(r.fromCallers()) > before.sent })
}

// noValue fails when a call that waits has got a value.
func (r *lateRound) noValue(when string, calls []*ask) {
	r.t.Helper()
	for _, a := range calls {
		switch {
		case a.ended() && a.err == nil:
			r.t.Errorf("%s: %s: %s", r.s.name, when, a)
		case a.ended():
			r.spoil("the holder gave up waiting for the root")
		}
	}
}

// spoil says why the round shows nothing.
func (r *lateRound) spoil(why string) {
	if r.void == "" {
		r.void = why
	}
}

// holdQuestion: values are generated and wait for the root, which is not asked.
func (r *lateRound) holdQuestion() {
	r.t.Helper()
	r.cutOff(r.toRoot())
	held := r.harm(r.toRoot())
	r.askAll(r.generated)
	r.until("the question is held back", func() bool { return r.harm(r.toRoot()) > held })
	r.noValue("before the root confirmed it", r.inside)
	r.pause()
}

// leaveAnswer: the same, and the root confirms when the holder has stopped.
func (r *lateRound) leaveAnswer() {
	r.t.Helper()
	r.holdQuestion()
	r.letRootAnswer()
}

// holdAnswer: the same, and what the root answers is held back.
func (r *lateRound) holdAnswer() {
	r.t.Helper()
	r.cutOff(r.fromRoot())
	answered, held := r.confirmsAnswered(), r.harm(r.fromRoot())
	r.askAll(r.generated)
	r.until("the answers are held back", func() bool {
		return r.void != "" || r.confirmsAnswered() >= answered+tenure.MaxConfirmations && r.harm(r.fromRoot()) > held
	})
	r.noValue("before the answer came", r.inside)
	r.pause()
	r.cutOff(r.toRoot())
}

// holdReply: values are served, and the replies do not arrive.
func (r *lateRound) holdReply() {
	r.t.Helper()
	r.cutOff(r.toCallers())
	held := r.harm(r.toCallers())
	r.askAll(r.replied)
	r.until("the replies are held back", func() bool { return r.void != "" || r.harm(r.toCallers()) >= held+2 })
	r.noValue("while replies are held back", r.inside)
	r.pause()
	r.cutOff(r.toRoot(), r.fromRoot())
}

// holdRequest: the holder stops with a question to the root on its way, and is
// asked then; the root confirms the era.
func (r *lateRound) holdRequest() {
	r.t.Helper()
	r.cutOff(r.toRoot())
	held := r.harm(r.toRoot())
	r.until("a question is held back", func() bool {
		return r.harm(r.toRoot()) > held && r.vars().Authority.Confirmations > r.before.Authority.Confirmations
	})
	r.pause()
	r.askAll(r.delivered)
	r.letRootAnswer()
}

func (r *lateRound) pause() {
	r.t.Helper()
	r.stopped, r.stoppedAt = r.pauseNow(r.holder), time.Now()
	if err := r.stopped.fired(); err != nil {
		r.t.Fatal(err)
	}
}

// letRootAnswer lets the root hear the stopped holder and answer it, and cuts
// them off from each other.
func (r *lateRound) letRootAnswer() {
	r.t.Helper()
	answered, bytes := r.confirmsAnswered(), r.bytes(r.fromRoot())
	r.mend(r.toRoot())
	begun := time.Now()
	r.until("the root answers", func() bool {
		if time.Since(begun) > inTime {
			r.spoil("the root did not answer: it may have elected a leader, and the holder cannot ask again")
		}
		return r.void != "" || r.confirmsAnswered() > answered && r.bytes(r.fromRoot()) > bytes
	})
	r.cutOff(r.toRoot(), r.fromRoot())
}

// confirmsAnswered counts confirmations that root peers have answered.
func (r *lateRound) confirmsAnswered() (n uint64) {
	r.t.Helper()
	for m := range roots {
		var vars struct {
			RPC map[string]rpcstats.MethodSnapshot `json:"rpc"`
		}
		if err := r.c.vars(m, &vars); err != nil {
			r.t.Fatal(err)
		}
		n += vars.RPC[rootv1.Root_ConfirmTenure_FullMethodName].Codes["OK"]
	}
	return n
}
