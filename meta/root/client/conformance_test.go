package client_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// root is what coordinators use of a Client; anything that stands in for one
// must pass conform.
type root interface {
	Propose(ctx context.Context, commands ...*rootv1.Command) ([]*rootv1.CommandResult, error)
	ReadIndex(ctx context.Context) (state.Token, error)
	Claim(ctx context.Context, claim *rootv1.TenureClaimed, windows ...*rootv1.FirstWindow) (*rootv1.ClaimTenureResponse, error)
	Confirm(ctx context.Context, req *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error)
	Tail(ctx context.Context, after state.Token) (client.TailStream, error)
	Snapshot(ctx context.Context, fn func(*rootv1.SnapshotChunk) error) error
}

var _ root = (*client.Client)(nil)

// conform checks the contract of a root that has a leader and no Tenure yet.
func conform(t *testing.T, r root) {
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	var newest uint64
	t.Run("every command has its own answer", func(t *testing.T) { newest = conformPropose(ctx, t, r) })
	t.Run("reads see what was acknowledged", func(t *testing.T) {
		token, err := r.ReadIndex(ctx)
		if err != nil || token.Index < newest {
			t.Errorf("ReadIndex = %v, %v, acknowledged was %d", token, err, newest)
		}
	})
	t.Run("claim and confirm", func(t *testing.T) { conformTenure(ctx, t, r) })
	t.Run("tail and snapshot give the same state", func(t *testing.T) { conformTail(ctx, t, r) })
}

func conformPropose(ctx context.Context, t *testing.T, r root) (newest uint64) {
	var mu sync.Mutex
	var callers sync.WaitGroup
	for n := range 40 {
		callers.Go(func() {
			good, bad := member(fmt.Sprintf("m%d", n)), member("") // An empty id is refused.
			first := member(fmt.Sprintf("m%d", n))                 // It has the same answer when it is sent again, as a slow answer makes it.
			first.Identity = &rootv1.CommandIdentity{Origin: 7, Sequence: uint64(n + 1)}
			results, err := r.Propose(ctx, first, bad, good)
			if err != nil || len(results) != 3 {
				t.Errorf("Propose = %v, %v", results, err)
				return
			}
			for i, want := range []rootv1.Outcome{rootv1.Outcome_OUTCOME_APPLIED, rootv1.Outcome_OUTCOME_REJECTED, rootv1.Outcome_OUTCOME_ALREADY_APPLIED} {
				if results[i].Outcome != want {
					t.Errorf("command %d of caller %d: %v, want %v", i, n, results[i], want)
				}
			}
			if got := results[0].Events[0].Member.GetId(); got != fmt.Sprintf("m%d", n) {
				t.Errorf("caller %d was answered about %s", n, got)
			}
			mu.Lock()
			defer mu.Unlock()
			newest = max(newest, results[2].Token.Index)
		})
	}
	callers.Wait()
	return newest
}

func member(id string) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: id, Address: "m:1", StartNonce: 1},
	}}}}}
}

func conformTenure(ctx context.Context, t *testing.T, r root) {
	claim := &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 5, HolderAddress: "c:1", TtlMillis: 30_000, // longer than this takes
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID},
	}
	resp, err := r.Claim(ctx, claim, &rootv1.FirstWindow{Mandate: rootv1.Mandate_MANDATE_ALLOC_ID, Size: 3})
	if err != nil || resp.GetResult().GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
		t.Fatalf("Claim = %v, %v", resp, err)
	}
	events := resp.GetResult().GetEvents()
	if w := events[len(events)-1].GetWindow(); len(events) != 2 || w.GetEra() != 1 || w.GetTo()-w.GetFrom() != 3 {
		t.Errorf("the first window of the era: %v", events)
	}
	claim.HolderId, claim.ExpectedEra = "c2", 1
	if resp, err = r.Claim(ctx, claim); err != nil || (resp.GetRetryAfterMillis() == 0 && resp.GetResult().GetOutcome() != rootv1.Outcome_OUTCOME_REJECTED) {
		t.Errorf("claim over an active era = %v, %v", resp, err)
	}
	for _, c := range []struct {
		req    *rootv1.ConfirmTenureRequest
		active bool
	}{
		{&rootv1.ConfirmTenureRequest{Era: 1, HolderId: "c1", HolderIncarnation: 5}, true},
		{&rootv1.ConfirmTenureRequest{Era: 1, HolderId: "c1", HolderIncarnation: 6}, false},
		{&rootv1.ConfirmTenureRequest{Era: 2, HolderId: "c2", HolderIncarnation: 5}, false},
	} {
		resp, err := r.Confirm(ctx, c.req)
		if err != nil || resp.GetActive() != c.active || resp.GetTenure().GetEra() != 1 {
			t.Errorf("Confirm(%v) = %v, %v", c.req, resp, err)
		}
	}
}

func conformTail(ctx context.Context, t *testing.T, r root) {
	var records []*rootv1.Record
	var last *rootv1.SnapshotChunk
	err := r.Snapshot(ctx, func(chunk *rootv1.SnapshotChunk) error {
		records, last = append(records, chunk.Records...), chunk
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
		t.Fatalf("restore: %v", err)
	}
	results, err := r.Propose(ctx, member("late"))
	if err != nil {
		t.Fatal(err)
	}
	for st.Token().Index < results[0].Token.Index { // again whenever it breaks, as on a busy machine
		tail, err := r.Tail(ctx, st.Token())
		if err != nil && ctx.Err() != nil {
			t.Fatal(err)
		}
		for err == nil && st.Token().Index < results[0].Token.Index {
			var msg *rootv1.TailResponse
			if msg, err = tail.Recv(); err != nil {
				break
			}
			for _, e := range msg.Entries {
				if err := st.ApplyEntry(e.Term, e.Index, e.Entry, nil); err != nil {
					t.Fatalf("gap at %v: %v", st.Token(), err)
				}
			}
		}
		if tail != nil {
			tail.Close()
		}
	}
	if st.Member("late") == nil {
		t.Error("the tail did not bring what was acknowledged")
	}
}
