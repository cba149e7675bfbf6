package client_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func TestReadsAreMergedAndFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		var callers sync.WaitGroup
		for n := range uint64(500) {
			callers.Go(func() {
				for round := range uint64(4) {
					propose(ctx, t, c, 10+n*10+round)
					var before int
					r.with(func() { before = len(r.log) })
					token, err := c.ReadIndex(ctx)
					if err != nil || int(token.Index) < before {
						t.Errorf("ReadIndex = %v, %v: older than the call, which began at %d", token, err, before)
					}
				}
			})
		}
		callers.Wait()
		r.with(func() {
			if n := r.peers[1].reads; n > 400 {
				t.Errorf("2,000 reads took %d requests", n)
			}
		})
	})
}

// Who asks while a request is on its way waits for the next one.
func TestReadNeverJoinsARequestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		cfg := r.config()
		cfg.PipelinedReads = 1
		c := r.start(cfg)
		r.with(func() { r.delay = time.Second / 2 })
		ctx, cancel := within(time.Minute)
		defer cancel()
		var callers sync.WaitGroup
		read := func(want uint64) {
			if token, err := c.ReadIndex(ctx); err != nil || token.Index != want {
				t.Errorf("ReadIndex = %v, %v, want index %d", token, err, want)
			}
		}
		callers.Go(func() { read(0) })
		synctest.Wait() // The request has left.
		r.with(func() { r.log = append(r.log, command(1)) })
		callers.Go(func() { read(1) })
		callers.Go(func() { read(1) })
		callers.Wait()
		r.with(func() {
			if n := r.peers[1].reads; n != 2 {
				t.Errorf("%d requests, want 2", n)
			}
		})
	})
}

// Each confirmation is asked after it was wanted: none shares another's answer.
func TestEachConfirmationIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		var callers sync.WaitGroup
		for n := range 30 {
			callers.Go(func() {
				era := uint64(n % 3)
				resp, err := c.Confirm(ctx, &rootv1.ConfirmTenureRequest{Era: era, HolderId: "c1"})
				if err != nil || resp.Tenure.Era != era || resp.Tenure.HolderId != "c1" {
					t.Errorf("Confirm(%d) = %v, %v", era, resp, err)
				}
			})
		}
		callers.Wait()
		r.with(func() {
			if n := r.peers[1].confirms; n != 30 {
				t.Errorf("30 confirmations took %d requests", n)
			}
		})
	})
}

// Confirmations one after the other share a stream once the leader is known, and
// no answer: a stream that breaks, or a leader that is another by now, costs the
// request a call of its own.
func TestConfirmationsShareAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		era := uint64(0)
		confirm := func(times int) {
			t.Helper()
			for range times {
				era++
				resp, err := c.Confirm(ctx, &rootv1.ConfirmTenureRequest{Era: era, HolderId: "c1"})
				if err != nil || resp.Tenure.Era != era {
					t.Fatalf("Confirm(%d) = %v, %v", era, resp, err)
				}
			}
		}
		check := func(id uint64, streams, confirms int) {
			t.Helper()
			r.with(func() {
				if p := r.peers[id]; p.streams != streams || p.confirms != confirms {
					t.Errorf("peer %d: %d streams, %d confirmations; want %d, %d", id, p.streams, p.confirms, streams, confirms)
				}
			})
		}
		confirm(21) // The first one finds the leader.
		check(1, 1, 21)
		r.with(func() { r.leader = 2 })
		confirm(1) // The stream ends with the refusal.
		confirm(20)
		check(1, 1, 21)
		check(2, 1, 21)
		r.with(func() { r.peers[2].refuse = reason.New(rootv1.Reason_REASON_OVERLOADED, "busy") })
		if resp, err := c.Confirm(must(within(time.Second)), &rootv1.ConfirmTenureRequest{Era: 7}); err == nil {
			t.Errorf("Confirm = %v", resp)
		}
		r.with(func() { r.peers[2].refuse = nil })
		confirm(20)
		check(2, 2, 41)
	})
}

// must is a context that its own deadline ends.
func must(ctx context.Context, _ context.CancelFunc) context.Context { return ctx }

func TestLastCallerEndsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		cfg := r.config()
		cfg.AttemptTimeout = time.Hour
		cfg.PipelinedReads = 1
		c := r.start(cfg)
		r.with(func() { r.peers[1].silent = true })
		ctx, cancel := within(time.Second)
		defer cancel()
		if _, err := c.ReadIndex(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ReadIndex = %v", err)
		}
		r.with(func() { r.peers[1].silent = false })
		ctx, cancel = within(time.Second)
		defer cancel()
		if _, err := c.ReadIndex(ctx); err != nil {
			t.Errorf("ReadIndex behind an abandoned one = %v", err)
		}
	})
}

func TestClusterIsPinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		if c.ClusterID() != fakeCluster {
			t.Errorf("ClusterID = %x", c.ClusterID())
		}
		r.with(func() { r.peers[1].cluster = 7 })
		if _, err := c.ReadIndex(ctx); reason.Of(err) != rootv1.Reason_REASON_CLUSTER_MISMATCH {
			t.Errorf("ReadIndex = %v", err)
		}
		found := false
		for _, s := range c.Status(ctx) {
			found = found || (s.NodeID == 1 && reason.Of(s.Err) == rootv1.Reason_REASON_CLUSTER_MISMATCH)
		}
		if !found {
			t.Errorf("Status does not name the foreign peer: %v", c.Status(ctx))
		}
	})
}

func TestTransferMovesTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		if leader, err := c.Transfer(ctx, 3); leader != 3 || err != nil {
			t.Errorf("Transfer = %d, %v", leader, err)
		}
		propose(ctx, t, c, 1)
	})
}

// A step goes to the leader, wherever it is, and is asked for again when nobody
// knows what became of it.
func TestReplaceAsksTheLeaderUntilItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		r.lead(3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		resp, err := c.Replace(ctx, &rootv1.ReplacePeerRequest{Lost: 2, With: 4, Force: true})
		if err != nil || resp.GetStage() != rootv1.ReplaceStage_REPLACE_STAGE_DONE {
			t.Fatalf("Replace = %v, %v", resp, err)
		}
		r.with(func() {
			if got := r.peers[3].replaces; len(got) != 2 || got[1].ClusterId != fakeCluster || got[1].Lost != 2 || got[1].With != 4 || !got[1].Force {
				t.Errorf("asked for %v", got)
			}
			r.peers[3].refuse = reason.New(rootv1.Reason_REASON_ALREADY_EXISTS, "one at a time")
		})
		if _, err := c.Replace(ctx, &rootv1.ReplacePeerRequest{With: 4, Cancel: true}); reason.Of(err) != rootv1.Reason_REASON_ALREADY_EXISTS {
			t.Errorf("refused with %v", err)
		}
		r.with(func() { r.peers[3].refuse, r.leader = nil, 0 })
		short, end := within(time.Second)
		defer end()
		if _, err := c.Replace(short, &rootv1.ReplacePeerRequest{With: 4, Cancel: true}); reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a leader: %v", err)
		}
	})
}

// A peer that came later is found by what the others say.
func TestStatusOfPeersThatOthersName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 4)
		cfg := r.config()
		delete(cfg.Peers, 2)
		delete(cfg.Peers, 4)
		r.with(func() { r.peers[1].names = []uint64{1, 2, 4} })
		r.peers[2].stop()
		c := r.start(cfg)
		ctx, cancel := within(time.Minute)
		defer cancel()
		for range 2 {
			got := c.Status(ctx)
			if len(got) != 4 || got[1].NodeID != 2 || got[1].Err == nil || got[3].Err != nil || got[3].Status.GetNodeId() != 4 || got[3].Address != address(4) {
				t.Errorf("Status = %v", got)
			}
		}
	})
}

// A node id whose address is another peer's is named, with the one that answers.
func TestStatusOfAPeerUnderAnotherID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		cfg := r.config()
		cfg.Peers = map[uint64]string{1: address(1), 7: address(2)}
		c := r.start(cfg)
		ctx, cancel := within(time.Minute)
		defer cancel()
		got := c.Status(ctx)
		if len(got) != 2 || got[0].Err != nil || got[1].Err == nil || !strings.Contains(got[1].Err.Error(), "root peer 7 at "+address(2)+" answers as root peer 2") {
			t.Errorf("Status = %v", got)
		}
	})
}

func TestStatusOfPeersThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		r.peers[2].stop()
		r.with(func() { r.peers[3].silent = true })
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		got := c.Status(ctx)
		if len(got) != 3 || got[0].Err != nil || got[1].Err == nil || got[2].Err == nil || got[0].Status.NodeId != 1 {
			t.Errorf("Status = %v", got)
		}
	})
}

