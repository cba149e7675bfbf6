// Package fakecoordinator serves members in memory what a test says is theirs.
//
// A Cluster is the truth; Coordinators show it over gRPC on in-memory listeners, as
// real ones do: complete, then what changed, with the answers that the holder of the
// Tenure confirms. It judges nothing, and keeps what members report.
package fakecoordinator

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ClusterID is the id of every Cluster.
const ClusterID = 0x10

// Cluster is the truth that its Coordinators share.
type Cluster struct {
	// Keyspaces are the terms that all are told.
	Keyspaces []*coordinatorv1.KeyspaceTerms
	// Reported are names of further keyspaces, whose members report.
	Reported []string
	// IntervalMillis is the time between frames.
	IntervalMillis uint64

	mu sync.Mutex
	// Guarded by mu.
	index   uint64
	members map[string]*rootv1.Member
	// undrained are refusals of drains that are told.
	undrained map[string]*rootv1.ErrorDetail
	shown     map[string]map[uint64]*coordinatorv1.ShownRegion
	at        map[string]*Coordinator
	holder    string
	era       uint64
	// changed is closed and made anew with every change, and with every report.
	changed chan struct{}
	reports map[string]map[uint64]*coordinatorv1.RegionReport
	byes    map[string]*coordinatorv1.Goodbye
	replies []*coordinatorv1.MemberCommandReply
}

// New makes a Cluster without coordinators.
func New(keyspaces ...*coordinatorv1.KeyspaceTerms) *Cluster {
	return &Cluster{
		Keyspaces: keyspaces, IntervalMillis: 100, era: 1, index: 1, changed: make(chan struct{}),
		members: map[string]*rootv1.Member{}, shown: map[string]map[uint64]*coordinatorv1.ShownRegion{}, at: map[string]*Coordinator{},
		reports: map[string]map[uint64]*coordinatorv1.RegionReport{}, byes: map[string]*coordinatorv1.Goodbye{},
	}
}

func (c *Cluster) tellLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Show makes regions a member's own, or changes them.
func (c *Cluster) Show(member string, regions ...*coordinatorv1.ShownRegion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	if c.shown[member] == nil {
		c.shown[member] = map[uint64]*coordinatorv1.ShownRegion{}
	}
	for _, r := range regions {
		c.shown[member][r.GetRegion().GetId()] = r
	}
	c.tellLocked()
}

// End takes regions from a member.
func (c *Cluster) End(member string, ids ...uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	for _, id := range ids {
		delete(c.shown[member], id)
	}
	c.tellLocked()
}

// Join takes a region from a member, and gives it another one that has its keys: one change.
func (c *Cluster) Join(member string, gone uint64, into *coordinatorv1.ShownRegion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	delete(c.shown[member], gone)
	c.shown[member][into.GetRegion().GetId()] = into
	c.tellLocked()
}

// Create makes a keyspace, which all are told of from then on.
func (c *Cluster) Create(terms *coordinatorv1.KeyspaceTerms) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	c.Keyspaces = append(slices.Clone(c.Keyspaces), terms)
	c.tellLocked()
}

// SetState is a verdict, or what an operator asked for. A failed member loses everything.
func (c *Cluster) SetState(member string, state rootv1.MemberState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	m := proto.CloneOf(c.members[member])
	m.State = state
	c.members[member] = m
	if state == rootv1.MemberState_MEMBER_STATE_FAILED {
		delete(c.shown, member)
	}
	c.tellLocked()
}

// RefuseDrain has answers say why the root does not let a member drain.
func (c *Cluster) RefuseDrain(member string, because *rootv1.ErrorDetail) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.undrained = map[string]*rootv1.ErrorDetail{member: because}
	c.tellLocked()
}

// SetHolder gives the Tenure to the coordinator at an address; "": to nobody.
func (c *Cluster) SetHolder(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holder = address
	c.era++
	c.tellLocked()
}

// Command sends a command to a member by the holder.
func (c *Cluster) Command(member string, m *coordinatorv1.MemberCommand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.Era = c.era
	if k := c.at[c.holder]; k != nil {
		k.commands[member] = append(k.commands[member], m)
	}
	c.tellLocked()
}

// Member is a member as rooted; nil: it never registered.
func (c *Cluster) Member(id string) *rootv1.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[id]
}

