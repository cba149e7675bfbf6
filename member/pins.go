package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/internal/pinkeys"
	"github.com/nokv/nokv/pin"
	"github.com/nokv/nokv/rooted"
)

// Bounds of one pin.
const (
	MaxPinIDBytes       = 255
	MaxPinMetadataBytes = 4 << 10
	MaxRequestIDBytes   = 128
	// MaxPinCalls is how many calls of a pin run at once.
	MaxPinCalls = 64
)

// PinsConfig bounds what is pinned to a member. The zero value of every field means its
// default.
type PinsConfig struct {
	// Idle is how long a pin lives without a call, and Life in all: defaults 1 minute and
	// 10 minutes, pin.MaxLife at most.
	Idle, Life time.Duration
	// Grace is how long what is pinned holds back the release of its region: it is how long
	// a move, a drain or the end of the process waits for it. Less than
	// Config.HandlerTimeout; default 1 s, or half of that if it is less.
	Grace time.Duration
	// Max pins there are at a time, default 10,000, each about 4 KiB, with MaxBytes of
	// metadata and ids in all. Default 16 MiB.
	Max, MaxBytes int
	// Cleanup, if set, ends what a pin stands for: it rolls back what was not committed.
	// It is called once for each pin that was begun, behind its last call, with why it
	// ended. Its context ends after Config.HandlerTimeout; what comes next of the region
	// waits for it.
	Cleanup func(ctx context.Context, p Pin, why PinEnd)
}

func (c PinsConfig) validate(timeout time.Duration) error {
	c = c.withDefaults(timeout)
	switch {
	case c.Idle < 0 || c.Life < 0 || c.Grace < 0 || c.Max < 0 || c.MaxBytes < 0:
		return errors.New("member config: Pins: nothing may be negative")
	case c.Life > pin.MaxLife:
		return fmt.Errorf("member config: Pins.Life is %v: give %v at most, keys do not open longer", c.Life, pin.MaxLife)
	case c.Grace >= timeout:
		return fmt.Errorf("member config: Pins.Grace is %v: give less than HandlerTimeout, %v", c.Grace, timeout)
	}
	return nil
}

func (c PinsConfig) withDefaults(timeout time.Duration) PinsConfig {
	c.Life = cmp.Or(c.Life, 10*time.Minute)
	c.Idle = cmp.Or(c.Idle, time.Minute)
	c.Grace = cmp.Or(c.Grace, min(time.Second, timeout/2))
	c.Max = cmp.Or(c.Max, 10_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 16<<20)
	return c
}

// PinEnd says why a pin has ended, in a word that stays.
type PinEnd string

// Why pins end. PinEnded: End was called. PinIdle, PinOld: no call came for
// PinsConfig.Idle, or Life is over. PinRegionLeaves: the region is to be released, and
// Grace is over. PinLost: the right to act for the region has ended. PinChannelClosed:
// the channel of its caller has.
const (
	PinEnded         PinEnd = "ended"
	PinIdle          PinEnd = "idle"
	PinOld           PinEnd = "old"
	PinRegionLeaves  PinEnd = "region_leaves"
	PinLost          PinEnd = "lost"
	PinChannelClosed PinEnd = "channel_closed"
)

// PinOptions are those of one pin.
type PinOptions struct {
	// ID is a name of the application's own, unique among the pins that there are at this
	// process. Empty: one is made.
	ID string
	// Idle and Life, if set, are shorter than those of PinsConfig.
	Idle, Life time.Duration
	// Metadata is told to each call of the pin, and to nobody else.
	Metadata string
	// Channel, if set, ends the pin when it is closed: that of its caller was.
	Channel <-chan struct{}
}

// Pin is work that was begun in this process and goes on over several requests.
type Pin struct {
	ID       string
	Region   Region
	Metadata string
	// Expires is when it ends at the latest, by the clock of this machine.
	Expires time.Time
	// Token is what its caller shows. Only Begin tells it: nobody keeps it here.
	Token string
}

// ErrCanceled is the cause of the context of a call that Cancel ended.
var ErrCanceled = errors.New("the call was canceled by its request id")

