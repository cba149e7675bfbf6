package transport

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/mtls"
)

// Listener accepts connections of peers. SetDeadline ends an Accept that waits;
// *net.TCPListener has it.
type Listener interface {
	net.Listener
	SetDeadline(t time.Time) error
}

// Dial opens a connection to another peer's transport address, host:port.
type Dial func(ctx context.Context, address string) (net.Conn, error)

// Workdir remembers who a peer is. SaveIdentity is durable when it returns.
// *storage.Storage is one.
type Workdir interface {
	Identity() (storage.Identity, bool)
	SaveIdentity(storage.Identity) error
}

// AgreeConfig configures Agree.
type AgreeConfig struct {
	// NodeID is this peer's id; Peers are the transport addresses, host:port, of
	// all peers by node id, this one included. With Join, and for a workdir that
	// is a member, they may be some of them.
	NodeID uint64
	Peers  map[uint64]string
	// Address is where the others reach this peer's transport. Empty: as in Peers.
	Address string
	// Join has a workdir that belongs to no cluster knock at the peers of one until
	// they count it in.
	Join bool
	// FeatureLevel is as in Config.
	FeatureLevel uint32
	// Workdir keeps the identity.
	Workdir Workdir
	// Listener is used while Agree runs and handed back open.
	Listener Listener
	Dial     Dial
	// TLS is as in Config.
	TLS    *mtls.Source
	Logger hclog.Logger
	// HandshakeTimeout bounds each exchange with a peer. Default 3 s.
	HandshakeTimeout time.Duration
	// Retry is the pause between two tries to reach a peer. Default 100 ms, 250 ms
	// with Join.
	Retry time.Duration
	// Waiting hears what this peer waits for, in a sentence, whenever that changes. It
	// does not wait. Nil: nobody asks.
	Waiting func(sentence string)
}

// Agree returns the identity of a workdir as a member of its cluster. A workdir
// that is a member already answers at once; an empty or pending one waits until
// all peers of the map have agreed, or, with Join, until the peers of a cluster
// count it in; or until ctx ends. *RefusedError: the cluster will never have this
// workdir under this node id.
func Agree(ctx context.Context, cfg AgreeConfig) (storage.Identity, error) {
	a, err := newAgreement(cfg)
	if err != nil || a.me.Member {
		return a.me, err
	}
	if len(a.mine.Peers) > 1 {
		return a.run(ctx)
	}
	return a.found()
}

// agreement is one run of the protocol in the package comment.
type agreement struct {
	cfg AgreeConfig
	log hclog.Logger
	// me becomes the member; decide's goroutine alone uses it.
	me storage.Identity
	// mine is the pending identity; never changed once others hear of it.
	mine storage.Identity

	mu      sync.Mutex         // guards what follows
	heard   map[uint64]welcome // newest word of each other peer
	trouble map[uint64]error   // what came of the last try to reach it
	asked   map[uint64]bool    // who is
	waiting string             // what Waiting heard last
	change  chan struct{}      // a level: heard changed

	refusals refusalLog
}

func newAgreement(cfg AgreeConfig) (*agreement, error) {
	a := &agreement{
		cfg: cfg, log: cmp.Or(cfg.Logger, hclog.NewNullLogger()), heard: map[uint64]welcome{}, trouble: map[uint64]error{},
		change: make(chan struct{}, 1), asked: map[uint64]bool{},
	}
	a.cfg.HandshakeTimeout = cmp.Or(a.cfg.HandshakeTimeout, 3*time.Second)
	if cfg.Join {
		a.cfg.Retry = cmp.Or(a.cfg.Retry, 250*time.Millisecond)
	}
	a.cfg.Retry = cmp.Or(a.cfg.Retry, 100*time.Millisecond)
	a.cfg.Address = cmp.Or(a.cfg.Address, cfg.Peers[cfg.NodeID])
	if a.cfg.Address == "" || cfg.NodeID == 0 {
		return a, fmt.Errorf("the peers %v do not name node %d itself", cfg.Peers, cfg.NodeID)
	}
	found, ok := cfg.Workdir.Identity()
	if ok && found.NodeID != cfg.NodeID {
		return a, fmt.Errorf("the workdir belongs to root peer %d of cluster %016x, this process is root peer %d: start it with its own workdir", found.NodeID, found.ClusterID, cfg.NodeID)
	}
	if ok && found.Member {
		a.member(found)
		return a, nil
	}
	if err := a.check(); err != nil {
		return a, err
	}
	if !ok {
		incarnation, err := randomIncarnation()
		if err != nil {
			return a, err
		}
		found = storage.Identity{NodeID: cfg.NodeID, Incarnation: incarnation}
	}
	return a, a.pending(found)
}