// followTail opens tails until one is from another peer than not.
func followTail(ctx context.Context, t *testing.T, c *client.Client, r *fakeRoot, not uint64) client.TailStream {
	t.Helper()
	for {
		var before int
		r.with(func() { before = len(r.peers[not].readers) })
		tail, err := c.Tail(ctx, state.Token{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tail.Recv(); err != nil {
			t.Fatal(err)
		}
		var after int
		r.with(func() { after = len(r.peers[not].readers) })
		if after == before {
			return tail
		}
		tail.Close()
	}
}

func TestTailGoesRoundThePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		r.with(func() { r.peers[1].tailBreaks = true; r.peers[2].leaderless = 5000 })
		cfg := r.config()
		cfg.ReaderID = "c9"
		c := r.start(cfg)
		ctx, cancel := within(time.Minute)
		defer cancel()
		// Within a few attempts only the healthy peer is left.
		for range 4 {
			if tail, err := c.Tail(ctx, state.Token{}); err == nil {
				_, _ = tail.Recv()
				tail.Close()
			}
		}
		for range 3 {
			tail, err := c.Tail(ctx, state.Token{})
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				if _, err := tail.Recv(); err != nil {
					t.Fatalf("Recv = %v", err)
				}
			}
			r.with(func() {
				if got := r.peers[3].readers; len(got) == 0 || got[0] != "c9" {
					t.Errorf("readers of peer 3: %v", got)
				}
			})
			tail.Close()
			if _, err := tail.Recv(); !errors.Is(err, context.Canceled) && err == nil {
				t.Errorf("Recv after Close = %v", err)
			}
		}
	})
}

// Whoever leaves a peer for a cause, such as that it does not go on, has the next tail of another
// one, also where nothing was wrong with the stream; whoever just ends comes back to the same.
func TestATailThatWasLeftIsAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		cfg := r.config()
		cfg.ReaderID = "c9"
		c := r.start(cfg)
		open := func(end func(cancel context.CancelCauseFunc)) (peer int) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			tail, err := c.Tail(ctx, state.Token{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tail.Recv(); err != nil {
				t.Fatal(err)
			}
			r.with(func() {
				for i, p := range r.peers {
					if len(p.readers) > 0 {
						peer = int(i)
					}
					p.readers = nil
				}
			})
			end(cancel)
			tail.Close()
			return peer
		}
		seen := map[int]bool{}
		for range 3 {
			seen[open(func(cancel context.CancelCauseFunc) { cancel(errors.New("it does not go on")) })] = true
		}
		if len(seen) != 3 {
			t.Errorf("three tails, each left for a cause, were of peers %v", seen)
		}
		stays := open(func(context.CancelCauseFunc) {})
		for range 3 {
			if peer := open(func(cancel context.CancelCauseFunc) { cancel(nil) }); peer != stays {
				t.Errorf("a tail that just ended is followed by one of peer %d, not %d", peer, stays)
			}
		}
	})
}

func TestSilentTailIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		tail, err := c.Tail(ctx, state.Token{})
		if err != nil {
			t.Fatal(err)
		}
		defer tail.Close()
		if _, err := tail.Recv(); err != nil {
			t.Fatal(err)
		}
		r.with(func() { r.peers[1].silent = true })
		start := time.Now()
		for err == nil {
			_, err = tail.Recv()
		}
		if took := time.Since(start); took > 1200*time.Millisecond || !strings.Contains(err.Error(), "did not answer in time") {
			t.Errorf("cut after %v: %v", took, err)
		}
	})
}

func TestTailsBackOffWhenAllPeersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		for _, p := range r.peers {
			p.stop()
		}
		c := r.start(r.config())
		ctx, cancel := within(10 * time.Second)
		defer cancel()
		attempts := 0
		for ctx.Err() == nil {
			if _, err := c.Tail(ctx, state.Token{}); err == nil {
				t.Fatal("a tail to nobody")
			}
			attempts++
		}
		if attempts < 20 || attempts > 200 {
			t.Errorf("%d attempts in 10 s", attempts)
		}
	})
}

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		r.with(func() { r.peers[1].tailBreaks = true; r.peers[2].tailBreaks = true })
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		var err error
		for range 3 {
			var last *rootv1.SnapshotChunk
			if err = c.Snapshot(ctx, func(chunk *rootv1.SnapshotChunk) error { last = chunk; return nil }); err == nil {
				if !last.Last || last.RecordCount != 3 {
					t.Errorf("last chunk = %v", last)
				}
				break
			}
		}
		if err != nil {
			t.Errorf("Snapshot = %v after three attempts", err)
		}
		if err := c.Snapshot(ctx, func(*rootv1.SnapshotChunk) error { return io.ErrShortWrite }); err != io.ErrShortWrite {
			t.Errorf("error of the callback came back as %v", err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for _, peers := range []map[uint64]string{nil, {0: "a:1"}, {1: ""}, {1: "a:1", 2: "a:1"}} {
		if _, err := client.New(client.Config{Peers: peers}); err == nil {
			t.Errorf("peers %v were accepted", peers)
		}
	}
}