// Await waits until a condition of the reports of a member holds, or the context ends.
func (c *Cluster) Await(ctx context.Context, member string, holds func(Reported) bool) error {
	for {
		c.mu.Lock()
		changed := c.changed
		now := Reported{Regions: maps.Clone(c.reports[member]), Goodbye: c.byes[member], Replies: slices.Clone(c.replies)}
		c.mu.Unlock()
		if holds(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("member %s reported %v, %v: %w", member, now.Regions, now.Goodbye, ctx.Err())
		}
	}
}

// Reported is what a member said.
type Reported struct {
	Regions map[uint64]*coordinatorv1.RegionReport
	Goodbye *coordinatorv1.Goodbye
	Replies []*coordinatorv1.MemberCommandReply
}

// Phase is what a member has made of a region.
func (r Reported) Phase(id uint64) coordinatorv1.RegionPhase { return r.Regions[id].GetPhase() }

// Coordinator serves at one address.
type Coordinator struct {
	coordinatorv1.UnimplementedCoordinatorServer
	cluster  *Cluster
	address  string
	listener *bufconn.Listener
	server   *grpc.Server
	serving  sync.WaitGroup

	// Guarded by cluster.mu. mute: it answers nothing. refuses is what every stream ends
	// with; nil: none does. streams counts those that are open, frames what came on all.
	commands map[string][]*coordinatorv1.MemberCommand
	mute     bool
	refuses  error
	streams  int
	frames   int
}

// Start serves a coordinator at an address. The first one holds the Tenure.
func (c *Cluster) Start(address string) *Coordinator {
	k := &Coordinator{cluster: c, address: address, listener: bufconn.Listen(1 << 16), server: grpc.NewServer(), commands: map[string][]*coordinatorv1.MemberCommand{}}
	coordinatorv1.RegisterCoordinatorServer(k.server, k)
	c.mu.Lock()
	c.at[address] = k
	if c.holder == "" {
		c.holder = address
	}
	c.tellLocked()
	c.mu.Unlock()
	k.serving.Add(1)
	go func() {
		defer k.serving.Done()
		_ = k.server.Serve(k.listener)
	}()
	return k
}

// Stop ends a coordinator and its connections.
func (k *Coordinator) Stop() {
	c := k.cluster
	c.mu.Lock()
	if c.at[k.address] == k {
		delete(c.at, k.address)
	}
	c.mu.Unlock()
	k.server.Stop()
	k.serving.Wait()
}

// Stop ends all coordinators.
func (c *Cluster) Stop() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.at))
	c.mu.Unlock()
	for _, k := range all {
		k.Stop()
	}
}

// Mute keeps a coordinator from answering on the streams that it has, its own and those that it
// passes on; they stay open.
func (k *Coordinator) Mute(mute bool) {
	k.cluster.mu.Lock()
	defer k.cluster.mu.Unlock()
	k.mute = mute
	k.cluster.tellLocked()
}

// Refuse ends every stream that begins with an error, until one that is nil.
func (k *Coordinator) Refuse(err error) {
	k.cluster.mu.Lock()
	defer k.cluster.mu.Unlock()
	k.refuses = err
}

// Streams is how many members' streams are open.
func (k *Coordinator) Streams() int {
	k.cluster.mu.Lock()
	defer k.cluster.mu.Unlock()
	return k.streams
}

// Frames is how many frames have come.
func (k *Coordinator) Frames() int {
	k.cluster.mu.Lock()
	defer k.cluster.mu.Unlock()
	return k.frames
}

// Dial connects to a coordinator, for grpc.WithContextDialer.
func (c *Cluster) Dial(ctx context.Context, address string) (net.Conn, error) {
	c.mu.Lock()
	k := c.at[address]
	c.mu.Unlock()
	if k == nil {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}
	return k.listener.DialContext(ctx)
}

func (c *Cluster) disclosureLocked() *coordinatorv1.Disclosure {
	return &coordinatorv1.Disclosure{ClusterId: ClusterID, Era: c.era, ServedRootToken: c.tokenLocked(), CurrentRootToken: c.tokenLocked()}
}

func (c *Cluster) tokenLocked() *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: 1, Term: 1, Index: c.index}
}

