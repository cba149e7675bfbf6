package pin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	"github.com/nokv/nokv/pin"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// world is a cluster in memory and virtual time with members m1 and m2, what they cleaned
// up, and a router.
type world struct {
	*nokvtest.Cluster
	t       *testing.T
	router  *router.Router
	members map[string]*nokvtest.Member

	mu    sync.Mutex
	ended []string
	calls []string // of the handlers
}

type handler struct {
	w  *world
	id string
}

func (h handler) note(what string, r member.Region) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.calls = append(h.w.calls, h.id+" "+what+" "+r.Start)
}

func (h handler) Acquire(_ context.Context, r member.Region) error {
	h.note("acquire", r)
	return nil
}

func (h handler) Release(_ context.Context, r member.Region) ([]byte, error) {
	h.note("release", r)
	return nil, nil
}

func inWorld(t *testing.T, test func(*testing.T, *world), set ...nokvtest.Option) {
	synctest.Test(t, func(t *testing.T) {
		set = append(set, nokvtest.Keyspace("games", "games"), nokvtest.Keyspace("tenants", "tenants"))
		w := &world{t: t, members: map[string]*nokvtest.Member{}}
		w.Cluster = nokvtest.Start(t, set...)
		if _, err := w.Client().RotatePins(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.start("m1", member.PinsConfig{Idle: 10 * time.Minute})
		w.start("m2", member.PinsConfig{})
		var err error
		if w.router, err = router.New(router.Config{Client: w.Client(), Keyspaces: []string{"games", "tenants"}}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.router.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		if err := w.router.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		test(t, w)
	})
}

func (w *world) start(id string, cfg member.PinsConfig) {
	cfg.Cleanup = func(_ context.Context, p member.Pin, why member.PinEnd) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = append(w.ended, fmt.Sprintf("%s %s %s", id, p.ID, why))
		w.calls = append(w.calls, id+" cleanup "+p.Region.Start)
	}
	w.members[id] = w.MemberOf(w.t, member.Config{ID: id, Pins: cfg}, handler{w, id})
}

// own gives a key to a member, and waits until that serves it.
func (w *world) own(keyspace, key, id string) {
	w.t.Helper()
	w.Assign(w.t, keyspace, []byte(key), rooted.MemberID(id))
	w.Await(w.t, key+" is served", func() bool {
		return w.members[id].Do(w.t.Context(), member.Request{Keyspace: keyspace, Key: []byte(key)}, func(context.Context, member.Region) error { return nil }) == nil
	})
}

func (w *world) begin(id, keyspace, key string, o member.PinOptions) member.Pin {
	w.t.Helper()
	p, err := w.members[id].Pins().Begin(w.t.Context(), member.Request{Keyspace: keyspace, Key: []byte(key)}, o)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// call is a request that shows a pin, through the router; it says which member ran it.
func (w *world) call(keyspace, token string) (ran string, err error) {
	err = w.router.DoPinned(w.t.Context(), token, keyspace, func(ctx context.Context, t router.Target) error {
		conn, err := w.Dial(ctx, string(t.Member)+":7001")
		if err != nil {
			return router.NotSent(err)
		}
		defer conn.Close()
		return w.members[string(t.Member)].Pins().Do(ctx, token, "", func(context.Context, member.Pin) error {
			ran = string(t.Member)
			return nil
		})
	})
	return ran, err
}

func (w *world) works(keyspace, token, at string) {
	w.t.Helper()
	if ran, err := w.call(keyspace, token); err != nil || ran != at {
		w.t.Errorf("ran at %q, %v; want %s", ran, err, at)
	}
}

// lost says that a call is told, in no more than a time, that its pin is.
func (w *world) lost(keyspace, token string, within time.Duration) {
	w.t.Helper()
	begun := time.Now()
	_, err := w.call(keyspace, token)
	no := router.RefusalOf(err)
	if took := time.Since(begun); no == nil || no.Kind != router.PinLost || took > within {
		w.t.Errorf("%v after %v, want pin_lost", err, took)
	}
}

func (w *world) cleaned(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.ended, want) {
		w.t.Errorf("cleaned up: %q, want %q", w.ended, want)
	}
}

// A session: begin, calls, end. Of a region with one owner, and of one with two, where each
// call comes to the process that began it.
func TestP23P24P25P26ASessionStaysAtItsProcess(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.own("games", "g1", "m1")
		p := w.begin("m1", "games", "g1", member.PinOptions{Metadata: "BEGIN"})
		for range 3 {
			w.works("games", p.Token, "m1")
		}
		err := w.members["m1"].Pins().Do(t.Context(), p.Token, "", func(_ context.Context, in member.Pin) error {
			if in.Metadata != "BEGIN" || in.ID != p.ID || in.Token != "" || in.Region.Start != "g1" {
				t.Errorf("the call is told %+v", in)
			}
			return errors.New("no such row")
		})
		if err == nil || err.Error() != "no such row" {
			t.Errorf("an error of the call: %v", err)
		}
		if err := w.members["m2"].Pins().Touch(p.Token); kind(err) != pin.Lost && kind(err) != pin.OtherMember {
			t.Errorf("another member took it: %v", err)
		}
		if err := w.members["m1"].Pins().End(p.Token); err != nil {
			t.Error(err)
		}
		w.cleaned("m1 " + p.ID + " ended")
		w.lost("games", p.Token, 0)
		if err := w.members["m1"].Pins().End(p.Token); kind(err) != pin.Ended {
			t.Errorf("ended twice: %v", err)
		}

		w.own("tenants", "t1", "m1")
		q := w.begin("m1", "tenants", "t1", member.PinOptions{})
		w.works("tenants", q.Token, "m1")
		if _, err := w.call("games", q.Token); !errors.Is(err, client.ErrNotFound) || kind(err) != pin.OtherKeyspace {
			t.Errorf("in another keyspace: %v", err)
		}
	})
}