// Pins is the table of what is pinned to this process: it is kept nowhere else. Its
// methods may be called by any number of goroutines.
type Pins struct {
	m   *Member
	cfg PinsConfig

	mu sync.Mutex
	// Guarded by mu. begun are those whose Cleanup has not returned; at and ids those that
	// calls find.
	begun, bytes int
	kept         int // rings that forgetLocked left
	at           map[pin.Nonce]*pinned
	ids          map[string]*pinned
	keys         map[string]*pinkeys.Keys
	rings        map[rooted.KeyspaceID]*pin.Ring // that pins were sealed by
	ended        map[PinEnd]uint64
}

// pinned is one pin.
type pinned struct {
	Pin
	of          *Pins
	nonce       pin.Nonce
	keyspace    rooted.KeyspaceID
	incarnation uint64
	bytes       int
	table       *held.Table
	grant       *held.Grant
	idle        time.Duration
	channel     <-chan struct{}
	quiet       chan struct{} // closed when it has ended, behind its last call

	// Guarded by of.mu.
	used, oldAt, leaveBy clock.Instant
	calls                map[*pinCall]struct{}
	why                  PinEnd // "": it has not ended
	told                 bool   // its calls were told of the end
}

// pinCall is a call of a pin that runs.
type pinCall struct {
	id     string
	cancel context.CancelCauseFunc
}

func newPins(m *Member) *Pins {
	return &Pins{
		m: m, cfg: m.cfg.Pins, at: map[pin.Nonce]*pinned{}, ids: map[string]*pinned{}, keys: map[string]*pinkeys.Keys{},
		rings: map[rooted.KeyspaceID]*pin.Ring{}, ended: map[PinEnd]uint64{},
	}
}

// Pins is what is pinned to this member.
func (m *Member) Pins() *Pins { return m.pins }

// open is how many pins have not been cleaned up.
func (p *Pins) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// PinsStatus is how many pins there are, and have been.
type PinsStatus struct {
	// Open pins, those that are being cleaned up among them, and bytes of ids and metadata.
	Open, Bytes int
	// Ended pins, by why.
	Ended map[PinEnd]uint64
}

// Status says how many pins there are.
func (p *Pins) Status() PinsStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PinsStatus{Open: p.begun, Bytes: p.bytes, Ended: make(map[PinEnd]uint64, len(p.ended))}
	for why, n := range p.ended {
		s.Ended[why] = n
	}
	return s
}

const (
	// keysRecent is how old what is known of keys may be for a pin to be sealed, and
	// keysSoon how long newer ones are waited for.
	keysRecent = 5 * time.Minute
	keysSoon   = time.Second
)

// Begin pins work to this process, for a request that Do would let in; what it returns
// shows Token to whoever goes on with it. Errors are those of Do, *pin.Error of kind Busy,
// or that the cluster has no key for pins.
func (p *Pins) Begin(ctx context.Context, req Request, o PinOptions) (Pin, error) {
	if err := o.validate(); err != nil {
		return Pin{}, err
	}
	t := p.m.table.Load()
	if t == nil {
		return Pin{}, ErrNotRunning
	}
	g, err := p.m.admit(ctx, t, &req)
	if err != nil {
		return Pin{}, err
	}
	e, token, err := p.begin(ctx, t, g, o)
	if err != nil {
		p.m.leave(t, g)
		return Pin{}, err
	}
	told := e.Pin
	told.Token = token
	return told, nil
}

// Register is Begin for an id of the application's own, which lives for ttl at most.
func (p *Pins) Register(ctx context.Context, req Request, id string, ttl time.Duration, metadata string) (Pin, error) {
	if id == "" || ttl <= 0 {
		return Pin{}, errors.New("register a pin: want an id, and a ttl above 0")
	}
	return p.Begin(ctx, req, PinOptions{ID: id, Life: ttl, Idle: ttl, Metadata: metadata})
}

func (o *PinOptions) validate() error {
	switch {
	case len(o.ID) > MaxPinIDBytes:
		return fmt.Errorf("begin a pin: its id has %d bytes, more than %d", len(o.ID), MaxPinIDBytes)
	case len(o.Metadata) > MaxPinMetadataBytes:
		return fmt.Errorf("begin a pin: its metadata have %d bytes, more than %d", len(o.Metadata), MaxPinMetadataBytes)
	case o.Idle < 0 || o.Life < 0:
		return errors.New("begin a pin: Idle and Life may not be negative")
	}
	return nil
}

