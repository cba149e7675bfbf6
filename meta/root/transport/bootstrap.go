package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/meta/root/storage"
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
	// all peers by node id, this one included.
	NodeID uint64
	Peers  map[uint64]string
	// Workdir keeps the identity.
	Workdir Workdir
	// Listener is used while Agree runs and handed back open.
	Listener Listener
	Dial     Dial
	Logger   hclog.Logger
	// HandshakeTimeout bounds each exchange with a peer. Default 3 s.
	HandshakeTimeout time.Duration
	// Retry is the pause between two tries to reach a peer. Default 100 ms.
	Retry time.Duration
}

// Agree returns the identity of a workdir as a member of its cluster. A workdir
// that is a member already answers at once; an empty or pending one waits until
// all peers of the map have agreed, or until ctx ends. *RefusedError: the cluster
// knows another workdir under this node id, now and for ever.
func Agree(ctx context.Context, cfg AgreeConfig) (storage.Identity, error) {
	a, err := newAgreement(cfg)
	if err != nil || a.me.Member {
		return a.me, err
	}
	if len(cfg.Peers) > 1 {
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

	mu     sync.Mutex         // guards what follows
	heard  map[uint64]welcome // newest word of each other peer
	told   map[string]bool    // refusals that were logged
	change chan struct{}      // a level: heard changed
}

func newAgreement(cfg AgreeConfig) (*agreement, error) {
	a := &agreement{cfg: cfg, log: cfg.Logger, heard: map[uint64]welcome{}, told: map[string]bool{}, change: make(chan struct{}, 1)}
	if a.log == nil {
		a.log = hclog.NewNullLogger()
	}
	setDefault(&a.cfg.HandshakeTimeout, 3*time.Second)
	setDefault(&a.cfg.Retry, 100*time.Millisecond)
	if _, ok := cfg.Peers[cfg.NodeID]; !ok || cfg.NodeID == 0 {
		return a, fmt.Errorf("the peers %v do not name node %d itself", cfg.Peers, cfg.NodeID)
	}
	found, ok := cfg.Workdir.Identity()
	if ok && found.NodeID != cfg.NodeID {
		return a, fmt.Errorf("the workdir belongs to root peer %d of cluster %016x, this process is root peer %d: start it with its own workdir", found.NodeID, found.ClusterID, cfg.NodeID)
	}
	if ok && found.Member {
		return a, a.member(found)
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
// peers are may not.
func (a *agreement) member(found storage.Identity) error {
	a.me = found
	a.me.Peers = slices.Clone(found.Peers)
	if len(a.me.Peers) != len(a.cfg.Peers) {
		return fmt.Errorf("the workdir belongs to a cluster of peers %v, this process was given %v: peers are fixed at bootstrap", found.Peers, a.cfg.Peers)
	}
	for i, p := range a.me.Peers {
		address, ok := a.cfg.Peers[p.NodeID]
		if !ok {
			return fmt.Errorf("the workdir belongs to a cluster of peers %v, this process was given %v: peers are fixed at bootstrap", found.Peers, a.cfg.Peers)
		}
		a.me.Peers[i].Address = address
	}
	return nil
}

// pending makes the incarnation durable before anybody hears of it.
func (a *agreement) pending(found storage.Identity) error {
	a.me = found
	a.me.ClusterID, a.me.Member, a.me.Peers = 0, false, nil
	for id, address := range a.cfg.Peers {
		a.me.Peers = append(a.me.Peers, storage.Peer{NodeID: id, Address: address})
	}
	a.me.Peers = sortedPeers(a.me.Peers)
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
	a.log.Info("bootstrap: waiting for all root peers", "node", a.me.NodeID, "workdir", fmt.Sprintf("%016x", a.me.Incarnation), "peers", len(a.me.Peers))
	var talking sync.WaitGroup
	accepted := make(chan error, 1)
	talking.Go(func() { accepted <- a.accept(ctx) })
	for _, p := range a.mine.Peers {
		if p.NodeID != a.mine.NodeID {
			talking.Go(func() { a.ask(ctx, p) })
		}
	}
	identity, err := a.decide(ctx, accepted)
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

func (a *agreement) decide(ctx context.Context, accepted <-chan error) (storage.Identity, error) {
	for {
		identity, done, err := a.conclude()
		if err != nil || done {
			return identity, err
		}
		select {
		case <-a.change:
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
	a.mu.Lock()
	heard := make(map[uint64]welcome, len(a.heard))
	for id, w := range a.heard {
		heard[id] = w
	}
	a.mu.Unlock()
	for _, w := range heard {
		if w.cluster != 0 {
			identity, err := a.adopt(w)
			return identity, err == nil, err
		}
	}
	if len(heard) < len(a.me.Peers)-1 {
		return a.me, false, nil
	}
	for i, p := range a.me.Peers {
		a.me.Peers[i].Incarnation = heard[p.NodeID].incarnation
		if p.NodeID == a.me.NodeID {
			a.me.Peers[i].Incarnation = a.me.Incarnation
		}
	}
	identity, err := a.found()
	return identity, err == nil, err
}

// found completes the identity: every incarnation is known.
func (a *agreement) found() (storage.Identity, error) {
	if len(a.me.Peers) == 1 {
		a.me.Peers[0].Incarnation = a.me.Incarnation
	}
	a.me.ClusterID = clusterIDOf(a.me.Peers)
	return a.complete()
}

// adopt follows a peer that is a member already.
func (a *agreement) adopt(w welcome) (storage.Identity, error) {
	for _, m := range w.members {
		if m.NodeID == a.me.NodeID && m.Incarnation != a.me.Incarnation {
			return a.me, &RefusedError{Peer: w.node, Why: fmt.Sprintf(
				"%s knows root peer %d by workdir %016x; this workdir is %016x: it was wiped or is the wrong one. Restore the old workdir, or replace the peer",
				party(w.node, w.cluster, w.incarnation), a.me.NodeID, m.Incarnation, a.me.Incarnation)}
		}
	}
	known := map[uint64]uint64{}
	for _, m := range w.members {
		known[m.NodeID] = m.Incarnation
	}
	for i, p := range a.me.Peers {
		incarnation, ok := known[p.NodeID]
		if !ok || len(known) != len(a.me.Peers) {
			return a.me, &RefusedError{Peer: w.node, Why: fmt.Sprintf("%s has the peers %v, root peer %d was given %v", party(w.node, w.cluster, w.incarnation), w.members, a.me.NodeID, a.cfg.Peers)}
		}
		a.me.Peers[i].Incarnation = incarnation
	}
	a.me.ClusterID = w.cluster
	return a.complete()
}

func (a *agreement) complete() (storage.Identity, error) {
	a.me.Member = true
	// A crash before this line leaves a pending workdir with the incarnation that
	// others may have counted on already: it adopts what they agreed on.
	if err := a.cfg.Workdir.SaveIdentity(a.me); err != nil {
		return a.me, fmt.Errorf("save identity: %w", err)
	}
	a.log.Info("bootstrap complete", "node", a.me.NodeID, "cluster", fmt.Sprintf("%016x", a.me.ClusterID))
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
		if err == nil {
			a.hear(p.NodeID, w)
		} else if refused := new(RefusedError); errors.As(err, &refused) {
			a.tell(refused.Why)
		}
		pause(ctx, a.cfg.Retry)
	}
}

func (a *agreement) askOnce(ctx context.Context, p storage.Peer) (welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.HandshakeTimeout)
	defer cancel()
	conn, err := a.cfg.Dial(ctx, p.Address)
	if err != nil {
		return welcome{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	w, err := greet(conn, a.hello(p.NodeID), a.cfg.HandshakeTimeout)
	if err == nil && w.node != p.NodeID {
		err = &RefusedError{Peer: p.NodeID, Why: fmt.Sprintf("root peer %d dialed root peer %d at %s and reached %s", a.mine.NodeID, p.NodeID, p.Address, party(w.node, w.cluster, w.incarnation))}
	}
	return w, err
}

func (a *agreement) hello(to uint64) hello {
	return hello{
		version: Version, purpose: forBootstrap, from: a.mine.NodeID, to: to,
		fromIncarnation: a.mine.Incarnation, peerMap: peerMapHash(a.mine.Peers),
	}
}

// hear notes the newest word of a peer.
func (a *agreement) hear(id uint64, w welcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[id] = w
	select {
	case a.change <- struct{}{}:
	default:
	}
}

// tell logs a refusal, each one once.
func (a *agreement) tell(why string) {
	a.mu.Lock()
	first := !a.told[why] && len(a.told) < 100
	if first {
		a.told[why] = true
	}
	a.mu.Unlock()
	if first {
		a.log.Error("bootstrap: refused", "reason", why)
	}
}

// accept answers hellos of others until ctx ends.
func (a *agreement) accept(ctx context.Context) error {
	var answering sync.WaitGroup
	defer answering.Wait()
	places := make(chan struct{}, maxStrangers)
	for {
		conn, err := a.cfg.Listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}
		select {
		case places <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		answering.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			a.answer(conn)
		})
	}
}

func (a *agreement) answer(conn net.Conn) {
	h, _, err := hear(conn, a.cfg.HandshakeTimeout)
	if err != nil {
		a.log.Debug("bootstrap: stranger", "remote", conn.RemoteAddr(), "err", err)
		return
	}
	if why := judgeCommon(h, a.mine); why != "" {
		a.tell(why)
		refuse(conn, kindRefusal, why)
		return
	}
	if h.purpose != forBootstrap {
		refuse(conn, kindNotYet, fmt.Sprintf("%s has not finished its bootstrap: %s has to wait",
			party(a.mine.NodeID, 0, a.mine.Incarnation), party(h.from, h.cluster, h.fromIncarnation)))
		return
	}
	w := welcome{node: a.mine.NodeID, incarnation: a.mine.Incarnation, peerMap: peerMapHash(a.mine.Peers)}
	if _, err := conn.Write(appendFrame(nil, kindWelcome, w.append(nil))); err != nil {
		return // It asks again.
	}
	a.hear(h.from, welcome{node: h.from, incarnation: h.fromIncarnation, peerMap: h.peerMap})
}
