package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// Readers that pause, hang up and resume inside batches of several parts, while the
// view takes leaps, alone and in a crowd: at every position that a reader comes to
// its copy is the log's, and every batch that is begun is ended, or its stream is.
func TestReadersInsideFrames(t *testing.T) {
	total := framesRun{}
	for seed := range uint64(framesSeeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &framesRun{t: t, rand: rand.New(rand.NewPCG(seed, 3)), crowd: seed == 0}
				r.run()
				total.paused += r.paused
				total.snapshots += r.snapshots
				total.cut += r.cut
			})
		})
		if t.Failed() {
			return
		}
	}
	if total.paused == 0 || total.snapshots == 0 || total.cut == 0 {
		t.Errorf("%d pauses inside a batch, %d snapshots that replaced a copy, %d batches that broke off with their stream: want some of each",
			total.paused, total.snapshots, total.cut)
	}
}

// framesSeeds is how many seeds TestReadersInsideFrames runs, the first one in a crowd.
const framesSeeds = 12

// framesRun is one seed.
type framesRun struct {
	t       *testing.T
	rand    *rand.Rand
	crowd   bool
	w       *world
	conn    *grpc.ClientConn
	states  []*state.State // behind each entry of the log
	epochs  [frameRegions]uint64
	small   uint64 // small changes of region 1 so far
	readers []*frameReader

	paused, snapshots, cut int
}

// frameRegions of about 6 KB each change.
const frameRegions = 100

// framesRetained is how many changes are kept for who follows them: of a few entries.
const framesRetained = 300

func (r *framesRun) run() {
	r.w = &world{root: newMemoryRoot(r.t), authority: &counter{}, listener: bufconn.Listen(1 << 20), retained: framesRetained}
	r.w.run(r.t, nil)
	defer r.w.end(r.t)
	// A window that does not grow: who pauses has a part of a batch.
	r.conn = r.w.dial(r.t, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(1<<20))
	defer r.conn.Close()
	r.w.must(r.t, join("m1"), created("large"))
	r.change(frameRegions)
	ctx, end := context.WithTimeout(r.t.Context(), time.Hour)
	defer end()
	if r.crowd {
		for range 260 {
			go drainWatch(ctx, r.conn)
		}
	}
	for range 4 {
		one := &frameReader{run: r, ctx: ctx}
		r.readers = append(r.readers, one)
		one.until(r.w.root.token())
	}
	steps := 40
	if r.crowd {
		steps = 12
	}
	for range steps {
		if r.t.Failed() {
			return
		}
		one := r.readers[r.rand.IntN(len(r.readers))]
		switch r.rand.IntN(10) {
		case 0:
			r.leap()
		case 1:
			one.hangUp()
		case 2, 3, 4, 5:
			r.change(1 + r.rand.IntN(frameRegions))
		default:
			one.take(1 + r.rand.IntN(5))
		}
		time.Sleep(time.Duration(r.rand.IntN(300)) * time.Millisecond)
	}
	for _, one := range r.readers {
		one.until(r.w.root.token())
		one.hangUp()
	}
}

// change has n large regions change in one entry.
func (r *framesRun) change(n int) {
	r.t.Helper()
	keyspace := r.w.root.state.KeyspaceByName("large").GetId()
	var commands []*rootv1.Command
	for _, i := range r.rand.Perm(frameRegions)[:n] {
		r.epochs[i]++
		key := fmt.Sprintf("%03d%s", i, strings.Repeat("k", 3000))
		e := publish(uint64(1000+i), keyspace, key, key+"~", r.epochs[i])
		commands = append(commands, &rootv1.Command{Events: []*rootv1.Event{e}})
	}
	r.propose(commands)
}

func (r *framesRun) propose(commands []*rootv1.Command) {
	r.t.Helper()
	results, err := r.w.root.Propose(r.t.Context(), commands...)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, one := range results {
		if one.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			r.t.Fatal(one)
		}
	}
}

// leap brings the view at once more than is kept for who follows changes.
func (r *framesRun) leap() {
	for range 3 { // one that frames may be made of, one that is dropped, and one that is kept
		small := make([]*rootv1.Command, framesRetained+1)
		for i := range small {
			r.small++
			small[i] = &rootv1.Command{Events: []*rootv1.Event{publish(1, 1, "", "g", r.small, "m1")}}
		}
		r.propose(small)
		r.w.catchUp(r.t) // without any time for frames to be given out in
	}
}