// member takes an identity that is complete. Addresses may have moved; who the
// peers are the log says.
func (a *agreement) member(found storage.Identity) {
	a.me = found
	a.me.Peers = slices.Clone(found.Peers)
	for i, p := range a.me.Peers {
		if address := a.cfg.Peers[p.NodeID]; address != "" {
			a.me.Peers[i].Address = address
		}
		if p.NodeID == a.me.NodeID {
			a.me.Peers[i].Address = a.cfg.Address
		}
	}
}

// check says what is wrong with the peers that a workdir without cluster was given.
func (a *agreement) check() error {
	n := len(a.cfg.Peers)
	if _, listed := a.cfg.Peers[a.cfg.NodeID]; a.cfg.Join {
		if n == 0 || n == 1 && listed {
			return errors.New("to join a cluster takes the address of one of its peers at least")
		}
		return nil
	}
	if n != 1 && n != 3 && n != 5 {
		return fmt.Errorf("the workdir belongs to no cluster yet, and %d peers cannot found one: want 3 (1 for a trial, 5 to survive two failures), or -join to become a peer of a cluster that exists", n)
	}
	return nil
}

// pending makes the incarnation durable before anybody hears of it.
func (a *agreement) pending(found storage.Identity) error {
	a.me = found
	a.me.ClusterID, a.me.Member, a.me.Peers = 0, false, nil
	for id, address := range a.cfg.Peers {
		if id != found.NodeID {
			a.me.Peers = append(a.me.Peers, storage.Peer{NodeID: id, Address: address})
		}
	}
	a.me.Peers = sortedPeers(append(a.me.Peers, storage.Peer{NodeID: found.NodeID, Address: a.cfg.Address}))
	a.mine = a.me
	a.mine.Peers = slices.Clone(a.me.Peers)
	// A crash before this line leaves an empty workdir that nobody has heard of;
	// a crash behind it a pending one that comes back with the same incarnation.
	if err := a.cfg.Workdir.SaveIdentity(a.me); err != nil {
		return fmt.Errorf("save pending identity: %w", err)
	}
	return nil
}

func randomIncarnation() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw an incarnation: %w", err)
		}
		if n := binary.BigEndian.Uint64(b[:]); n != 0 {
			return n, nil
		}
	}
}

// run exchanges hellos until something is decided.
func (a *agreement) run(ctx context.Context) (storage.Identity, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	what := "bootstrap: waiting for all root peers"
	if a.cfg.Join {
		what = "knocking at the root peers to become one of them"
	}
	a.log.Info(what, "peer", a.me.NodeID, "workdir", fmt.Sprintf("%016x", a.me.Incarnation), "peers", names(a.me.Peers), "transport", a.cfg.Address)
	var talking sync.WaitGroup
	accepted := make(chan error, 1)
	talking.Go(func() { accepted <- a.accept(ctx) })
	ask := func(peers []storage.Peer) {
		for _, p := range a.unasked(peers) {
			talking.Go(func() { a.ask(ctx, p) })
		}
	}
	ask(a.mine.Peers)
	identity, err := a.decide(ctx, accepted, ask)
	cancel()
	// Ends the Accept; connections that arrive meanwhile wait for the next one.
	if e := a.cfg.Listener.SetDeadline(time.Now()); e != nil && err == nil {
		err = fmt.Errorf("release listener: %w", e)
	}
	talking.Wait()
	if e := a.cfg.Listener.SetDeadline(time.Time{}); e != nil && err == nil {
		err = fmt.Errorf("release listener: %w", e)
	}
	return identity, err
}

func (a *agreement) decide(ctx context.Context, accepted <-chan error, ask func([]storage.Peer)) (storage.Identity, error) {
	report := time.NewTicker(reportEvery)
	defer report.Stop()
	for {
		identity, done, err := a.conclude()
		if err != nil || done {
			return identity, err
		}
		if a.cfg.Join {
			ask(a.learned())
		}
		select {
		case <-a.change:
		case <-report.C:
			a.report()
		case err := <-accepted:
			if err != nil {
				return a.me, fmt.Errorf("accept peers on %s: %w", a.cfg.Listener.Addr(), err)
			}
		case <-ctx.Done():
			return a.me, fmt.Errorf("bootstrap: heard %d of %d other root peers: %w", a.count(), len(a.me.Peers)-1, context.Cause(ctx))
		}
	}
}

func (a *agreement) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.heard)
}

// conclude decides by what was heard so far.
func (a *agreement) conclude() (storage.Identity, bool, error) {
	heard := a.words()
	if done, err := a.adopt(heard); err != nil || done {
		return a.me, done, err
	}
	if a.cfg.Join || len(heard) < len(a.me.Peers)-1 {
		return a.me, false, nil
	}
	for i, p := range a.me.Peers {
		a.me.Peers[i].Incarnation = a.me.Incarnation
		if p.NodeID != a.me.NodeID {
			a.me.Peers[i].Incarnation = incarnationOf(heard, p.NodeID)
		}
	}
	identity, err := a.found()
	return identity, err == nil, err
}

// words are the newest words of the others, in the order of their node ids.
func (a *agreement) words() []welcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []welcome
	for _, id := range slices.Sorted(maps.Keys(a.heard)) {
		out = append(out, a.heard[id])
	}
	return out
}

func incarnationOf(heard []welcome, node uint64) uint64 {
	for _, w := range heard {
		if w.node == node {
			return w.incarnation
		}
	}
	return 0
}

// found completes the identity: every incarnation is known.
func (a *agreement) found() (storage.Identity, error) {
	if len(a.me.Peers) == 1 {
		a.me.Peers[0].Incarnation = a.me.Incarnation
	}
	a.me.ClusterID = clusterIDOf(a.me.Peers)
	return a.complete()
}

func (a *agreement) complete() (storage.Identity, error) {
	a.me.Member = true
	// A crash before this line leaves a pending workdir with the incarnation that
	// others may have counted on already: it adopts what they agreed on.
	if err := a.cfg.Workdir.SaveIdentity(a.me); err != nil {
		return a.me, fmt.Errorf("save identity: %w", err)
	}
	a.log.Info("bootstrap complete", "peer", a.me.NodeID, "cluster", fmt.Sprintf("%016x", a.me.ClusterID), "joined", a.me.Joined, "peers", names(a.me.Peers))
	return a.me, nil
}

// clusterIDOf is a function of who founded the cluster.
func clusterIDOf(peers []storage.Peer) uint64 {
	h := fnv.New64a()
	for _, p := range sortedPeers(peers) {
		fmt.Fprintf(h, "%d=%016x\n", p.NodeID, p.Incarnation)
	}
	if id := h.Sum64(); id != 0 {
		return id
	}
	return 1
}

// ask says hello to one peer again and again and notes what it answers.
func (a *agreement) ask(ctx context.Context, p storage.Peer) {
	for ctx.Err() == nil {
		w, err := a.askOnce(ctx, p)
		a.note(p.NodeID, err)
		if err == nil {
			a.hear(p.NodeID, w)
		} else if why := whyRefused(err); why != "" {
			a.tell(why)
		}
		pause(ctx, a.cfg.Retry)
	}
}

