package client_test

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// cluster is the truth that fake coordinators share.
type cluster struct {
	id   uint64
	era  atomic.Uint64
	next atomic.Uint64 // last timestamp and id given
	log  atomic.Uint64 // index of the last change
}

func newCluster(id uint64) *cluster {
	k := &cluster{id: id}
	k.era.Store(1)
	k.next.Store(uint64(time.Unix(1_700_000_000, 0).UnixMilli()) << 18)
	return k
}

func (k *cluster) take(count uint64) uint64 { return k.next.Add(count) - count + 1 }

// fake is a coordinator. A hook that is set answers instead of it.
type fake struct {
	coordinatorv1.UnimplementedCoordinatorServer
	*cluster

	mu     sync.Mutex
	calls  map[string]int
	before func(ctx context.Context, method string) error // may refuse or block
	tso    func(*coordinatorv1.TsoRequest) *coordinatorv1.TsoResponse
	lookup func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error)
	watch  func(*coordinatorv1.WatchRegionsRequest, grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]) error
	commit func(*rootv1.Command) *rootv1.CommandResult
	batch  func(*coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error)
	list   []*rootv1.Coordinator
	tenure *rootv1.Tenure
	layout *rootv1.Layout

	malformed func(*rootv1.Command) bool // refuses the whole request
	deaf      bool                       // a RouteStream is not read
	idle      time.Duration              // after which a TsoStream is ended; 0: never
}

func (f *fake) note(ctx context.Context, method string) error {
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[method]++
	before := f.before
	f.mu.Unlock()
	if before != nil {
		return before(ctx, method)
	}
	return nil
}

func (f *fake) called(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

func (f *fake) refuse(hook func(ctx context.Context, method string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

func (f *fake) disclosure() *coordinatorv1.Disclosure {
	at := &rootv1.RootToken{Incarnation: 1, Term: 1, Index: f.log.Load()}
	return &coordinatorv1.Disclosure{ClusterId: f.id, Era: f.era.Load(), ServedRootToken: at, CurrentRootToken: at}
}

func (f *fake) Status(ctx context.Context, _ *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	if err := f.note(ctx, "Status"); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		return nil, reason.New(rootv1.Reason_REASON_DEADLINE_REQUIRED, "the call has no deadline")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &coordinatorv1.StatusResponse{Disclosure: f.disclosure(), Tenure: f.tenure}, nil
}

func (f *fake) ListCoordinators(ctx context.Context, _ *coordinatorv1.ListCoordinatorsRequest) (*coordinatorv1.ListCoordinatorsResponse, error) {
	if err := f.note(ctx, "ListCoordinators"); err != nil {
		return nil, err
	}
	return &coordinatorv1.ListCoordinatorsResponse{Coordinators: f.list, Disclosure: f.disclosure()}, nil
}

// AllocIDStream notes each request as an AllocID. A refusal is an answer.
func (f *fake) AllocIDStream(s grpc.BidiStreamingServer[coordinatorv1.AllocIDRequest, coordinatorv1.AllocIDResponse]) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		reply := &coordinatorv1.AllocIDResponse{Count: req.GetCount(), Era: f.era.Load(), ClusterId: f.id}
		if err := f.note(s.Context(), "AllocID"); reason.From(err) != nil {
			reply = &coordinatorv1.AllocIDResponse{Error: reason.From(err)}
		} else if err != nil {
			return err
		} else {
			reply.First = f.take(req.GetCount())
		}
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

func (f *fake) TsoStream(s grpc.BidiStreamingServer[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]) error {
	if f.idle == 0 {
		return f.serveTso(s)
	}
	done := make(chan error, 1)
	go func() { done <- f.serveTso(s) }()
	select {
	case err := <-done:
		return err
	case <-time.After(f.idle):
		return status.Error(codes.Unavailable, "silent for too long")
	}
}

func (f *fake) serveTso(s grpc.BidiStreamingServer[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]) error {
	var req coordinatorv1.TsoRequest
	for {
		if err := s.RecvMsg(&req); err != nil {
			return nil
		}
		if err := f.note(s.Context(), "TsoStream"); err != nil {
			return err
		}
		reply := &coordinatorv1.TsoResponse{Count: req.GetCount(), Era: f.era.Load(), ClusterId: f.id}
		if f.tso != nil {
			reply = f.tso(&req)
		} else {
			reply.First = f.take(req.GetCount())
		}
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

type publishServer = grpc.BidiStreamingServer[coordinatorv1.PublishRootEventsRequest, coordinatorv1.PublishRootEventsResponse]

func (f *fake) PublishStream(s publishServer) error {
	for {
		req, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.note(s.Context(), "PublishStream"); err != nil {
			return err
		}
		reply := &coordinatorv1.PublishRootEventsResponse{RequestId: req.GetRequestId()}
		if f.malformed != nil && slices.ContainsFunc(req.GetCommands(), f.malformed) {
			reply.Error = &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_INVALID_REQUEST, Message: "malformed"}
		}
		for _, cmd := range req.GetCommands() {
			if reply.GetError() == nil {
				reply.Results = append(reply.Results, f.apply(cmd))
			}
		}
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

func (f *fake) apply(cmd *rootv1.Command) *rootv1.CommandResult {
	if f.commit != nil {
		return f.commit(cmd)
	}
	at := &rootv1.RootToken{Incarnation: 1, Term: 1, Index: f.log.Add(1)}
	return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Token: at}
}

func (f *fake) GetRegionByKey(ctx context.Context, req *coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
	if err := f.note(ctx, "GetRegionByKey"); err != nil {
		return nil, err
	}
	if f.lookup != nil {
		return f.lookup(req)
	}
	return &coordinatorv1.GetRegionByKeyResponse{
		Region:     &rootv1.Region{Id: 1, KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, Owners: []*rootv1.Owner{{MemberId: "m1"}}},
		Owners:     []*coordinatorv1.OwnerAddress{{MemberId: "m1", Address: "10.0.0.1:7000"}},
		Disclosure: f.disclosure(),
	}, nil
}

func (f *fake) RemoveRegion(ctx context.Context, req *coordinatorv1.RemoveRegionRequest) (*coordinatorv1.RemoveRegionResponse, error) {
	if err := f.note(ctx, "RemoveRegion"); err != nil {
		return nil, err
	}
	result := f.apply(&rootv1.Command{Events: []*rootv1.Event{removal(req.GetRegionId())}, Identity: req.GetIdentity()})
	if d := result.GetError(); d != nil {
		return nil, &reason.Error{Detail: d}
	}
	return &coordinatorv1.RemoveRegionResponse{Removed: true, Token: result.GetToken()}, nil
}
