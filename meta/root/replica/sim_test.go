package replica_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

var (
	simSeeds = flag.Int("seeds", 150, "number of simulated schedules")
	simFirst = flag.Uint64("seed", 1, "first simulated schedule")
)

const (
	simSteps = 3000
	simTTL   = 300 * time.Millisecond
)

// sim runs Cores under a random schedule: messages lost, repeated and
// reordered, crashes, stalls, clocks of different speed. Everything follows
// from the seed.
type sim struct {
	t     *testing.T
	rng   *rand.Rand
	peers []*simPeer
	// now is true time in nanoseconds; a peer's clock may be off in rate and
	// offset.
	now  int64
	mail []*raftpb.Message

	// requests that were not answered yet, by who was asked and when.
	open map[replica.Request]*simCall
	// acknowledged is the highest index acknowledged to anyone.
	acknowledged uint64
	written      []string
	names        int
	hashes       map[uint64]uint64
	// good is until when the holder of an era may believe in it, began when the
	// era was first seen applied.
	good, began map[uint64]int64

	count simCount
}

type simCount struct {
	writes, unknown, reads, confirms, expiries, crashes, stalls, snapshots, elections int
	reshapes                                                                          int
}

type simCall struct {
	peer *simPeer
	at   int64
	// floor is the index that a read must reach.
	floor uint64
	name  string
}

type simPeer struct {
	s      *sim
	id     uint64
	cfg    replica.Config
	log    *memLog
	core   *replica.Core
	view   *replica.View
	inbox  []*raftpb.Message
	events []replica.Event
	task   *replica.CheckpointTask
	rate   float64
	offset int64
	ticked int64
	stall  bool
	term   uint64
	// lost peers never come back.
	lost bool
}

// Send implements replica.Transport.
func (p *simPeer) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		p.s.mail = append(p.s.mail, proto.Clone(m).(*raftpb.Message))
	}
}

// SendStateHash implements replica.Transport.
func (p *simPeer) SendStateHash(index, hash uint64) {
	for _, to := range p.s.peers {
		if to != p && to.core != nil {
			to.events = append(to.events, replica.Event{Kind: replica.PeerStateHash, Peer: p.id, Index: index, Hash: hash})
		}
	}
}

// SetPeers implements replica.Transport.
func (p *simPeer) SetPeers(*rootv1.Cluster) {}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: int64(time.Hour), open: make(map[replica.Request]*simCall),
		hashes: make(map[uint64]uint64), good: make(map[uint64]int64), began: make(map[uint64]int64),
	}
	bootstrap := &rootv1.Cluster{ClusterId: seed + 1, Incarnation: 1}
	for id := uint64(1); id <= 3; id++ {
		bootstrap.Peers = append(bootstrap.Peers, &rootv1.RootPeer{NodeId: id, Incarnation: id, TransportAddress: fmt.Sprintf("127.0.0.1:%d", id)})
	}
	for id := uint64(1); id <= 3; id++ {
		p := &simPeer{s: s, id: id, log: newMemLog(), rate: 0.995 + 0.014*s.rng.Float64(), offset: s.rng.Int64N(int64(time.Hour)), ticked: s.now}
		cfg := replica.Defaults()
		cfg.NodeID, cfg.Voters, cfg.Bootstrap, cfg.Transport = id, []uint64{1, 2, 3}, bootstrap, p
		cfg.CheckpointEntries, cfg.RetainEntries, cfg.HashEvery, cfg.MaxEntryBytes = 12, 4, 8, 200
		cfg.Overdue = func() bool { return p.stall }
		p.cfg = cfg
		s.peers = append(s.peers, p)
		p.start()
	}
	return s
}

func (p *simPeer) start() {
	st, err := replica.LoadState(p.log)
	if err != nil {
		p.s.t.Fatalf("peer %d: %v", p.id, err)
	}
	p.cfg.Seed = p.s.rng.Uint64()
	if p.core, err = replica.NewCore(p.cfg, p.log, st); err != nil {
		p.s.t.Fatalf("peer %d: %v", p.id, err)
	}
	p.ticked = p.s.now
}