func (a *agreement) askOnce(ctx context.Context, p storage.Peer) (welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.HandshakeTimeout)
	defer cancel()
	below, err := a.cfg.Dial(ctx, p.Address)
	if err != nil {
		return welcome{}, err
	}
	defer below.Close()
	defer context.AfterFunc(ctx, func() { below.Close() })()
	conn, err := secureDialed(ctx, a.cfg.TLS, below, p.NodeID, p.Address)
	if err != nil {
		return welcome{}, err
	}
	defer conn.Close()
	w, err := greet(conn, a.hello(p.NodeID), a.cfg.HandshakeTimeout)
	if err == nil && w.node != p.NodeID {
		err = &RefusedError{Peer: p.NodeID, Why: fmt.Sprintf("root peer %d dialed root peer %d at %s and reached root peer %d", a.mine.NodeID, p.NodeID, p.Address, w.node)}
	}
	return w, err
}

func (a *agreement) hello(to uint64) hello {
	why := forBootstrap
	if a.cfg.Join {
		why = forJoin
	}
	return hello{
		speaks: spoken, level: a.cfg.FeatureLevel, purpose: why, from: a.mine.NodeID, to: to, fromIncarnation: a.mine.Incarnation,
		peerMap: peerMapHash(a.mine.Peers), transport: a.cfg.Address,
	}
}

// hear notes the newest word of a peer.
func (a *agreement) hear(id uint64, w welcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[id] = w
	a.sayLocked()
	signal(a.change)
}

// tell logs a refusal.
func (a *agreement) tell(why string) {
	if a.refusals.first(why) {
		a.log.Error("bootstrap: refused", "reason", why)
	}
}

// accept answers hellos of others until ctx ends.
func (a *agreement) accept(ctx context.Context) error {
	return newLobby().open(ctx, a.cfg.Listener, func(v *visitor) { a.answer(ctx, v) })
}

func (a *agreement) answer(ctx context.Context, v *visitor) {
	conn, who, err := secureAccepted(ctx, a.cfg.TLS, v.Conn, a.cfg.HandshakeTimeout)
	if err != nil {
		return // The certificates' own log says so.
	}
	defer conn.Close()
	h, _, err := hear(conn, spoken, a.cfg.HandshakeTimeout)
	if err != nil {
		a.log.Debug("bootstrap: stranger", "remote", conn.RemoteAddr(), "err", err)
		return
	}
	if err := refuseVersion(conn, spoken, h); err != nil {
		a.tell(err.Error())
		return
	}
	founds := h.purpose == forBootstrap && !a.cfg.Join
	why := notNamed(who, h.from)
	if why == "" {
		why = judgeCommon(h, a.mine, nil)
	}
	if why == "" && founds {
		why = judgeFounder(h, a.mine, a.cfg.FeatureLevel)
	}
	if why != "" {
		a.tell(why)
		if founds && h.to == a.mine.NodeID && h.peerMap != peerMapHash(a.mine.Peers) {
			refuse(conn, kindRefusal, otherPeers)
			return
		}
		refuse(conn, kindRefusal, refused)
		return
	}
	if !founds {
		what := "it has not finished its bootstrap"
		if a.cfg.Join {
			what = "it waits to become a peer itself"
		}
		refuse(conn, kindNotYet, what)
		return
	}
	w := welcome{version: spoken.common(h.speaks), node: a.mine.NodeID, incarnation: a.mine.Incarnation, peerMap: peerMapHash(a.mine.Peers)}
	if _, err := conn.Write(appendFrame(nil, kindWelcome, w.append(nil))); err != nil {
		return // It asks again.
	}
	a.hear(h.from, welcome{node: h.from, incarnation: h.fromIncarnation, peerMap: h.peerMap})
}