// begin makes the pin of an admitted request, which leaves when the pin has ended.
func (p *Pins) begin(ctx context.Context, t *held.Table, g *held.Grant, o PinOptions) (*pinned, string, error) {
	ring, err := p.keysOf(g.Keyspace().Name).Recent(ctx, keysRecent, keysSoon)
	if err != nil {
		return nil, "", fmt.Errorf("begin a pin: the keys of pins: %w", err)
	}
	life := shorter(p.cfg.Life, o.Life)
	now := p.m.cfg.clock.Now()
	e := &pinned{
		of: p, table: t, grant: g, idle: shorter(p.cfg.Idle, o.Idle), channel: o.Channel, quiet: make(chan struct{}),
		used: now, oldAt: now.Add(life), calls: map[*pinCall]struct{}{},
		Pin: Pin{ID: o.ID, Region: regionOf(g.Region, g.Keyspace(), g), Metadata: o.Metadata, Expires: time.UnixMilli(time.Now().Add(life).UnixMilli())},
	}
	p.m.mu.Lock()
	if p.m.core != nil && p.m.core.Table() == t {
		e.incarnation = p.m.incarnation
	}
	p.m.mu.Unlock()
	says := pin.Pin{Region: g.Region.ID, Member: rooted.MemberID(p.m.cfg.ID), Incarnation: e.incarnation, Expires: e.Expires}
	token, err := ring.Seal(&says)
	if err != nil {
		return nil, "", err
	}
	e.keyspace = says.Keyspace
	if e.nonce = says.Nonce; e.ID == "" {
		e.ID = e.nonce.String()
	}
	e.bytes = len(e.ID) + len(e.Metadata)
	if err := p.add(e, ring); err != nil {
		return nil, "", err
	}
	p.m.mu.Lock()
	runs := p.m.over == nil && p.m.core != nil && p.m.core.Table() == t
	if runs {
		p.m.running.Add(1)
	}
	p.m.mu.Unlock()
	if !runs {
		p.mu.Lock()
		delete(p.at, e.nonce)
		delete(p.ids, e.ID)
		p.begun, p.bytes = p.begun-1, p.bytes-e.bytes
		p.mu.Unlock()
		return nil, "", ErrNotRunning
	}
	go func() {
		defer p.m.running.Done()
		e.live()
	}()
	return e, token, nil
}

func shorter(most, wanted time.Duration) time.Duration {
	if wanted > 0 {
		return min(most, wanted)
	}
	return most
}

// keysOf are the keys of a keyspace that this member has regions of.
func (p *Pins) keysOf(keyspace string) *pinkeys.Keys {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.keys[keyspace]
	if k == nil {
		if len(p.keys) >= maxPinKeyspaces {
			clear(p.keys) // those that are needed are asked for again
		}
		k = pinkeys.New(p.m.cfg.Client, keyspace)
		p.keys[keyspace] = k
	}
	return k
}

// maxPinKeyspaces bounds the keyspaces whose keys are kept though nothing is pinned there.
const maxPinKeyspaces = 1024

// forgetLocked drops keys by which nothing is sealed that there is, when there are twice as many as
// it left last.
func (p *Pins) forgetLocked() {
	if len(p.rings) < max(maxPinKeyspaces, 2*p.kept) {
		return
	}
	open := map[rooted.KeyspaceID]bool{}
	for _, e := range p.at {
		open[e.keyspace] = true
	}
	for id := range p.rings {
		if !open[id] {
			delete(p.rings, id)
		}
	}
	p.kept = len(p.rings)
}

func (p *Pins) add(e *pinned, ring *pin.Ring) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.begun >= p.cfg.Max:
		return pin.Refuse(pin.Busy, "%d pins are open at member %q, no more fit: end some, or try again later", p.begun, p.m.cfg.ID)
	case p.bytes+e.bytes > p.cfg.MaxBytes:
		return pin.Refuse(pin.Busy, "the pins at member %q have %d bytes of metadata, %d more do not fit: end some, or try again later", p.m.cfg.ID, p.bytes, e.bytes)
	case p.ids[e.ID] != nil:
		return pin.Refuse(pin.Busy, "a pin with the id %.80q is open at member %q: give another id, or end that one", e.ID, p.m.cfg.ID)
	}
	p.forgetLocked()
	p.begun, p.bytes = p.begun+1, p.bytes+e.bytes
	p.at[e.nonce], p.ids[e.ID], p.rings[e.keyspace] = e, e, ring
	return nil
}