// at is the state behind a position.
func (r *framesRun) at(token state.Token) *state.State {
	r.w.root.mu.Lock()
	defer r.w.root.mu.Unlock()
	for n := len(r.states); n < len(r.w.root.log); n++ {
		st := state.New()
		if n > 0 {
			st = r.states[n-1].Fork()
		}
		if err := st.ApplyEntry(1, uint64(n)+1, r.w.root.log[n].GetEntry(), nil); err != nil {
			r.t.Fatal(err)
		}
		r.states = append(r.states, st)
	}
	return r.states[token.Index-1]
}

// frameReader follows a watch of everything as the protocol has it, and goes on from
// its position when it is cut.
type frameReader struct {
	run    *framesRun
	ctx    context.Context
	stream coordinatorv1.Coordinator_WatchRegionsClient // nil: none
	cancel context.CancelFunc
	copy   map[uint64]*rootv1.Region
	token  state.Token
	batch  []*coordinatorv1.WatchRegionsResponse // parts so far
}

func (o *frameReader) hangUp() {
	if o.stream != nil {
		o.cancel()
		o.stream = nil
	}
	if len(o.batch) > 0 {
		o.run.cut++
	}
	o.batch = nil
}

func (o *frameReader) until(at state.Token) {
	for o.token.Compare(at) < 0 && !o.run.t.Failed() {
		o.take(1)
	}
}

// take takes so many messages.
func (o *frameReader) take(n int) {
	t := o.run.t
	t.Helper()
	for range n {
		if o.stream == nil {
			req := &coordinatorv1.WatchRegionsRequest{}
			if o.token.Index != 0 {
				req.After = o.token.Proto()
			}
			var ctx context.Context
			var err error
			ctx, o.cancel = context.WithCancel(o.ctx)
			if o.stream, err = coordinatorv1.NewCoordinatorClient(o.run.conn).WatchRegions(ctx, req); err != nil {
				t.Fatal(err)
			}
		}
		m, err := o.stream.Recv()
		if err != nil {
			if reason.Of(err) != rootv1.Reason_REASON_OVERLOADED {
				t.Fatal(err)
			}
			o.hangUp()
			continue
		}
		o.apply(m)
	}
	if len(o.batch) > 0 {
		o.run.paused++
	}
}

func (o *frameReader) apply(m *coordinatorv1.WatchRegionsResponse) {
	t := o.run.t
	t.Helper()
	if len(o.batch) > 0 && o.batch[0].GetSnapshot() != m.GetSnapshot() {
		t.Errorf("a batch broke off behind %d parts, at %s", len(o.batch), o.token)
	}
	o.batch = append(o.batch, m)
	to := state.TokenFromProto(m.GetToken())
	if m.GetPartial() {
		if to != o.token {
			t.Errorf("a part of a batch moved the position from %s to %s", o.token, to)
		}
		return
	}
	if m.GetSnapshot() {
		if o.copy != nil {
			o.run.snapshots++
		}
		o.copy = map[uint64]*rootv1.Region{}
	}
	for _, part := range o.batch {
		for _, c := range part.GetChanges() {
			o.copy[c.GetRegion().GetId()] = c.GetRegion()
		}
	}
	o.batch = nil
	if to.Compare(o.token) < 0 {
		t.Errorf("the position went back from %s to %s", o.token, to)
	}
	o.token = to
	o.check()
}

// check compares the copy with the log at its position.
func (o *frameReader) check() {
	want := 0
	st := o.run.at(o.token)
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
			want++
			if got := o.copy[uint64(r.ID)]; got.GetRevision() != r.Revision || !proto.Equal(got, r.Proto()) {
				o.run.t.Errorf("at %s region %d is at revision %d, want %d", o.token, r.ID, got.GetRevision(), r.Revision)
			}
			return !o.run.t.Failed()
		})
		return !o.run.t.Failed()
	})
	if len(o.copy) != want && !o.run.t.Failed() {
		o.run.t.Errorf("at %s there are %d regions, want %d", o.token, len(o.copy), want)
	}
}

// drainWatch reads a watch and looks at nothing.
func drainWatch(ctx context.Context, conn *grpc.ClientConn) {
	stream, err := coordinatorv1.NewCoordinatorClient(conn).WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{}, grpc.ForceCodecV2(unread{encoding.GetCodecV2("proto")}))
	for err == nil {
		_, err = stream.Recv()
	}
}

// unread is a codec of messages that nobody looks at.
type unread struct{ encoding.CodecV2 }

func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }
