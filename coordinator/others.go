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
	"google.golang.org/grpc"
)

// maxOthers bounds the connections to other coordinators that are kept.
const maxOthers = 64

// others are connections to other coordinators, which are kept: it asks whom they hear, and
// a question is worth asking only if the answer comes at once; and it passes members'
// streams on.
type others struct {
	options []grpc.DialOption

	mu sync.Mutex
	// Guarded by mu: by address, and the addresses by age.
	conns map[string]*grpc.ClientConn
	order []string
}

func newOthers(certs *mtls.Source, cluster func() uint64, more ...grpc.DialOption) *others {
	return &others{conns: map[string]*grpc.ClientConn{}, options: slices.Concat(flow.Client(), clusterid.Caller(cluster).Options(), []grpc.DialOption{
		grpc.WithTransportCredentials(certs.Client(principal.Coordinator)), probePace(knockFor), grpc.WithDisableServiceConfig(),
	}, more)}
}

// heard implements assigner.Config.Ask.
func (o *others) heard(ctx context.Context, address string, members []state.MemberID) ([]liveness.Word, error) {
	conn, err := o.connect(address)
	if err != nil {
		return nil, err
	}
	req := &coordinatorv1.HeardMembersRequest{MemberIds: make([]string, len(members))}
	for i, id := range members {
		req.MemberIds[i] = string(id)
	}
	reply, err := coordinatorv1.NewCoordinatorClient(conn).HeardMembers(ctx, req)
	words := make([]liveness.Word, 0, len(reply.GetMembers()))
	for _, m := range reply.GetMembers() {
		age := time.Duration(min(m.GetAgeMillis(), state.MaxMillis)) * time.Millisecond
		words = append(words, liveness.Word{Member: state.MemberID(m.GetMemberId()), Incarnation: m.GetIncarnation(), Age: age, Connected: m.GetConnected()})
	}
	return words, err
}

// relay implements server.Config.Relay.
func (o *others) relay(ctx context.Context, address string) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
	conn, err := o.connect(address)
	if err != nil {
		return nil, err
	}
	return coordinatorv1.NewCoordinatorClient(conn).MemberStream(ctx)
}

func (o *others) connect(address string) (*grpc.ClientConn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if conn := o.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+address, o.options...)
	if err != nil {
		return nil, err
	}
	if len(o.order) == maxOthers {
		_ = o.conns[o.order[0]].Close()
		delete(o.conns, o.order[0])
		o.order = slices.Delete(o.order, 0, 1)
	}
	o.conns[address], o.order = conn, append(o.order, address)
	return conn, nil
}

func (o *others) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, conn := range o.conns {
		_ = conn.Close()
	}
}