func (p *simPeer) clock() clock.Instant {
	return clock.Instant(float64(p.s.now)*p.rate) + clock.Instant(p.offset)
}

func (p *simPeer) crash() {
	p.core, p.inbox, p.events, p.task, p.view = nil, nil, nil, nil, nil
	for r, call := range p.s.open {
		if call.peer == p {
			delete(p.s.open, r)
		}
	}
	p.s.count.crashes++
}

func (p *simPeer) turn(in replica.Input) {
	in.Messages, in.Events = p.inbox, p.events
	in.Ticks = int((p.s.now - p.ticked) / int64(testTick))
	p.ticked += int64(in.Ticks) * int64(testTick)
	p.inbox, p.events = nil, nil
	for more := true; more; in = (replica.Input{}) {
		in.Now, in.Wall = p.clock(), uint64(p.s.now/1e6)
		out, err := p.core.Turn(in)
		if err != nil {
			p.s.t.Fatalf("peer %d: %v", p.id, err)
		}
		if out.View != nil {
			p.see(out.View)
		}
		for _, r := range out.Done {
			p.s.answer(p, r)
		}
		if out.Checkpoint != nil {
			p.task = out.Checkpoint
		}
		more = out.More
	}
}

// see checks a published view: equal positions have equal states, and an era
// begins only when its predecessor's holder has stopped believing.
func (p *simPeer) see(v *replica.View) {
	s := p.s
	p.view = v
	if hash, ok := s.hashes[v.Applied]; ok && hash != v.State.Hash() {
		s.t.Fatalf("peer %d: state %x at %d, another peer had %x", p.id, v.State.Hash(), v.Applied, hash)
	}
	s.hashes[v.Applied] = v.State.Hash()
	if v.Role == rootv1.RaftRole_RAFT_ROLE_LEADER && v.Term > p.term {
		p.term = v.Term
		s.count.elections++
	}
	era := v.State.Tenure().GetEra()
	if _, ok := s.began[era]; era == 0 || ok {
		return
	}
	s.began[era] = s.now
	if s.good[era-1] > s.now {
		s.t.Fatalf("era %d began %v before the holder of era %d stopped believing", era, time.Duration(s.good[era-1]-s.now), era-1)
	}
}

func (s *sim) believe(era uint64, since int64, ttlMillis uint64) {
	until := since + int64(ttlMillis)*int64(time.Millisecond)
	if began, ok := s.began[era+1]; ok && until > began {
		s.t.Fatalf("era %d was confirmed until %v after era %d began", era, time.Duration(until-began), era+1)
	}
	s.good[era] = max(s.good[era], until)
}

func (s *sim) answer(p *simPeer, r replica.Request) {
	call := s.open[r]
	if call == nil {
		s.t.Fatalf("peer %d answers a %T twice, or one it was not asked", p.id, r)
	}
	delete(s.open, r)
	switch r := r.(type) {
	case *replica.Reshape:
		if r.Err == nil && r.Result.Outcome == rootv1.Outcome_OUTCOME_APPLIED {
			s.count.reshapes++
		}
	case *replica.Proposal:
		if r.Err == nil {
			s.count.writes++
			s.acknowledged = max(s.acknowledged, r.Results[0].Token.Index)
			s.written = append(s.written, call.name)
		} else if reason.Of(r.Err) == rootv1.Reason_REASON_OUTCOME_UNKNOWN {
			s.count.unknown++
		}
	case *replica.Read:
		if r.Err == nil {
			s.count.reads++
			if r.Token.Index < call.floor {
				s.t.Fatalf("peer %d: read at %d, %d was acknowledged before it began", p.id, r.Token.Index, call.floor)
			}
		}
	case *replica.Confirm:
		if r.Err == nil && r.Response.GetActive() {
			s.count.confirms++
			s.believe(r.Request.GetEra(), call.at, r.Response.GetTenure().GetTtlMillis())
		}
	case *replica.Claim:
		if r.Err == nil && applied(r.Response) {
			era := r.Request.GetExpectedEra() + 1
			if era > 1 {
				s.count.expiries++
			}
			s.believe(era, call.at, r.Request.GetTtlMillis())
		}
	}
}

