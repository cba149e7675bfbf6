package server

import (
	"context"
	"errors"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/dial"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"google.golang.org/grpc"
)

// Peers reaches other stores. It implements host.Peers. A connection is made for a copy
// and ends with it: leads are transferred seldom.
type Peers struct {
	cluster func() uint64
	tls     *mtls.Source
	fixed   map[rooted.MemberID]string

	mu     sync.Mutex
	rooted map[rooted.MemberID]string // guarded by mu
}

// NewPeers makes Peers. Fixed addresses win over those that members register.
func NewPeers(cluster func() uint64, tls *mtls.Source, fixed map[rooted.MemberID]string) *Peers {
	return &Peers{cluster: cluster, tls: tls, fixed: maps.Clone(fixed), rooted: map[rooted.MemberID]string{}}
}

// Register takes the address that a member registered; empty: it is gone.
func (p *Peers) Register(id rooted.MemberID, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if address == "" {
		delete(p.rooted, id)
		return
	}
	p.rooted[id] = address
}

// Address implements host.Peers.
func (p *Peers) Address(id rooted.MemberID) string {
	if a := p.fixed[id]; a != "" {
		return a
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rooted[id]
}

// copyWithin bounds a copy whose caller has more time, so that a region is not kept from
// its writers for ever.
const copyWithin = time.Minute

// Copy implements host.Peers.
func (p *Peers) Copy(ctx context.Context, to rooted.MemberID, header *storev1.ImportHeader, send func(each func(*storev1.Entry) error) error) ([]byte, error) {
	address := p.Address(to)
	if address == "" {
		return nil, reason.New(rootv1.Reason_REASON_MEMBER_NOT_FOUND, "the address of %s is not known: say it with --store-addr", to)
	}
	ctx, cancel := context.WithTimeout(ctx, copyWithin)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, append(append(flow.Client(), clusterid.Caller(p.cluster).Options()...),
		grpc.WithTransportCredentials(p.tls.Client(mtls.Peer{Role: principal.Member, Name: string(to)})), grpc.WithContextDialer(dial.TCP))...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := storev1.NewStoreClient(conn).Import(ctx)
	if err != nil {
		return nil, reason.FromGRPC(err)
	}
	err = stream.Send(&storev1.ImportRequest{Header: header})
	if err == nil {
		err = host.Parts(send, stream.Send)
	}
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: the answer says why
		return nil, err
	}
	answer, err := stream.CloseAndRecv()
	return answer.GetWorkdirId(), reason.FromGRPC(err)
}
