package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// maxOthers bounds the connections to other coordinators that are kept.
const maxOthers = 64

// others are connections to other coordinators, which are kept: it asks whom they hear, and
// a question is worth asking only if the answer comes at once; and it passes members'
// streams on.
type others struct {
	options []grpc.DialOption
	certs   *mtls.Source

	mu sync.Mutex
	// Guarded by mu: by who is meant and where, and these by age.
	conns map[place]*grpc.ClientConn
	order []place
}

// place is where a coordinator is to answer.
type place struct {
	id      state.CoordinatorID
	address string
}

// peer is whom to expect there.
func (p place) peer() mtls.Peer { return mtls.Peer{Role: principal.Coordinator, Name: string(p.id)} }

func placeOf(c *rootv1.Coordinator) place {
	return place{state.CoordinatorID(c.GetId()), c.GetAddress()}
}

func newOthers(certs *mtls.Source, cluster func() uint64, more ...grpc.DialOption) *others {
	return &others{certs: certs, conns: map[place]*grpc.ClientConn{}, options: slices.Concat(flow.Client(), clusterid.Caller(cluster).Options(), []grpc.DialOption{
		probePace(knockFor), grpc.WithDisableServiceConfig(),
	}, more)}
}

// heard implements assigner.Config.Ask. A port that refuses is no answer: what cuts the member off may
// refuse in the place of both, and the coordinator goes on hearing the member behind it.
func (o *others) heard(ctx context.Context, of *rootv1.Coordinator, members []state.MemberID) ([]liveness.Word, error) {
	conn, err := o.connect(placeOf(of))
	if err != nil {
		return nil, err
	}
	req := &coordinatorv1.HeardMembersRequest{MemberIds: make([]string, len(members))}
	for i, id := range members {
		req.MemberIds[i] = string(id)
	}
	reply, err := coordinatorv1.NewCoordinatorClient(conn).HeardMembers(ctx, req)
	if err != nil {
		return nil, err
	}
	words := make([]liveness.Word, 0, len(reply.GetMembers()))
	for _, m := range reply.GetMembers() {
		age := time.Duration(min(m.GetAgeMillis(), state.MaxMillis)) * time.Millisecond
		words = append(words, liveness.Word{Member: state.MemberID(m.GetMemberId()), Incarnation: m.GetIncarnation(), Age: age, Connected: m.GetConnected()})
	}
	return words, nil
}

// relay implements server.Config.Relay.
func (o *others) relay(ctx context.Context, to *rootv1.Coordinator) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
	conn, err := o.connect(placeOf(to))
	if err != nil {
		return nil, err
	}
	return coordinatorv1.NewCoordinatorClient(conn).MemberStream(ctx)
}

func (o *others) connect(to place) (*grpc.ClientConn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if conn := o.conns[to]; conn != nil {
		return conn, nil
	}
	who := grpc.WithTransportCredentials(o.certs.Client(to.peer()))
	conn, err := grpc.NewClient("passthrough:///"+to.address, append([]grpc.DialOption{who}, o.options...)...)
	if err != nil {
		return nil, err
	}
	if len(o.order) == maxOthers {
		_ = o.conns[o.order[0]].Close()
		delete(o.conns, o.order[0])
		o.order = slices.Delete(o.order, 0, 1)
	}
	o.conns[to], o.order = conn, append(o.order, to)
	return conn, nil
}

func (o *others) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, conn := range o.conns {
		_ = conn.Close()
	}
}