// Lock invariants 2 and 3 (P-28, P-29), P-33: the root and coordinators hold nothing of pins:
// they are not changed by one, and each that comes anew resolves it; the work ends with its
// process, and its pin with it, also for the next process of that name.
func TestP28P29P33LockInvariants2And3CoordinatorsHoldNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.own("games", "g1", "m1")
		w.own("games", "g2", "m2")
		before, err := w.Client().Witness(t.Context(), client.Strong())
		if err != nil {
			t.Fatal(err)
		}
		p, q := w.begin("m1", "games", "g1", member.PinOptions{}), w.begin("m2", "games", "g2", member.PinOptions{})
		w.works("games", p.Token, "m1")
		after, err := w.Client().Witness(t.Context(), client.Strong())
		if err != nil || after.GetDisclosure().GetServedRootToken().GetIndex() != before.GetDisclosure().GetServedRootToken().GetIndex() {
			t.Errorf("a pin changed the root: %v, %v to %v", err, before.GetDisclosure().GetServedRootToken(), after.GetDisclosure().GetServedRootToken())
		}
		for _, id := range []string{"c1", "c2"} {
			w.RestartCoordinator(t, id)
			w.works("games", p.Token, "m1")
			r, err := w.Client().ResolvePin(t.Context(), "games", p.Token)
			if err != nil || r.GetOwner().GetMemberId() != "m1" || r.GetRegionId() != uint64(p.Region.ID) {
				t.Errorf("resolved: %v, %v", r, err)
			}
		}
		w.members["m1"].Kill(t)
		w.lost("games", p.Token, 2*time.Second) // those that are new have not heard of all members yet
		if _, err := w.Client().ResolvePin(t.Context(), "games", p.Token, client.Strong()); !errors.Is(err, client.ErrPinLost) {
			t.Errorf("resolved: %v", err)
		}
		w.start("m1", member.PinsConfig{})
		w.lost("games", p.Token, time.Second)
		if err := w.members["m1"].Pins().Touch(p.Token); kind(err) != pin.Lost {
			t.Errorf("the next process took it: %v", err)
		}
		w.works("games", q.Token, "m2")
	}, nokvtest.Coordinators(2))
}