// Do runs fn for a request that shows a pin: a call of the pin. Its context ends with the
// pin, and with Cancel of the request's id, which may be empty. Errors are fn's,
// *pin.Error, *Unconfirmed and, with Ran, *NotOwned. Calls of one pin may overlap.
func (p *Pins) Do(ctx context.Context, token, requestID string, fn func(context.Context, Pin) error) error {
	if len(requestID) > MaxRequestIDBytes {
		return fmt.Errorf("a request id of %d bytes is longer than %d", len(requestID), MaxRequestIDBytes)
	}
	e, err := p.find(token)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call := &pinCall{requestID, cancel}
	if err := e.enter(call); err != nil {
		return err
	}
	defer e.leave(call)
	err = fn(ctx, e.Pin)
	if no := e.table.Check(e.grant, p.m.cfg.clock); no != nil {
		return errorOf(no, &Request{Region: e.Region.ID, Epoch: e.Region.Epoch}, true)
	}
	return err
}

// Touch has a pin live on as a call does.
func (p *Pins) Touch(token string) error {
	return p.Do(context.Background(), token, "", func(context.Context, Pin) error { return nil })
}

// End ends a pin: no call of it is let in any more, those that run come to their end, and
// then it is cleaned up. They are told when the pin would have ended by itself, or has to. A pin
// that has ended is an error.
func (p *Pins) End(token string) error {
	e, err := p.find(token)
	if err != nil {
		return err
	}
	if why := e.end(PinEnded); why != "" {
		return errEnded(why)
	}
	return nil
}

// Cancel ends the context of the calls of a pin that have a request id; false: none runs.
// It is for channels by which the end of a request does not reach this process.
func (p *Pins) Cancel(token, requestID string) (bool, error) {
	e, err := p.find(token)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found := false
	for c := range e.calls {
		if c.id == requestID && requestID != "" {
			c.cancel(ErrCanceled)
			found = true
		}
	}
	return found, nil
}

// find finds a pin by what its caller shows.
func (p *Pins) find(token string) (*pinned, error) {
	h, err := pin.Peek(token)
	if err != nil {
		return nil, err
	}
	if p.m.cfg.Killed != nil && p.m.cfg.Killed() {
		return nil, ErrNotRunning
	}
	p.mu.Lock()
	ring := p.rings[h.Keyspace]
	for _, other := range p.rings {
		if cluster, _ := other.Of(); ring == nil && cluster != h.Cluster {
			ring = other // and says so
		}
		break
	}
	p.mu.Unlock()
	if ring == nil { // of a process before: this one has begun nothing there
		return nil, pin.LostWith(rooted.MemberID(p.m.cfg.ID))
	}
	says, err := ring.Open(token, time.Now())
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	e := p.at[says.Nonce]
	p.mu.Unlock()
	switch {
	case e != nil:
		return e, nil
	case says.Member != rooted.MemberID(p.m.cfg.ID):
		return nil, pin.Refuse(pin.OtherMember, "the pin is of member %.80q, and this is %q: a router finds that one", says.Member, p.m.cfg.ID)
	case says.Incarnation != p.m.Status().Incarnation:
		return nil, pin.LostWith(says.Member)
	}
	return nil, errEnded("")
}

func errEnded(why PinEnd) error {
	if why == "" {
		return pin.Refuse(pin.Ended, "what the pin is of has ended here, by its caller or by a time limit: begin the work anew")
	}
	return pin.Refuse(pin.Ended, "what the pin is of has ended here (%s): begin the work anew", why)
}

// enter lets a call in.
func (e *pinned) enter(call *pinCall) error {
	if no := e.table.Check(e.grant, e.of.m.cfg.clock); no != nil {
		if no.Verdict == held.Unconfirmed {
			return errorOf(no, &Request{}, false)
		}
		e.end(PinLost)
		return pin.LostWith(rooted.MemberID(e.of.m.cfg.ID))
	}
	if why := e.due(e.of.m.cfg.clock.Now()); why != "" {
		e.end(why)
	}
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	if e.why != "" {
		return errEnded(e.why)
	}
	if len(e.calls) >= MaxPinCalls {
		return pin.Refuse(pin.Busy, "%d calls of the pin run already: wait for one of them", len(e.calls))
	}
	e.calls[call] = struct{}{}
	return nil
}

// leave ends a call.
func (e *pinned) leave(call *pinCall) {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	delete(e.calls, call)
	e.used = e.of.m.cfg.clock.Now()
	if e.why != "" && len(e.calls) == 0 {
		close(e.quiet)
	}
}