func (s *sim) ask(p *simPeer) {
	var r replica.Request
	call := &simCall{peer: p, at: s.now, floor: s.acknowledged}
	tenure := p.view.State.Tenure()
	switch s.rng.IntN(6) {
	case 0, 1, 2:
		s.names++
		call.name = fmt.Sprintf("c%d", s.names)
		r = propose(s.t, call.name)
	case 3:
		r = replica.NewRead()
	case 4:
		r = confirm(tenure.GetEra(), tenure.GetHolderId()+"x")
		if tenure != nil {
			r.(*replica.Confirm).Request.HolderId, r.(*replica.Confirm).Request.HolderIncarnation = tenure.GetHolderId(), tenure.GetHolderIncarnation()
		}
	default:
		ttl := simTTL
		if s.rng.IntN(2) == 0 {
			ttl = 0
		}
		r = claim(s.t, fmt.Sprintf("h%d", s.rng.IntN(3)), tenure.GetEra(), ttl)
	}
	s.open[r] = call
	p.turn(replica.Input{Requests: []replica.Request{r}})
}

// deliver takes a random message out of the mail, or repeats it, or loses it.
func (s *sim) deliver(lossless bool) {
	if len(s.mail) == 0 {
		return
	}
	// Mostly in order, so that work gets done.
	i := 0
	if s.rng.IntN(4) == 0 {
		i = s.rng.IntN(len(s.mail))
	}
	m := s.mail[i]
	fate := s.rng.IntN(100)
	if lossless || fate >= 2 || m.GetType() == raftpb.MsgSnap {
		s.mail = append(s.mail[:i], s.mail[i+1:]...)
	}
	from, to := s.peers[m.GetFrom()-1], s.peers[m.GetTo()-1]
	lost := to.core == nil || (!lossless && fate > 95)
	if m.GetType() == raftpb.MsgSnap {
		if lost {
			from.events = append(from.events, replica.Event{Kind: replica.SnapshotFailed, Peer: to.id})
			return
		}
		m = replica.Received(m, to.log.receive(from.log))
		from.events = append(from.events, replica.Event{Kind: replica.SnapshotDelivered, Peer: to.id})
		s.count.snapshots++
	}
	if lost {
		return
	}
	to.inbox = append(to.inbox, proto.Clone(m).(*raftpb.Message))
	if s.rng.IntN(2) == 0 {
		to.turn(replica.Input{})
	}
}

func (s *sim) step(faults bool) {
	p := s.peers[s.rng.IntN(len(s.peers))]
	s.now += s.rng.Int64N(int64(2 * time.Millisecond))
	if p.lost {
		return
	}
	if p.core == nil {
		if s.rng.IntN(200) == 0 || !faults {
			p.start()
			p.turn(replica.Input{})
		}
		return
	}
	switch n := s.rng.IntN(1000); {
	case n < 2 && faults:
		p.crash()
	case n < 7 && faults && p.view != nil:
		// Everybody else goes on while this one's write hangs.
		s.count.stalls++
		p.stall = true
		s.ask(p)
		p.stall = false
	case n < 9 && faults:
		// A leader that is cut off: all its mail is lost.
		var kept []*raftpb.Message
		for _, m := range s.mail {
			switch {
			case m.GetFrom() != p.id && m.GetTo() != p.id:
				kept = append(kept, m)
			case m.GetType() == raftpb.MsgSnap:
				from := s.peers[m.GetFrom()-1]
				from.events = append(from.events, replica.Event{Kind: replica.SnapshotFailed, Peer: m.GetTo()})
			}
		}
		s.mail = kept
		s.now += int64(50 * time.Millisecond)
	case n < 11 && faults:
		for _, other := range s.peers {
			if other != p {
				other.events = append(other.events, replica.Event{Kind: replica.PeerRefused, Peer: p.id})
			}
		}
	case n < 130 && p.view != nil:
		s.ask(p)
	case n < 160 && p.task != nil:
		task := p.task
		p.task = nil
		p.turn(replica.Input{Checkpointed: task.Write(p.log, func() error { return nil })})
	case n < 250:
		p.turn(replica.Input{})
	default:
		s.deliver(!faults)
	}
}

