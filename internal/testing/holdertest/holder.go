// Package holdertest drives a tenure.RawHolder in virtual time: the same steps
// that tenure.Holder takes with goroutines, each of which a simulation may delay,
// repeat or never let happen. It can leave one rule out, from the outside, so that
// what checks a simulation can be shown to notice.
package holdertest

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Rule is a rule of the authority that is left out.
type Rule uint8

// Rules that can be left out. With None all are kept.
const (
	None Rule = iota
	// GenerateThenCheck: instead requests gather while a check is made.
	GenerateThenCheck
	// CountFromSending: a ttl counts from the answer.
	CountFromSending
	// StartAboveFence: a successor starts two values below.
	StartAboveFence
	// RootFirst: a window is used before it is rooted.
	RootFirst
	// WindowPerEra: what was left of the last era's windows is used.
	WindowPerEra
	// CloseThenRetire: the era is retired while it is served.
	CloseThenRetire
	// ConfirmAfter: with a ttl of 0 any earlier confirmation will do.
	ConfirmAfter
)

// Env is the process around a Holder.
type Env struct {
	// Now is the process's clock.
	Now func() clock.Instant
	// After runs a step of the process in d, unless that has ended by then.
	After func(d time.Duration, step func())
	// Between runs a step after a moment in which anything may happen.
	Between func(step func())
	// Send sends a message to the root; answer is called at most once, as a step.
	Send func(m *tenure.Message, answer func(tenure.Answer))
	// Left is called when an orderly end is over.
	Left func()
}

// Holder is a RawHolder and its surroundings. Every step of the process that
// touches it ends with Settle.
type Holder struct {
	Raw *tenure.RawHolder
	Off Rule
	Env Env

	ttl       time.Duration
	armed     clock.Instant
	leaving   bool
	retireKey []byte
	reserved  []reservation
	confirmed []confirmation
	// FirstWindows counts eras that came with their windows.
	FirstWindows int

	// For rules left out.
	batch      []func()
	lastUntil  clock.Instant
	lastEra    uint64
	tops       map[rootv1.Mandate]uint64
	left       *leftover
	changedFor uint64
	changed    *rootv1.Tenure
}

// leftover is what an era had not consumed of its windows.
type leftover struct {
	era       uint64
	from, top [2]uint64
}

type reservation struct {
	*tenure.Reservation
	reply func(first, era uint64)
	// checked: that was done before.
	checked bool
}

type confirmation struct {
	*tenure.Confirmation
	run   tenure.Run
	reply func(first, era uint64)
}

// New makes the Holder of a new process. before is that of the process before it on
// the same machine, or nil.
func New(cfg tenure.RawConfig, count *tenure.Counters, off Rule, env Env, before *Holder) *Holder {
	h := &Holder{Raw: tenure.NewRaw(cfg, count), Off: off, Env: env, ttl: cfg.TTL, retireKey: cfg.RetireKey, tops: map[rootv1.Mandate]uint64{}}
	if before != nil {
		h.left = before.left
	}
	return h
}

// Era is the era held, 0 for none.
func (h *Holder) Era() uint64 { return h.Raw.Status(h.Env.Now()).Era }

// OnView tells what the newest view says.
func (h *Holder) OnView(a tenure.Authority) {
	a.Tenure = h.change(a.Tenure)
	h.Raw.OnView(a, h.Env.Now())
}

// Serve serves a request: reply is called once, as a step, or never. It reports
// false when the request is refused at once.
func (h *Holder) Serve(m rootv1.Mandate, count uint64, reply func(first, era uint64)) bool {
	if h.Off == GenerateThenCheck {
		return h.gather(m, count, reply)
	}
	if run, ok := h.Raw.Take(m, count); ok {
		h.Env.Between(func() { h.check(run, reply) })
		return true
	}
	r, err := h.Raw.Reserve(m, count, h.Env.Now())
	if err != nil {
		return false
	}
	h.reserved = append(h.reserved, reservation{r, reply, false})
	return true
}

// Check checks that an era is held, as Serve does behind a value: good is called once,
// as a step, or never. It reports false when the era is not held.
func (h *Holder) Check(era uint64, good func()) bool {
	run, ok := h.Raw.Enter(era)
	if ok {
		h.Env.Between(func() { h.check(run, func(uint64, uint64) { good() }) })
	}
	return ok
}