// due is why a pin is to end at a time; "": it is not.
func (e *pinned) due(now clock.Instant) PinEnd {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	switch {
	case e.told:
	case now >= e.oldAt:
		return PinOld
	case e.leaveBy != 0 && now >= e.leaveBy:
		return PinRegionLeaves
	case len(e.calls) == 0 && now >= e.used.Add(e.idle):
		return PinIdle
	}
	return ""
}

// next is when due may say something.
func (e *pinned) next() clock.Instant {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	at := e.oldAt
	if e.told {
		return e.of.m.cfg.clock.Now().Add(time.Hour)
	}
	if e.leaveBy != 0 {
		at = min(at, e.leaveBy)
	}
	if len(e.calls) == 0 {
		return min(at, e.used.Add(e.idle))
	}
	// Behind a call that ends meanwhile it is idle as long again.
	return min(at, e.of.m.cfg.clock.Now().Add(e.idle))
}

// end ends a pin, if it has not ended: then it says why. Its calls are told, but those of a pin that
// its caller ended only when it would have ended by itself.
func (e *pinned) end(why PinEnd) (before PinEnd) {
	p := e.of
	p.mu.Lock()
	defer p.mu.Unlock()
	if before = e.why; before == "" {
		e.why = why
		p.ended[why]++
		delete(p.at, e.nonce)
		if len(e.calls) == 0 {
			close(e.quiet)
		}
	}
	if why != PinEnded && !e.told {
		e.told = true
		cause := errEnded(why)
		for c := range e.calls {
			c.cancel(cause)
		}
	}
	return before
}

// live waits for the end of a pin, and cleans up behind it.
func (e *pinned) live() {
	m := e.of.m
	leaving, channel := e.grant.Leaving(), e.channel
	var left <-chan struct{} // what told that the region is to leave
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for alive := true; alive; {
		now := m.cfg.clock.Now()
		why := e.due(now)
		if why == PinRegionLeaves && e.stays(left) {
			leaving = e.grant.Leaving()
			continue
		}
		if why != "" {
			_ = e.end(why)
		}
		timer.Reset(e.next().Sub(now))
		select {
		case <-e.quiet:
			alive = false
		case <-leaving:
			left, leaving = leaving, nil
			e.leaves()
		case <-channel:
			channel = nil
			e.end(PinChannelClosed)
		case <-timer.C:
		}
	}
	e.cleanup()
	m.leave(e.table, e.grant)
	e.of.mu.Lock()
	delete(e.of.ids, e.ID)
	e.of.begun, e.of.bytes = e.of.begun-1, e.of.bytes-e.bytes
	e.of.mu.Unlock()
	m.kick()
}

// leaves begins the grace of a pin whose region leaves; one that is lost ends at once.
func (e *pinned) leaves() {
	if no := e.table.Check(e.grant, e.of.m.cfg.clock); no != nil && no.Verdict != held.Unconfirmed {
		e.end(PinLost)
		return
	}
	e.of.mu.Lock()
	e.leaveBy = e.of.m.cfg.clock.Now().Add(e.of.cfg.Grace)
	e.of.mu.Unlock()
}

// stays says that a region does not leave any more as it was told: the move was given up. Another
// one may have begun, which is told anew.
func (e *pinned) stays(left <-chan struct{}) bool {
	if e.grant.Leaving() == left {
		return false
	}
	e.of.mu.Lock()
	e.leaveBy = 0
	e.of.mu.Unlock()
	return true
}

// cleanup has the application end what the pin stands for.
func (e *pinned) cleanup() {
	m, p := e.of.m, e.of
	if p.cfg.Cleanup == nil || m.cfg.Killed != nil && m.cfg.Killed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.HandlerTimeout)
	defer cancel()
	late := time.AfterFunc(m.cfg.HandlerTimeout, func() {
		m.log.Warn("the cleanup of a pin does not return", "region", e.Region.ID, "after", m.cfg.HandlerTimeout)
	})
	defer late.Stop()
	defer func() {
		if broke := recover(); broke != nil {
			m.log.Error("the cleanup of a pin panicked", "region", e.Region.ID, "panic", broke, "stack", string(debug.Stack()))
		}
	}()
	p.cfg.Cleanup(ctx, e.Pin, e.why)
}