// finish heals everything and checks that the cluster serves, and that nothing
// acknowledged is gone.
func (s *sim) finish() {
	for n := 0; ; n++ {
		s.step(false)
		if n%200 == 0 && s.healed() {
			break
		}
		if n > 200_000 {
			s.t.Fatalf("not healed after 200,000 steps: %s", s.describe())
		}
	}
	have := make(map[string]bool)
	s.peers[0].view.State.Coordinators(func(c *rootv1.Coordinator) bool {
		have[c.GetId()] = true
		return true
	})
	for _, name := range s.written {
		if !have[name] {
			s.t.Fatalf("acknowledged write %s is gone", name)
		}
	}
}

// describe says where everybody is.
func (s *sim) describe() string {
	text := fmt.Sprintf("acknowledged %d, %d messages", s.acknowledged, len(s.mail))
	for _, p := range s.peers {
		text += fmt.Sprintf("; peer %d up %v", p.id, p.core != nil)
		if v := p.view; v != nil {
			text += fmt.Sprintf(" %v term %d leader %d commit %d applied %d log [%d, %d] checkpoint %d peers %v",
				v.Role, v.Term, v.Leader, v.Commit, v.Applied, v.FirstIndex, v.LastIndex, v.Checkpoint.Index, v.Peers)
		}
	}
	return text
}

// healed writes once more and says whether all peers have it.
func (s *sim) healed() bool {
	for _, p := range s.peers {
		if p.core == nil || p.view == nil || p.view.Role != rootv1.RaftRole_RAFT_ROLE_LEADER {
			continue
		}
		s.names++
		name := fmt.Sprintf("last%d", s.names)
		r := propose(s.t, name)
		s.open[r] = &simCall{peer: p, at: s.now, name: name}
		p.turn(replica.Input{Requests: []replica.Request{r}})
		for range 500 {
			s.deliver(true)
			for _, q := range s.peers {
				if q.core != nil {
					q.turn(replica.Input{})
				}
			}
		}
		if r.Results == nil || r.Err != nil {
			return false
		}
	}
	for _, p := range s.peers {
		if p.lost {
			continue
		}
		if p.core == nil || p.view == nil || p.view.Applied < s.acknowledged || p.view.Applied != s.peers[0].view.Applied {
			return false
		}
	}
	return s.acknowledged > 0
}

// The same seed gives the same run.
func TestSimulationRepeats(t *testing.T) {
	var first string
	for range 2 {
		cryptotest.SetGlobalRandom(t, 4)
		s := newSim(t, 4)
		for range simSteps {
			s.step(true)
		}
		s.finish()
		got := fmt.Sprintf("%+v %d %x", s.count, s.now, s.hashes)
		if first == "" {
			first = got
		}
		if got != first {
			t.Fatalf("first %.300s\nthen %.300s", first, got)
		}
	}
}

func TestSimulation(t *testing.T) {
	var total simCount
	for seed := *simFirst; seed < *simFirst+uint64(*simSeeds); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			// Raft draws its election timeouts from crypto/rand.
			cryptotest.SetGlobalRandom(t, seed)
			s := newSim(t, seed)
			for range simSteps {
				s.step(true)
			}
			s.finish()
			n := s.count
			total.writes += n.writes
			total.unknown += n.unknown
			total.reads += n.reads
			total.confirms += n.confirms
			total.expiries += n.expiries
			total.crashes += n.crashes
			total.stalls += n.stalls
			total.snapshots += n.snapshots
			total.elections += n.elections
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d seeds: %+v", *simSeeds, total)
	if *simSeeds >= 100 && (total.writes < 1000 || total.unknown == 0 || total.reads < 100 || total.confirms < 100 || total.expiries == 0 ||
		total.crashes == 0 || total.stalls == 0 || total.snapshots == 0 || total.elections < 100) {
		t.Errorf("a fault did not fire or the load was too low: %+v", total)
	}
}