// P-31, P-39: the call behind the death of a process is told so, and the pins of other
// processes and regions are as they were; the next owner of the region has none of it.
func TestP31P39AKilledMemberLosesItsPinsWithinOneCall(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.own("games", "g1", "m1")
		w.own("games", "g2", "m2")
		p, q := w.begin("m1", "games", "g1", member.PinOptions{}), w.begin("m2", "games", "g2", member.PinOptions{})
		w.members["m1"].Kill(t)
		w.lost("games", p.Token, time.Second)
		w.lost("games", p.Token, 0) // known by now: nobody is asked
		w.works("games", q.Token, "m2")
		w.AwaitOwner(t, "games", []byte("g1"), "m2")
		w.lost("games", p.Token, 0)
		if err := w.members["m2"].Pins().Touch(p.Token); kind(err) != pin.OtherMember {
			t.Errorf("the next owner took it: %v", err)
		}
		w.cleaned() // of a process that is gone, nothing
	})
}

// Lock invariant 4 (P-30): the owner ends what its callers do not: by time without calls, by
// time in all, when the channel closes, and when the region leaves or the process ends.
func TestP30LockInvariant4TheOwnerEndsPins(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.own("games", "g1", "m1")
		pins := w.members["m1"].Pins()
		idle := w.begin("m1", "games", "g1", member.PinOptions{ID: "idle", Idle: 10 * time.Second})
		for range 3 {
			time.Sleep(9 * time.Second)
			w.works("games", idle.Token, "m1")
		}
		long := w.begin("m1", "games", "g1", member.PinOptions{ID: "long", Idle: 10 * time.Second})
		done := make(chan error, 1)
		go func() {
			done <- pins.Do(t.Context(), long.Token, "", func(ctx context.Context, _ member.Pin) error {
				time.Sleep(30 * time.Second) // no call is idle
				return ctx.Err()
			})
		}()
		time.Sleep(10*time.Second + time.Millisecond)
		w.cleaned("m1 idle idle")
		w.lost("games", idle.Token, 0)
		if err := <-done; err != nil {
			t.Errorf("a long call: %v", err)
		}
		w.works("games", long.Token, "m1")
		time.Sleep(11 * time.Second)
		w.cleaned("m1 idle idle", "m1 long idle")

		w.ended = nil
		old := w.begin("m1", "games", "g1", member.PinOptions{ID: "old", Life: time.Minute})
		go func() {
			done <- pins.Do(t.Context(), old.Token, "", func(ctx context.Context, _ member.Pin) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		begun := time.Now()
		if err := <-done; kind(err) != pin.Ended || time.Since(begun) != time.Minute {
			t.Errorf("its calls are told: %v after %v", err, time.Since(begun))
		}
		w.cleaned("m1 old old")

		w.ended = nil
		channel := make(chan struct{})
		w.begin("m1", "games", "g1", member.PinOptions{ID: "channel", Channel: channel})
		close(channel)
		w.cleaned("m1 channel channel_closed")
	})
}

// The grace of a pin begins when its region is to leave, however long nothing came to it before;
// and anew when a move was given up and another one begins.
func TestP30TheGraceIsWhole(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start("m3", member.PinsConfig{Grace: 2 * time.Second})
		w.own("games", "g1", "m3")
		p := w.begin("m3", "games", "g1", member.PinOptions{ID: "p"})
		time.Sleep(30 * time.Second)
		moved := make(chan struct{})
		go func() {
			defer close(moved)
			w.Assign(t, "games", []byte("g1"), "m1")
		}()
		time.Sleep(time.Second)
		w.works("games", p.Token, "m3")
		// Given up, and begun again before the first grace is over.
		cancel := &rootv1.TransitionCancelled{TransitionId: rooted.TransitionID(rootv1.TransitionKind_TRANSITION_KIND_MOVE, p.Region.ID, p.Region.Epoch)}
		if _, err := w.Client().PublishEvent(t.Context(), &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: cancel}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		w.works("games", p.Token, "m3")
		<-moved
		w.cleaned("m3 p region_leaves")
	})
}

// A move whose deadline is short cuts the grace of what requests are left of its region, but none of
// pins.
func TestP30TheGraceIsWholeWhateverTheDeadline(t *testing.T) {
	brief := nokvtest.Keyspace("brief", "games", &rootv1.KeyspaceSettings{Moves: &rootv1.Moves{DeadlineMillis: 12_000}})
	inWorld(t, func(t *testing.T, w *world) {
		w.start("m3", member.PinsConfig{Grace: 5 * time.Second})
		w.own("brief", "g1", "m3")
		p := w.begin("m3", "brief", "g1", member.PinOptions{ID: "p"})
		moved := make(chan struct{})
		go func() {
			defer close(moved)
			w.Assign(t, "brief", []byte("g1"), "m1")
		}()
		time.Sleep(4500 * time.Millisecond)
		if err := w.members["m3"].Pins().Do(t.Context(), p.Token, "", func(context.Context, member.Pin) error { return nil }); err != nil {
			t.Error(err)
		}
		<-moved
		w.cleaned("m3 p region_leaves")
	}, brief)
}

