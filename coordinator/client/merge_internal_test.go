package client

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A batch goes when the one before has ended, whether the callers of that one
// woke or gave up, and never earlier.
func TestSlotIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var launched []*batch
		m := newMerger(1<<20, 1, func(b *batch) { launched = append(launched, b) })
		var wg sync.WaitGroup
		ask := func(ctx context.Context, callers int) {
			for range callers {
				wg.Go(func() { _, _, _ = m.take(ctx, 1) })
			}
			time.Sleep(2 * lateAfter) // everybody heeds its context by now
		}
		want := func(batches, callers int) {
			t.Helper()
			synctest.Wait()
			if len(launched) != batches || launched[batches-1].callers != uint64(callers) {
				t.Fatalf("%d batches launched, the last with %d callers; want %d, %d",
					len(launched), launched[len(launched)-1].callers, batches, callers)
			}
		}
		short, cancel := context.WithCancel(t.Context())
		ask(t.Context(), 1)
		ask(short, 40)
		want(1, 1)
		m.finish(launched[0], 1, 1, nil)
		want(2, 40)
		ask(t.Context(), 30)
		cancel() // everybody leaves the batch under way
		want(2, 40)
		m.finish(launched[1], 1, 1, nil)
		want(3, 30)
		m.finish(launched[2], 1, 1, nil)
		wg.Wait()
		if n := m.busy.Load(); n != 0 {
			t.Errorf("%d slots are taken and nothing is under way", n)
		}
	})
}

// Who comes to a batch that was sealed in between is not counted in it.
func TestASealedBatchCountsNobody(t *testing.T) {
	m := newMerger(1<<20, 1, func(*batch) {})
	sealed := m.open.Load()
	m.join(3)
	sealed.state.Or(sealedBit)
	before := sealed.state.Load()
	var joined *batch
	var late sync.WaitGroup
	late.Go(func() { joined, _, _ = m.join(5) })
	for range 1000 {
		runtime.Gosched()
	}
	next := newBatch()
	m.open.Store(next)
	late.Wait()
	if joined != next || sealed.state.Load() != before {
		t.Errorf("joined the sealed batch, or counted in it: state %x, before %x", sealed.state.Load(), before)
	}
}

// On a busy machine the first that is heard of a silence may be that it has lasted.
func TestASilenceThatIsHeardOfLate(t *testing.T) {
	c, err := New(Config{Endpoints: []string{"127.0.0.1:1", "127.0.0.1:2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	asked := make(chan string, 1)
	c.routes.alone = func(_ context.Context, e *endpoint, _ *keysRequest) ([]*keysReply, error) {
		asked <- e.address
		return []*keysReply{{}}, nil
	}
	answered := make(chan error, 1)
	c.routes.queue = append(c.routes.queue, &request[keysRequest, keysReply]{
		msg: &keysRequest{}, finish: func(_ *keysReply, err error) { answered <- err },
	})
	h := &streamHedge[keysRequest, keysReply]{p: c.routes, at: (*c.ends.list.Load())[0]}
	h.heed(t.Context(), func(error) {}, 3*c.hedgeDelay())
	if at := <-asked; at != "127.0.0.1:2" {
		t.Errorf("asked %s", at)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// A caller who is answered finds the coordinator favoured that answered: its next call is not sent elsewhere first.
func TestAnswersAreGivenBehindTheFavour(t *testing.T) {
	var order []string
	p := &pipe[runRequest, runReply]{match: first[runRequest, runReply], judge: func(*endpoint, *request[runRequest, runReply], *runReply) error { return nil }}
	p.queue, p.sent = []*request[runRequest, runReply]{{finish: func(*runReply, error) { order = append(order, "answer") }}}, 1
	if err := p.answer(&endpoint{}, &runReply{}, func() { order = append(order, "favour") }); err != nil || !slices.Equal(order, []string{"favour", "answer"}) {
		t.Errorf("%v, %v", order, err)
	}
}