// gather checks first, with a value that nobody gets, and generates then.
func (h *Holder) gather(m rootv1.Mandate, count uint64, reply func(first, era uint64)) bool {
	if h.Era() == 0 || h.leaving {
		return false
	}
	h.batch = append(h.batch, func() {
		if run, ok := h.Raw.Take(m, count); ok {
			run.Close()
			reply(run.First, run.Era())
		} else if r, err := h.Raw.Reserve(m, count, h.Env.Now()); err == nil {
			h.reserved = append(h.reserved, reservation{r, reply, true})
		}
	})
	if len(h.batch) > 1 {
		return true
	}
	run, ok := h.Raw.Take(m, 1)
	if !ok {
		h.batch = nil
		return false
	}
	h.check(run, func(uint64, uint64) {
		generate := func() {
			batch := h.batch
			h.batch = nil
			for _, g := range batch {
				g()
			}
		}
		// What came while the process stood still behind the check is gathered too.
		h.Env.Between(func() { h.Env.Between(generate) })
	})
	return true
}

func (h *Holder) check(run tenure.Run, reply func(first, era uint64)) {
	now := h.Env.Now()
	good := run.Good(now)
	switch h.Off {
	case CountFromSending:
		good = good || now < h.lastUntil && h.lastEra == run.Era() && h.Era() == run.Era()
	case ConfirmAfter:
		good = h.Era() == run.Era()
	}
	if good {
		run.Close()
		reply(run.First, run.Era())
		return
	}
	c, err := h.Raw.Confirm(run, now)
	if err != nil {
		run.Close()
		return
	}
	h.confirmed = append(h.confirmed, confirmation{c, run, reply})
}

// Shutdown begins an orderly end.
func (h *Holder) Shutdown(holder string, incarnation uint64) {
	if h.leaving {
		return
	}
	h.leaving = true
	if s := h.Raw.Status(h.Env.Now()); h.Off == CloseThenRetire && s.Era != 0 {
		retired := &rootv1.TenureRetired{Era: s.Era, HolderId: holder, HolderIncarnation: incarnation, Consumed: s.Consumed}
		if len(s.Tenure.GetRetireDigest()) > 0 { // as RawHolder makes it
			secret := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Clone(h.retireKey), s.Era))
			retired.RetireSecret = secret[:]
		}
		h.Env.Send(&tenure.Message{Command: &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureRetired{TenureRetired: retired}}}}}, func(tenure.Answer) { h.Env.Left() })
		return
	}
	h.Raw.Shutdown(h.Env.Now())
}

// Leaving reports that an orderly end has begun.
func (h *Holder) Leaving() bool { return h.leaving }

// Settle does what follows from a step.
func (h *Holder) Settle() {
	if h.Raw.Due() {
		h.Raw.Tick(h.Env.Now())
	}
	for messages := h.Raw.Messages(); len(messages) > 0; messages = h.Raw.Messages() {
		for _, m := range messages {
			h.send(m)
		}
	}
	h.decide()
	h.note()
	now := h.Env.Now()
	if h.Raw.Finished(now) {
		h.Env.Left()
		return
	}
	if at := h.Raw.Deadline(); at != h.armed {
		h.armed = at
		if wait := at.Sub(now); wait < time.Minute {
			h.Env.After(max(wait, 0)+time.Microsecond, func() {
				h.armed = 0
				h.Raw.Tick(h.Env.Now())
			})
		}
	}
}

// decide goes on with requests that wait no more.
func (h *Holder) decide() {
	waiting := h.reserved
	h.reserved = nil
	for _, w := range waiting {
		select {
		case <-w.Done():
			if run, err := w.Result(); err == nil && w.checked {
				run.Close()
				w.reply(run.First, run.Era())
			} else if err == nil {
				h.Env.Between(func() { h.check(run, w.reply) })
			}
		default:
			h.reserved = append(h.reserved, w)
		}
	}
	checks := h.confirmed
	h.confirmed = nil
	for _, c := range checks {
		select {
		case <-c.Done():
			last := c.run.Close()
			if c.Err() == nil {
				c.reply(c.run.First, c.run.Era())
			}
			if last && h.leaving {
				h.Env.After(0, func() { h.Raw.Tick(h.Env.Now()) })
			}
		default:
			h.confirmed = append(h.confirmed, c)
		}
	}
}

