package server_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAllocIDAndTso(t *testing.T) {
	w := start(t)
	ids, err := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: server.MaxIDCount})
	if err != nil || ids.GetFirst() != 1 || ids.GetCount() != server.MaxIDCount || ids.GetEra() != 7 {
		t.Errorf("AllocID = %v, %v", ids, err)
	}
	ts, err := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: server.MaxTSOCount})
	if err != nil || ts.GetFirst() != server.MaxIDCount+1 || ts.GetCount() != server.MaxTSOCount || ts.GetEra() != 7 {
		t.Errorf("Tso = %v, %v", ts, err)
	}
}

func TestCountsAreChecked(t *testing.T) {
	w := start(t)
	for _, count := range []uint64{0, server.MaxIDCount + 1, math.MaxInt64 + 1, math.MaxUint64} {
		_, err := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: count})
		detail := refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
		if !strings.HasPrefix(detail.GetMessage(), "count") || count != 0 && detail.GetLimit() != server.MaxIDCount {
			t.Errorf("AllocID(%d): %v", count, detail)
		}
	}
	for _, count := range []uint64{0, server.MaxTSOCount + 1, math.MaxUint64} {
		_, err := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: count})
		refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
		stream, err := w.client.TsoStream(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []uint64{3, count, 5} { // what came before is answered
			_ = stream.Send(&coordinatorv1.TsoRequest{Count: n})
		}
		got, err := drain(stream.Recv)
		refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
		if len(got) != 1 || got[0].GetCount() != 3 {
			t.Errorf("before the refusal: %v", got)
		}
	}
}

// Runs on a stream are in order and do not overlap, however they were merged.
func TestTsoStream(t *testing.T) {
	w := start(t)
	stream, err := w.client.TsoStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	const requests = 5000
	go func() {
		for i := range uint64(requests) {
			if stream.Send(&coordinatorv1.TsoRequest{Count: i%1000 + 1}) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	got, err := drain(stream.Recv)
	if err != nil || len(got) != requests {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	next := uint64(1)
	for i, resp := range got {
		if resp.GetFirst() != next || resp.GetCount() != uint64(i)%1000+1 || resp.GetEra() != 7 {
			t.Fatalf("answer %d: %v, want first %d", i, resp, next)
		}
		next += resp.GetCount()
	}
}

// N-72: who does not hold the Tenure says so, and who does.
func TestTenureNotHeld(t *testing.T) {
	w := start(t)
	if _, err := w.root.Claim(t.Context(), &rootv1.TenureClaimed{
		HolderId: "c2", HolderIncarnation: 5, HolderAddress: "127.0.0.1:2", TtlMillis: 1000,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO, rootv1.Mandate_MANDATE_SCHEDULE},
	}); err != nil {
		t.Fatal(err)
	}
	w.catchUp(t)
	w.authority.mu.Lock()
	w.authority.err = reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "somebody else has it")
	w.authority.mu.Unlock()
	stream, err := w.client.TsoStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&coordinatorv1.TsoRequest{Count: 1})
	_, streamed := stream.Recv()
	_, ids := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: 1})
	_, ts := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: 1})
	for _, err := range []error{streamed, ids, ts} {
		detail := refused(t, err, rootv1.Reason_REASON_TENURE_NOT_HELD)
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(status.Convert(err).Message(), "coordinator not leader") {
			t.Errorf("got %v", err)
		}
		if detail.GetHolderId() != "c2" || detail.GetHolderAddress() != "127.0.0.1:2" || detail.GetEra() != 1 {
			t.Errorf("no way out: %v", detail)
		}
	}
}

// Ids and timestamps say which cluster they are of.
func TestRunsNameTheCluster(t *testing.T) {
	w := start(t)
	ids, err := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: 1})
	if err != nil || ids.GetClusterId() != clusterID {
		t.Errorf("AllocID = %v, %v", ids, err)
	}
	ts, err := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: 1})
	if err != nil || ts.GetClusterId() != clusterID {
		t.Errorf("Tso = %v, %v", ts, err)
	}
	stream, err := w.client.TsoStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&coordinatorv1.TsoRequest{Count: 1})
	if ts, err = stream.Recv(); err != nil || ts.GetClusterId() != clusterID {
		t.Errorf("TsoStream: %v, %v", ts, err)
	}
}

// A timestamp stream without a deadline is not left waiting for a root that is away.
func TestTsoStreamWaitsNoLongerThanItMay(t *testing.T) {
	w := start(t, func(c *server.Config) {
		c.Limits = server.DefaultLimits()
		c.Limits.StreamWait = 20 * time.Millisecond
	})
	defer w.authority.block()()
	stream, err := w.client.TsoStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&coordinatorv1.TsoRequest{Count: 1})
	if ts, err := stream.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v, %v", ts, err)
	}
}

// An error that is no refusal does not pass as one.
func TestUnknownErrorIsInternal(t *testing.T) {
	w := start(t)
	w.authority.mu.Lock()
	w.authority.err = errors.New("broken")
	w.authority.mu.Unlock()
	_, err := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: 1})
	if status.Code(err) != codes.Internal || reason.From(err) != nil {
		t.Errorf("got %v", err)
	}
}

// While one run waits for its confirmation others are taken, and they arrive in
// order; when the confirmation fails nothing behind it arrives.
func TestTsoStreamTakesWhileItWaits(t *testing.T) {
	for _, failing := range []bool{false, true} {
		w := start(t)
		release := w.authority.block()
		defer release()
		stream, err := w.client.TsoStream(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for n := range uint64(3) {
			if err := stream.Send(&coordinatorv1.TsoRequest{Count: n + 1}); err != nil {
				t.Fatal(err)
			}
			<-w.authority.arrived // taken, and the first is not confirmed yet
		}
		if failing {
			w.authority.mu.Lock()
			w.authority.err = reason.New(rootv1.Reason_REASON_ERA_STALE, "over")
			w.authority.mu.Unlock()
		}
		release()
		_ = stream.CloseSend()
		got, err := drain(stream.Recv)
		if failing {
			refused(t, err, rootv1.Reason_REASON_ERA_STALE)
			if len(got) != 0 {
				t.Errorf("served without a confirmation: %v", got)
			}
			continue
		}
		if err != nil || len(got) != 3 || got[0].GetFirst() != 1 || got[1].GetFirst() != 2 || got[2].GetFirst() != 4 {
			t.Errorf("got %v, %v", got, err)
		}
	}
}
