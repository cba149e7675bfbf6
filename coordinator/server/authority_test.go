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
	}
}

// runStream is a TsoStream or an AllocIDStream.
type runStream struct {
	send func(count uint64) error
	recv func() (*run, error)
	end  func() error
}

type run struct {
	first, count, era uint64
	refused           *rootv1.ErrorDetail
}

// runStreams opens a stream of each kind.
func runStreams(t *testing.T, w *world) map[string]runStream {
	t.Helper()
	ts, err := w.client.TsoStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := w.client.AllocIDStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]runStream{
		"timestamps": {
			func(n uint64) error { return ts.Send(&coordinatorv1.TsoRequest{Count: n}) },
			func() (*run, error) {
				r, err := ts.Recv()
				return &run{r.GetFirst(), r.GetCount(), r.GetEra(), r.GetError()}, err
			}, ts.CloseSend,
		},
		"ids": {
			func(n uint64) error { return ids.Send(&coordinatorv1.AllocIDRequest{Count: n}) },
			func() (*run, error) {
				r, err := ids.Recv()
				return &run{r.GetFirst(), r.GetCount(), r.GetEra(), r.GetError()}, err
			}, ids.CloseSend,
		},
	}
}

// A refusal is the answer to its request, in its place, and the stream goes on.
func TestRefusalsOnStreamsAreAnswers(t *testing.T) {
	for name, most := range map[string]uint64{"timestamps": server.MaxTSOCount, "ids": server.MaxIDCount} {
		for _, bad := range []uint64{0, most + 1, math.MaxUint64} {
			s := runStreams(t, start(t))[name]
			for _, n := range []uint64{3, bad, 5, most} {
				_ = s.send(n)
			}
			_ = s.end()
			got, err := drain(s.recv)
			if err != nil || len(got) != 4 {
				t.Fatalf("%s: %d answers, %v", name, len(got), err)
			}
			next := uint64(1)
			for i, n := range []uint64{3, bad, 5, most} {
				if refused := got[i].refused.GetReason() == rootv1.Reason_REASON_INVALID_REQUEST; refused != (n == bad) {
					t.Errorf("%s: the answer for %d: %+v", name, n, got[i])
				} else if !refused {
					if got[i].first != next || got[i].count != n {
						t.Errorf("%s: the answer for %d: %+v, want first %d", name, n, got[i], next)
					}
					next += n
				}
			}
		}
		w := start(t)
		s := runStreams(t, w)[name]
		refuse := func(err error) {
			w.authority.mu.Lock()
			w.authority.err = err
			w.authority.mu.Unlock()
		}
		for _, err := range []error{nil, reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "it retired"), nil} {
			refuse(err)
			_ = s.send(1)
			if got, failed := s.recv(); failed != nil || got.refused.GetReason() != reason.Of(err) {
				t.Errorf("%s: the holder says %v: %+v, %v", name, err, got, failed)
			}
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

// Who does not hold the Tenure says so, and who does.
func TestA25N72TenureNotHeld(t *testing.T) {
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
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	streamed := (&reason.Error{Detail: answer.GetError()}).GRPCStatus().Err()
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
	if ts, err := stream.Recv(); err != nil || ts.GetError().GetReason() != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
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
// order; when the confirmation fails none of them is served.
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
			if err != nil || len(got) != 3 {
				t.Fatalf("got %v, %v", got, err)
			}
			for _, answer := range got {
				if answer.GetFirst() != 0 || answer.GetError().GetReason() != rootv1.Reason_REASON_ERA_STALE {
					t.Errorf("served without a confirmation: %v", answer)
				}
			}
			continue
		}
		if err != nil || len(got) != 3 || got[0].GetFirst() != 1 || got[1].GetFirst() != 2 || got[2].GetFirst() != 4 {
			t.Errorf("got %v, %v", got, err)
		}
	}
}