func (h *Holder) send(m *tenure.Message) {
	answered := false
	answer := func(a tenure.Answer) {
		if !answered {
			answered = true
			h.Raw.OnAnswer(m, h.changeAnswer(m, a), h.Env.Now())
		}
	}
	if f := extension(m); f != nil && h.Off == RootFirst {
		from := max(h.tops[f.Mandate], f.Floor)
		answer(tenure.Answer{Result: &rootv1.CommandResult{
			Outcome: rootv1.Outcome_OUTCOME_APPLIED,
			Events:  []*rootv1.EventResult{{Window: &rootv1.Window{Era: f.Era, From: from, To: from + f.Size}}},
		}})
	}
	h.Env.Send(m, answer)
}

func extension(m *tenure.Message) *rootv1.FenceExtended {
	if len(m.Command.GetEvents()) == 0 {
		return nil
	}
	return m.Command.Events[0].GetFenceExtended()
}

// changeAnswer is the answer as the Holder hears it, when a rule is left out.
func (h *Holder) changeAnswer(m *tenure.Message, a tenure.Answer) tenure.Answer {
	if a.Confirm.GetActive() {
		h.lastEra, h.lastUntil = m.Era, h.Env.Now().Add(h.ttl)
	}
	if a.Claim != nil {
		a.Claim = proto.CloneOf(a.Claim)
		var windows []*rootv1.Window
		var given *rootv1.Tenure
		for _, e := range a.Claim.GetResult().GetEvents() {
			if e.Tenure != nil {
				e.Tenure = h.change(e.Tenure)
				given = e.Tenure
			}
			if e.Window != nil {
				windows = append(windows, e.Window)
			}
		}
		if len(windows) == 2 {
			h.FirstWindows++
			h.changeFirst(m, given, windows)
		}
		for i, w := range windows {
			h.tops[mandates[i]] = w.To
		}
	}
	if f := extension(m); f != nil {
		for _, e := range a.Result.GetEvents() {
			h.tops[f.Mandate] = max(h.tops[f.Mandate], e.GetWindow().GetTo())
		}
	}
	return a
}

var mandates = []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO}

// change is a Tenure as the Holder hears of it, when a rule is left out.
func (h *Holder) change(t *rootv1.Tenure) *rootv1.Tenure {
	if t == nil || h.Off != StartAboveFence && h.Off != WindowPerEra {
		return t
	}
	if t.Era == h.changedFor && t.Retired == h.changed.Retired {
		return h.changed
	}
	h.changedFor, h.changed = t.Era, proto.CloneOf(t)
	in := h.changed.Inherited
	if in == nil {
		return h.changed
	}
	if h.Off == StartAboveFence {
		in.AllocId -= min(2, in.AllocId)
		in.Tso -= min(2, in.Tso)
	} else if h.left != nil && h.left.era < t.Era {
		in.AllocId, in.Tso = min(in.AllocId, h.left.from[0]), min(in.Tso, h.left.from[1])
	}
	return h.changed
}

// changeFirst changes the windows that came with an era into others that the holder
// could have been given: as large, and not below what it asked for.
func (h *Holder) changeFirst(m *tenure.Message, t *rootv1.Tenure, windows []*rootv1.Window) {
	switch {
	case h.Off == StartAboveFence:
		down := min(2, windows[0].From-m.Windows[0].Floor)
		windows[0].From, windows[0].To = windows[0].From-down, windows[0].To-down
	case h.Off == WindowPerEra && h.left != nil && h.left.era < t.GetEra():
		for i, w := range windows {
			if from := h.left.from[i]; from < h.left.top[i] && from >= m.Windows[i].Floor {
				w.From, w.To = from, from+m.Windows[i].Size
			}
		}
	}
}

// note keeps what is left of the era held.
func (h *Holder) note() {
	if h.Off != WindowPerEra {
		return
	}
	if s := h.Raw.Status(h.Env.Now()); s.Era != 0 {
		h.left = &leftover{s.Era, [2]uint64{s.Consumed.AllocId, s.Consumed.Tso}, [2]uint64{s.Consumed.AllocId + s.IDsLeft, s.Consumed.Tso + s.TimestampsLeft}}
	}
}
