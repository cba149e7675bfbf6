package server_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// replay applies a tail until the state is at index.
func replay(t *testing.T, stream grpc.ServerStreamingClient[rootv1.TailResponse], st *state.State, index uint64) {
	t.Helper()
	for st.Token().Index < index {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatalf("Recv at %v: %v", st.Token(), err)
		}
		if msg.ClusterId != cluster || msg.Incarnation != 1 || msg.LeaderId != 1 || msg.LeaderlessMillis != 0 {
			t.Errorf("message says %v", msg)
		}
		for _, e := range msg.Entries {
			if e.Index > msg.CommitIndex {
				t.Errorf("entry %d before its commit index %d", e.Index, msg.CommitIndex)
			}
			if err := st.ApplyEntry(e.Term, e.Index, e.Entry, nil); err != nil {
				t.Fatalf("gap or damage at %v: %v", st.Token(), err)
			}
		}
	}
}

func TestTailIsTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		for n := range 300 {
			r.apply([]*rootv1.Command{joined(fmt.Sprintf("m%d", n), n*40)})
		}
		s := serve(t, r, func(c *server.Config) { c.TailBatchBytes = 20_000 })
		ctx, cancel := within(time.Minute)
		defer cancel()
		stream, err := s.root().Tail(ctx, &rootv1.TailRequest{ReaderId: "c1"})
		if err != nil {
			t.Fatal(err)
		}
		st := state.New()
		replay(t, stream, st, 301)
		r.apply([]*rootv1.Command{joined("late", 10)})
		replay(t, stream, st, 302)
		if got, want := st.Hash(), r.View().State.Hash(); got != want {
			t.Errorf("hash after the tail %x, want %x", got, want)
		}
		if got := s.Readers(); len(got) != 1 || got[0].ID != "c1" || got[0].Index != 302 || got[0].Lag != 0 {
			t.Errorf("Readers = %+v", got)
		}
	})
}

func TestIdleTailSpeaksAndTellsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		stream, err := s.root().Tail(ctx, &rootv1.TailRequest{After: r.View().State.Token().Proto()})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 11 {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("11 messages took %v, want one at once and one every 100 ms", took)
		}
		time.Sleep(30 * time.Millisecond)
		r.lead(0)
		msg, err := stream.Recv()
		if err != nil || msg.LeaderId != 0 || msg.LeaderlessMillis == 0 || time.Since(start) > 1040*time.Millisecond {
			t.Errorf("loss of the leader was told as %v, %v after %v", msg, err, time.Since(start))
		}
		for range 5 {
			msg, _ = stream.Recv()
		}
		if msg.LeaderlessMillis < 400 || msg.LeaderlessMillis > 600 {
			t.Errorf("leaderless for %d ms, want about 500", msg.LeaderlessMillis)
		}
	})
}

func TestManyReadersShareOneEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		root := s.root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		var readers sync.WaitGroup
		for range 20 {
			stream, err := root.Tail(ctx, &rootv1.TailRequest{After: r.View().State.Token().Proto()})
			if err != nil {
				t.Fatal(err)
			}
			readers.Go(func() {
				for entries := 0; entries < 50; {
					msg, err := stream.Recv()
					if err != nil {
						t.Error(err)
						return
					}
					entries += len(msg.Entries)
				}
			})
		}
		synctest.Wait()
		r.with(func() { r.encoded = 0 })
		for n := range 50 {
			r.apply([]*rootv1.Command{joined(fmt.Sprintf("m%d", n), 100)})
			synctest.Wait()
		}
		readers.Wait()
		r.with(func() {
			if r.encoded > 60 {
				t.Errorf("50 entries for 20 readers were encoded %d times", r.encoded)
			}
		})
	})
}

func TestTailRefusesPositionsItCannotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		for n := range 9 {
			r.apply([]*rootv1.Command{joined(fmt.Sprintf("m%d", n), 100)})
		}
		r.compact(5)
		s := serve(t, r, nil)
		root := s.root()
		for _, c := range []struct {
			name    string
			after   *rootv1.RootToken
			cluster uint64
			want    rootv1.Reason
		}{
			{"from the beginning", nil, 0, rootv1.Reason_REASON_BOOTSTRAP_REQUIRED},
			{"compacted", &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 4}, 0, rootv1.Reason_REASON_BOOTSTRAP_REQUIRED},
			{"last compacted", &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 5}, 0, 0},
			{"retained", &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 8}, cluster, 0},
			{"ahead", &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 100}, 0, 0},
			{"other history", &rootv1.RootToken{Incarnation: 1, Term: 7, Index: 8}, 0, rootv1.Reason_REASON_CLUSTER_MISMATCH},
			{"before a restore", &rootv1.RootToken{Incarnation: 0, Term: 1, Index: 8}, 0, rootv1.Reason_REASON_BOOTSTRAP_REQUIRED},
			{"later incarnation", &rootv1.RootToken{Incarnation: 2, Term: 1, Index: 8}, 0, rootv1.Reason_REASON_CLUSTER_MISMATCH},
			{"other cluster", nil, 99, rootv1.Reason_REASON_CLUSTER_MISMATCH},
		} {
			ctx, cancel := within(time.Second)
			stream, err := root.Tail(ctx, &rootv1.TailRequest{After: c.after, ClusterId: c.cluster})
			if err == nil {
				_, err = stream.Recv()
			}
			if got := reason.Of(err); got != c.want || (c.want == 0 && err != nil) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			cancel()
		}
		if cut := s.Metrics().CutReaders; cut != 0 {
			t.Errorf("%d readers were cut, none had begun", cut)
		}
	})
}

// A reader ahead of a peer that lags waits, and is found out when it is not of
// this history.
func TestReaderAheadOfThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		root := s.root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		good, err := root.Tail(ctx, &rootv1.TailRequest{After: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 2}})
		if err != nil {
			t.Fatal(err)
		}
		bad, err := root.Tail(ctx, &rootv1.TailRequest{After: &rootv1.RootToken{Incarnation: 1, Term: 9, Index: 2}})
		if err != nil {
			t.Fatal(err)
		}
		for _, stream := range []grpc.ServerStreamingClient[rootv1.TailResponse]{good, bad} {
			if msg, err := stream.Recv(); err != nil || msg.CommitIndex != 1 || len(msg.Entries) != 0 {
				t.Fatalf("first message: %v, %v", msg, err)
			}
		}
		r.apply([]*rootv1.Command{joined("a", 1)})
		r.apply([]*rootv1.Command{joined("b", 1)})
		for {
			msg, err := good.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if len(msg.Entries) > 0 {
				if msg.Entries[0].Index != 3 {
					t.Errorf("first entry is %d, want 3", msg.Entries[0].Index)
				}
				break
			}
		}
		for err == nil {
			_, err = bad.Recv()
		}
		if reason.Of(err) != rootv1.Reason_REASON_CLUSTER_MISMATCH {
			t.Errorf("reader of another history: %v", err)
		}
	})
}

func TestReaderThatDoesNotReadIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		root := s.root()
		ctx, cancel := within(time.Hour)
		defer cancel()
		slow, err := root.Tail(ctx, &rootv1.TailRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 100 {
			r.apply([]*rootv1.Command{joined(fmt.Sprintf("m%d", n), 15_000)})
		}
		time.Sleep(15 * time.Second)
		if m := s.Metrics(); m.CutReaders != 1 || len(m.Readers) != 0 {
			t.Errorf("after 15 s: %+v", m)
		}
		for err == nil {
			_, err = slow.Recv()
		}
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "nothing was read") {
			t.Errorf("the reader was told %v", err)
		}
	})
}

func TestReaderBehindTheRetainedLogIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		ctx, cancel := within(time.Hour)
		defer cancel()
		stream, err := s.root().Tail(ctx, &rootv1.TailRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 200 {
			r.apply([]*rootv1.Command{joined(fmt.Sprintf("m%d", n), 15_000)})
		}
		synctest.Wait()
		r.compact(201)
		for err == nil {
			_, err = stream.Recv()
		}
		if reason.Of(err) != rootv1.Reason_REASON_BOOTSTRAP_REQUIRED || s.Metrics().CutReaders != 1 {
			t.Errorf("told %v, cut %d", err, s.Metrics().CutReaders)
		}
	})
}

func TestSnapshotGivesTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		for n := range 200 {
			r.apply([]*rootv1.Command{joined(fmt.Sprintf("m%d", n), 2000)})
		}
		s := serve(t, r, func(c *server.Config) { c.SnapshotChunkBytes = 32 << 10; c.MaxSnapshots = 1 })
		root := s.root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		stream, err := root.Snapshot(ctx, &rootv1.SnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second, err := root.Snapshot(ctx, &rootv1.SnapshotRequest{})
		if err == nil {
			_, err = second.Recv()
		}
		if reason.Of(err) != rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("second snapshot: %v", err)
		}
		before := r.View()
		r.apply([]*rootv1.Command{joined("later", 10)}) // Not part of the snapshot.
		var records []*rootv1.Record
		var last *rootv1.SnapshotChunk
		for chunks := 0; ; chunks++ {
			chunk, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, chunk.Records...)
			if chunk.Last {
				if last = chunk; chunks < 5 {
					t.Errorf("%d chunks, want several", chunks+1)
				}
				break
			}
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("after the last chunk: %v", err)
		}
		if int(last.RecordCount) != len(records) || last.StateHash != before.State.Hash() {
			t.Errorf("last chunk says %d records, hash %x", last.RecordCount, last.StateHash)
		}
		st, err := state.Restore(state.TokenFromProto(last.Token), func() (*rootv1.Record, error) {
			if len(records) == 0 {
				return nil, io.EOF
			}
			one := records[0]
			records = records[1:]
			return one, nil
		})
		if err != nil || st.Hash() != last.StateHash {
			t.Errorf("restored: %v", err)
		}
	})
}

func TestStopEndsTailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		root := s.root()
		tail, err := root.Tail(context.Background(), &rootv1.TailRequest{})
		if err != nil {
			t.Fatal(err)
		}
		propose, err := root.ProposeStream(context.Background()) // Idle: must not hold the stop up.
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		s.stop()
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("stop took %v", took)
		}
		for err == nil {
			_, err = tail.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("tail ended with %v", err)
		}
		if _, err := propose.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("propose stream ended with %v", err)
		}
	})
}

// pausingLog is a log during whose read the process stands still.
type pausingLog struct {
	*fakeReplica
	pause func()
}

func (l pausingLog) Committed(lo, hi, bytes uint64) ([]*raftpb.Entry, error) {
	l.pause()
	return l.fakeReplica.Committed(lo, hi, bytes)
}

// Entries that were made ready before a standstill and are sent behind it say of
// before it, not of now, that there is a leader.
func TestATailSaysOfWhenItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		pauses := false
		s := serve(t, r, func(c *server.Config) {
			c.Log = pausingLog{r, func() {
				if pauses { // SIGSTOP; others elect a leader and write.
					time.Sleep(10 * time.Second)
				}
			}}
		})
		ctx, cancel := within(time.Minute)
		defer cancel()
		opened := time.Now()
		stream, err := s.root().Tail(ctx, &rootv1.TailRequest{ReaderId: "c1"})
		if err != nil {
			t.Fatal(err)
		}
		replay(t, stream, state.New(), 1)
		synctest.Wait()
		pauses = true
		begun := time.Since(opened)
		r.apply([]*rootv1.Command{joined("m1", 10)})
		time.AfterFunc(time.Second, func() { r.lead(0) }) // What Replica.View says of a peer that stands still.
		for {
			msg, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if len(msg.Entries) == 0 {
				continue
			}
			if at := time.Duration(msg.SentMicros) * time.Microsecond; msg.LeaderlessMillis == 0 && at > begun+time.Millisecond {
				t.Errorf("a message says that at %v of its stream this peer has a leader: its view is of %v", at, begun)
			}
			return
		}
	})
}