// What still runs of a pin that its caller has ended is told when the region leaves, or when the pin
// would have come to its end: it does not hold a move for longer than another does.
func TestP30CallsBehindTheEndAreTold(t *testing.T) {
	for _, moves := range []bool{true, false} {
		inWorld(t, func(t *testing.T, w *world) {
			w.start("m3", member.PinsConfig{Grace: 2 * time.Second, Life: time.Minute})
			w.own("games", "g1", "m3")
			p := w.begin("m3", "games", "g1", member.PinOptions{ID: "p"})
			begun, told := time.Now(), make(chan time.Duration, 1)
			go func() {
				_ = w.members["m3"].Pins().Do(context.Background(), p.Token, "", func(ctx context.Context, _ member.Pin) error {
					select {
					case <-ctx.Done():
					case <-time.After(time.Hour):
					}
					told <- time.Since(begun)
					return nil
				})
			}()
			synctest.Wait()
			if err := w.members["m3"].Pins().End(p.Token); err != nil {
				t.Fatal(err)
			}
			within := time.Minute
			var moving sync.WaitGroup
			if moves {
				moving.Go(func() { w.Assign(t, "games", []byte("g1"), "m1") })
				within = 4 * time.Second
			}
			if took := <-told; took > within {
				t.Errorf("moves %t: it was told after %v", moves, took)
			}
			w.cleaned("m3 p ended")
			moving.Wait()
			w.Assign(t, "games", []byte("g1"), "m1")
		})
	}
}

// A pin holds the release of its region for the grace and no longer; one that comes to its
// end before holds it as long. What it stands for is ended before the region is let go.
func TestP30APinHoldsAMoveForTheGrace(t *testing.T) {
	for _, orderly := range []bool{true, false} {
		inWorld(t, func(t *testing.T, w *world) {
			w.start("m3", member.PinsConfig{Grace: 2 * time.Second})
			w.own("games", "g1", "m3")
			p := w.begin("m3", "games", "g1", member.PinOptions{ID: "p"})
			begun := time.Now()
			moved := make(chan struct{})
			go func() {
				defer close(moved)
				w.Assign(t, "games", []byte("g1"), "m1")
			}()
			time.Sleep(500 * time.Millisecond)
			w.works("games", p.Token, "m3") // it comes to its end
			if _, err := w.members["m3"].Pins().Begin(t.Context(), member.Request{Keyspace: "games", Key: []byte("g1")}, member.PinOptions{}); err == nil {
				t.Error("a new one was begun in a region that leaves")
			}
			want := "m3 p region_leaves"
			if orderly {
				if err := w.members["m3"].Pins().End(p.Token); err != nil {
					t.Error(err)
				}
				want = "m3 p ended"
			}
			<-moved
			took := time.Since(begun)
			if min := 2 * time.Second; orderly && took > 2*time.Second || !orderly && (took < min || took > min+time.Second) {
				t.Errorf("orderly %t: the move took %v", orderly, took)
			}
			w.cleaned(want)
			w.lost("games", p.Token, 0)
			if i, j := slices.Index(w.calls, "m3 cleanup g1"), slices.Index(w.calls, "m3 release g1"); i < 0 || j < i {
				t.Errorf("%q", w.calls)
			}
		})
	}
}

// The end of a process that is orderly ends its pins, each once.
func TestP30PinsEndWithTheProcess(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.own("games", "g1", "m1")
		w.begin("m1", "games", "g1", member.PinOptions{ID: "p"})
		w.members["m1"].Stop(t)
		w.cleaned("m1 p region_leaves")
		if n := w.members["m1"].Pins().Status(); n.Open != 0 || n.Bytes != 0 {
			t.Errorf("left: %+v", n)
		}
	})
}

// P-32: the end of a call reaches it by its request id, for who shows the pin.
func TestP32CancelByRequestID(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.own("games", "g1", "m1")
		pins := w.members["m1"].Pins()
		p, q := w.begin("m1", "games", "g1", member.PinOptions{}), w.begin("m1", "games", "g1", member.PinOptions{})
		done := make(chan error, 1)
		go func() {
			done <- pins.Do(t.Context(), p.Token, "r1", func(ctx context.Context, _ member.Pin) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		for _, c := range []struct {
			token, id string
			want      bool
		}{{p.Token, "r2", false}, {p.Token, "", false}, {q.Token, "r1", false}, {p.Token, "r1", true}} {
			if found, err := pins.Cancel(c.token, c.id); err != nil || found != c.want {
				t.Errorf("cancel %q: %t, %v", c.id, found, err)
			}
		}
		if err := <-done; !errors.Is(err, member.ErrCanceled) {
			t.Error(err)
		}
		if found, err := pins.Cancel(p.Token, "r1"); found || err != nil {
			t.Errorf("behind its end: %t, %v", found, err)
		}
		w.works("games", p.Token, "m1") // the pin lives on
	})
}

// Keys are rotated under load, more often than the root keeps them: no call of a pin fails.
func TestKeysAreRotatedUnderLoad(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.own("games", "g1", "m1")
		old := w.begin("m1", "games", "g1", member.PinOptions{Life: 10 * time.Minute, Idle: 10 * time.Minute})
		w.works("games", old.Token, "m1")
		for round := range 4 {
			id, err := w.Client().RotatePins(t.Context())
			if err != nil || id != uint32(round)+2 {
				t.Fatalf("key %d, %v", id, err)
			}
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					p, err := w.members["m1"].Pins().Begin(t.Context(), member.Request{Keyspace: "games", Key: []byte("g1")}, member.PinOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					w.works("games", p.Token, "m1")
				})
			}
			all.Wait()
			time.Sleep(2 * time.Minute) // members look for the next key each five minutes
			if round < 3 {
				w.works("games", old.Token, "m1")
			}
		}
		p := w.begin("m1", "games", "g1", member.PinOptions{})
		if h, err := pin.Peek(p.Token); err != nil || h.Key < 4 {
			t.Errorf("sealed by key %d, %v: the newest is 5", h.Key, err)
		}
	})
}

// What is pinned is bounded, and names are the application's own.
func TestP23PinsAreBounded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start("m3", member.PinsConfig{Max: 3, MaxBytes: 100})
		w.own("games", "g1", "m3")
		pins, req := w.members["m3"].Pins(), member.Request{Keyspace: "games", Key: []byte("g1")}
		p, err := pins.Register(t.Context(), req, "tx-1", time.Minute, "meta")
		if err != nil || p.ID != "tx-1" || p.Metadata != "meta" {
			t.Fatalf("%+v, %v", p, err)
		}
		if _, err := pins.Register(t.Context(), req, "tx-1", time.Minute, ""); kind(err) != pin.Busy {
			t.Errorf("an id twice: %v", err)
		}
		if _, err := pins.Begin(t.Context(), req, member.PinOptions{Metadata: string(make([]byte, 100))}); kind(err) != pin.Busy {
			t.Errorf("too many bytes: %v", err)
		}
		for _, o := range []member.PinOptions{{Metadata: string(make([]byte, member.MaxPinMetadataBytes+1))}, {ID: string(make([]byte, member.MaxPinIDBytes+1))}, {Life: -1}} {
			if _, err := pins.Begin(t.Context(), req, o); err == nil || kind(err) == pin.Busy {
				t.Errorf("%.20v: %v", o, err)
			}
		}
		for range 2 {
			w.begin("m3", "games", "g1", member.PinOptions{ID: ""})
		}
		if _, err := pins.Begin(t.Context(), req, member.PinOptions{}); kind(err) != pin.Busy {
			t.Errorf("too many: %v", err)
		}
		if err := pins.End(p.Token); err != nil {
			t.Error(err)
		}
		w.cleaned("m3 tx-1 ended")
		w.begin("m3", "games", "g1", member.PinOptions{ID: "tx-1"})
		if s := pins.Status(); s.Open != 3 || s.Ended[member.PinEnded] != 1 {
			t.Errorf("%+v", s)
		}
	})
}
