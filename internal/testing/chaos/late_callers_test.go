package chaos

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Places of the callers of late replies: one that uses the wire directly, and
// the Go clients.
const (
	latePlace   = "late"
	lateGoPlace = "late-go"
)

// asker is who asks.
type asker string

const (
	// wire asks before the takeover, again after it, successor the other one.
	wire, again, successor asker = "over the wire", "over the wire, again", "over the wire, the successor"
	// unaware and aware are Go clients.
	unaware, aware asker = "a Go client that knows of no takeover", "a Go client that knows of the takeover"
)

// question is something to ask.
type question struct {
	who   asker
	op    string
	count uint64
	call  func() answers
}

func (q question) String() string { return fmt.Sprintf("%s, %d by %s", q.op, q.count, q.who) }

func (q question) overWire() bool { return q.who != unaware && q.who != aware }

// answers is what a question that was sent is told.
type answers func(context.Context) (first, era uint64, err error)

// ask is a question under way; what came of it is there when done is closed.
type ask struct {
	question
	note history.Call
	err  error
	done chan struct{}
	// covered: it is answered by a confirmation, or by the holder, before the takeover.
	covered bool
}

func (a *ask) String() string {
	if !a.ended() {
		return a.question.String() + ": no answer"
	}
	return fmt.Sprintf("%s: %d of era %d, %v", a.question, a.note.First, a.note.Era, a.err)
}

// begin asks and returns once that is under way.
func (l *late) begin(q question) *ask {
	a := &ask{question: q, done: make(chan struct{})}
	a.note = history.Call{Client: string(q.who), Op: q.op, CallNS: int64(l.load.now())}
	call := q.call()
	l.load.askers.Go(func() {
		defer close(a.done)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var first, era uint64
		first, era, a.err = call(ctx)
		a.note.ReturnNS, a.note.WallMS = int64(l.load.now()), uint64(time.Now().UnixMilli())
		if a.err != nil {
			a.note.Err = a.err.Error()
		} else {
			a.note.First, a.note.Count, a.note.Era = first, q.count, era
		}
		l.e.call(a.note)
	})
	return a
}

// over waits for the answer; the call has a deadline.
func (a *ask) over() *ask {
	<-a.done
	return a
}

func (a *ask) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// of says that a value of an era came, above that one of a later era.
func (a *ask) of(era uint64) bool    { return a.over().err == nil && a.note.Era == era }
func (a *ask) above(era uint64) bool { return a.over().err == nil && a.note.Era > era }

// refused says that the call was told that the era is over, or that nobody
// confirms it.
func (a *ask) refused() bool {
	switch reason.Of(reason.FromGRPC(a.over().err)) {
	case rootv1.Reason_REASON_TENURE_NOT_HELD, rootv1.Reason_REASON_ERA_STALE, rootv1.Reason_REASON_ROOT_UNAVAILABLE:
		return true
	}
	return false
}

func anyEnded(list []*ask) bool { return slices.ContainsFunc(list, (*ask).ended) }

// idsAsked is how many ids were asked for.
func idsAsked(list []*ask) (n uint64) {
	for _, a := range list {
		if a.op == history.OpID {
			n += a.count
		}
	}
	return n
}

// tsoOf and idsOf ask a coordinator over the wire.
func tsoOf(n coordinatorv1.CoordinatorClient, count uint64) answers {
	return func(ctx context.Context) (uint64, uint64, error) {
		r, err := n.Tso(ctx, &coordinatorv1.TsoRequest{Count: count})
		return r.GetFirst(), r.GetEra(), err
	}
}

func idsOf(n coordinatorv1.CoordinatorClient, count uint64) answers {
	return func(ctx context.Context) (uint64, uint64, error) {
		r, err := n.AllocID(ctx, &coordinatorv1.AllocIDRequest{Count: count})
		return r.GetFirst(), r.GetEra(), err
	}
}

// lateStream is a TsoStream whose answers come in the order of its requests.
type lateStream struct {
	grpc.BidiStreamingClient[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]
	last chan struct{} // closed when the request before has its answer
}

// tso sends a request at once.
func (s *lateStream) tso(count uint64) answers {
	sent := s.Send(&coordinatorv1.TsoRequest{Count: count})
	before, answered := s.last, make(chan struct{})
	s.last = answered
	return func(context.Context) (uint64, uint64, error) {
		<-before
		defer close(answered)
		r, err := s.Recv()
		if sent != nil && err == nil {
			err = sent
		}
		if d := r.GetError(); d != nil && err == nil {
			err = &reason.Error{Detail: d}
		}
		return r.GetFirst(), r.GetEra(), err
	}
}

func newLateStream(s grpc.BidiStreamingClient[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]) *lateStream {
	open := make(chan struct{})
	close(open)
	return &lateStream{s, open}
}

// goClient is a client that asks one coordinator first for what any can answer,
// has a place of its own, and waits for a silent coordinator as long as it takes: it
// is not told who holds the Tenure when it asks, which it does when the silence is
// longer than a ttl, as it is on a busy machine.
func (l *late) goClient(near, far int) *client.Client {
	doors := map[string]string{l.c.advertised[near]: l.goDoors[near], l.c.advertised[far]: l.goDoors[far]}
	cl, err := client.New(client.Config{
		Endpoints:  []string{l.c.advertised[near], l.c.advertised[far]},
		ClusterID:  l.load.clusterID(),
		TryTimeout: patience, DefaultTimeout: patience,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", doors[address])
		}), grpc.WithChainUnaryInterceptor(withoutStatus)},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return cl
}

func withoutStatus(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == coordinatorv1.Coordinator_Status_FullMethodName {
		return status.Error(codes.Unavailable, "not in this test")
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func goTso(cl *client.Client, count uint64) answers {
	return func(ctx context.Context) (uint64, uint64, error) {
		r, err := cl.Tso(ctx, count)
		return uint64(r.First), uint64(r.Era), err
	}
}

func goIDs(cl *client.Client, count uint64) answers {
	return func(ctx context.Context) (uint64, uint64, error) {
		r, err := cl.AllocID(ctx, count)
		return r.First, uint64(r.Era), err
	}
}