// Status implements coordinatorv1.CoordinatorServer.
func (k *Coordinator) Status(context.Context, *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	k.cluster.mu.Lock()
	defer k.cluster.mu.Unlock()
	return &coordinatorv1.StatusResponse{Disclosure: k.cluster.disclosureLocked()}, nil
}

// Revoked is whose certificates are revoked.
const Revoked = "coordinator/revoked"

// WatchRevoked implements coordinatorv1.CoordinatorServer.
func (k *Coordinator) WatchRevoked(_ *coordinatorv1.WatchRevokedRequest, s grpc.ServerStreamingServer[coordinatorv1.WatchRevokedResponse]) error {
	if err := s.Send(&coordinatorv1.WatchRevokedResponse{Certificates: []string{Revoked}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// GetKeyspace implements coordinatorv1.CoordinatorServer: regions of the keyspaces of terms are
// assigned.
func (k *Coordinator) GetKeyspace(_ context.Context, req *coordinatorv1.GetKeyspaceRequest) (*coordinatorv1.GetKeyspaceResponse, error) {
	c := k.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	placement := rootv1.Placement_PLACEMENT_UNSPECIFIED
	switch named := func(t *coordinatorv1.KeyspaceTerms) bool { return t.GetName() == req.GetName() }; {
	case slices.ContainsFunc(c.Keyspaces, named):
		placement = rootv1.Placement_PLACEMENT_ASSIGNED
	case slices.Contains(c.Reported, req.GetName()):
		placement = rootv1.Placement_PLACEMENT_REPORTED
	default:
		return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %q", req.GetName())
	}
	made := &rootv1.Keyspace{Name: req.GetName(), Settings: &rootv1.KeyspaceSettings{Placement: placement}}
	return &coordinatorv1.GetKeyspaceResponse{Keyspace: made, Disclosure: c.disclosureLocked()}, nil
}

// ListMembers implements coordinatorv1.CoordinatorServer.
func (k *Coordinator) ListMembers(_ context.Context, req *coordinatorv1.ListMembersRequest) (*coordinatorv1.ListMembersResponse, error) {
	c := k.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &coordinatorv1.ListMembersResponse{Disclosure: c.disclosureLocked()}
	if m := c.members[req.GetMemberId()]; m != nil {
		resp.Members = []*coordinatorv1.MemberStatus{{Member: m}}
	}
	return resp, nil
}

// RegisterMember implements coordinatorv1.CoordinatorServer.
func (k *Coordinator) RegisterMember(_ context.Context, req *coordinatorv1.RegisterMemberRequest) (*coordinatorv1.RegisterMemberResponse, error) {
	c := k.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	m := proto.CloneOf(req.GetMember())
	old := c.members[m.GetId()]
	if old.GetIncarnation() != req.GetFollows() {
		e := reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "another process has registered")
		e.Detail.Incarnation = old.GetIncarnation()
		return nil, e
	}
	c.index++
	m.Incarnation, m.State, m.Revision = old.GetIncarnation()+1, rootv1.MemberState_MEMBER_STATE_ACTIVE, c.index
	c.members[m.GetId()] = m
	delete(c.shown, m.GetId())
	delete(c.reports, m.GetId())
	c.tellLocked()
	return &coordinatorv1.RegisterMemberResponse{Member: m, Token: c.tokenLocked()}, nil
}

type memberStream = grpc.BidiStreamingServer[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer]

// MemberStream implements coordinatorv1.CoordinatorServer.
func (k *Coordinator) MemberStream(s memberStream) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	c, hello := k.cluster, first.GetHello()
	c.mu.Lock()
	refuses := k.refuses
	k.streams++
	c.mu.Unlock()
	defer func(k *Coordinator) {
		c.mu.Lock()
		k.streams--
		c.mu.Unlock()
	}(k)
	if refuses != nil {
		return refuses
	}
	at := k
	if to := hello.GetRelayTo(); to != "" { // as the other one answers, through this one
		if k = c.named(to); k == nil {
			return reason.New(rootv1.Reason_REASON_NOT_FOUND, "coordinator %q is not known", to)
		}
	}
	v := &view{k: k, at: at, hello: hello, last: map[uint64]*coordinatorv1.ShownRegion{}}
	frames, broken := make(chan *coordinatorv1.MemberFrame), make(chan error, 1)
	go func() {
		for {
			f, err := s.Recv()
			if err != nil {
				broken <- err
				return
			}
			select {
			case frames <- f:
			case <-s.Context().Done():
				broken <- s.Context().Err()
				return
			}
		}
	}()
	v.took(first)
	for {
		answer, changed, err := v.answer()
		if err != nil {
			return err
		}
		if answer != nil {
			if err := s.Send(answer); err != nil {
				return err
			}
		}
		select {
		case f := <-frames:
			v.took(f)
		case <-changed:
		case err := <-broken:
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// view is one member's stream at one coordinator.
type view struct {
	k        *Coordinator
	hello    *coordinatorv1.MemberHello
	at       *Coordinator // where the stream is: another one where that passes it on
	sequence uint64
	answered uint64
	index    uint64
	era      uint64
	state    rootv1.MemberState
	last     map[uint64]*coordinatorv1.ShownRegion
}

// took keeps what a frame says.
func (v *view) took(f *coordinatorv1.MemberFrame) {
	c := v.k.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	v.sequence = f.GetSequence()
	v.k.frames++
	id := v.hello.GetMemberId()
	if c.reports[id] == nil {
		c.reports[id] = map[uint64]*coordinatorv1.RegionReport{}
	}
	for _, r := range f.GetRegions() {
		c.reports[id][r.GetRegionId()] = r
	}
	for _, gone := range f.GetGone() {
		delete(c.reports[id], gone)
	}
	if f.GetGoodbye() != nil {
		c.byes[id] = f.GetGoodbye()
	}
	c.replies = append(c.replies, f.GetReplies()...)
	if len(f.GetRegions())+len(f.GetGone())+len(f.GetReplies()) > 0 || f.GetGoodbye() != nil {
		c.tellLocked()
	}
}

// answer is what is to be said now, if anything, and when to look again.
func (v *view) answer() (*coordinatorv1.MemberAnswer, <-chan struct{}, error) {
	c, k := v.k.cluster, v.k
	c.mu.Lock()
	defer c.mu.Unlock()
	id := v.hello.GetMemberId()
	m := c.members[id]
	if m.GetIncarnation() != v.hello.GetIncarnation() {
		return nil, nil, reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "incarnation %d is over", v.hello.GetIncarnation())
	}
	if v.at.mute {
		return nil, c.changed, nil
	}
	a := &coordinatorv1.MemberAnswer{Sequence: v.sequence, Era: c.era, Confirmed: c.holder == k.address, State: m.GetState(), Commands: k.commands[id], DrainRefused: c.undrained[id]}
	delete(k.commands, id)
	if v.era != c.era {
		a.Terms = c.termsLocked()
	}
	if v.index != c.index {
		a.Set = v.setLocked(c.shown[id])
	}
	if a.Set == nil && a.Terms == nil && len(a.GetCommands()) == 0 && v.answered == v.sequence && v.state == m.GetState() {
		return nil, c.changed, nil
	}
	v.answered, v.era, v.index, v.state = v.sequence, c.era, c.index, m.GetState()
	return a, c.changed, nil
}

// named is the coordinator with an id; nil: there is none.
func (c *Cluster) named(id string) *Coordinator {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[strings.TrimPrefix(id, "at ")]
}

func (c *Cluster) termsLocked() *coordinatorv1.MemberTerms {
	t := &coordinatorv1.MemberTerms{IntervalMillis: c.IntervalMillis, Keyspaces: c.Keyspaces, HolderId: "at " + c.holder}
	for _, address := range slices.Sorted(maps.Keys(c.at)) {
		t.Coordinators = append(t.Coordinators, &rootv1.Coordinator{Id: "at " + address, Address: address})
	}
	return t
}

func (v *view) setLocked(now map[uint64]*coordinatorv1.ShownRegion) *coordinatorv1.ShownSet {
	set := &coordinatorv1.ShownSet{Token: v.k.cluster.tokenLocked(), Complete: v.index == 0}
	for id := range v.last {
		if now[id] == nil {
			set.Ended = append(set.Ended, id)
		}
	}
	for id, r := range now {
		if v.last[id] != r {
			set.Regions = append(set.Regions, r)
		}
	}
	v.last = maps.Clone(now)
	if v.last == nil {
		v.last = map[uint64]*coordinatorv1.ShownRegion{}
	}
	return set
}
