package transport

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// versions are protocol versions, from min to max. Two peers speak the highest one
// that both know; without one they refuse each other and name what each knows.
type versions struct{ min, max uint16 }

// spoken are those of this build. A version may append to a hello, which older
// ones then pass over; a welcome and all that follows is of the version agreed on.
var spoken = versions{min: 4, max: 4}

// common is the version that two peers speak; 0: none.
func (v versions) common(other versions) uint16 {
	if both := min(v.max, other.max); both >= max(v.min, other.min) {
		return both
	}
	return 0
}

// String names them in a sentence.
func (v versions) String() string {
	if v.min == v.max {
		return fmt.Sprintf("protocol version %d", v.max)
	}
	return fmt.Sprintf("protocol versions %d to %d", v.min, v.max)
}

const magic = "NoKVroot"

// purpose is what a connection is for.
type purpose byte

const (
	forMessages   purpose = 1
	forCheckpoint purpose = 2
	forBootstrap  purpose = 3
	forJoin       purpose = 4 // knocks: it is to become a peer
)

// hello is what the dialing side says of itself and expects of the other.
type hello struct {
	speaks   versions
	level    uint32 // highest feature level that it understands
	purpose  purpose
	from, to uint64 // node ids
	cluster  uint64 // 0: it belongs to none yet
	// fromIncarnation is the sender's workdir, toIncarnation the one it expects
	// at the other end; 0 when it belongs to no cluster yet.
	fromIncarnation, toIncarnation uint64
	peerMap                        uint64 // hash of the peers it was given; compared at the founding
	address                        string // its gRPC address
	transport                      string // where its transport is reached
	// claim is what the sender says of its folder, without Runs; nothing while it
	// belongs to no cluster.
	claim freshness.Claim
}

// welcome is how the accepting side says who it is.
//
// Who is none of its members, and does not name this workdir, is told no
// incarnation, and of the cluster's id only the digest.
type welcome struct {
	version           uint16 // that is spoken from now on
	level             uint32 // highest feature level that it understands
	node, incarnation uint64
	cluster           uint64 // 0: bootstrap is pending
	peerMap           uint64
	address           string // its gRPC address
	// members are the peers that a member knows; empty when pending. founders says
	// that they are those that the cluster began with.
	members  []storage.Peer
	founders bool
	// replaced says that the node which says hello is a peer no more.
	replaced bool
	// before is what the caller promised before its present start, as far as is
	// remembered here.
	before freshness.Promise
}

// wire appends fields to b, or takes them from it: one list of them serves both ways.
// Once something is missing it is bad for good.
type wire struct {
	b          []byte
	reads, bad bool
}

// next are the next n bytes, to be written or read.
func (w *wire) next(n int) []byte {
	if !w.reads {
		w.b = append(w.b, make([]byte, n)...)
		return w.b[len(w.b)-n:]
	}
	if w.bad = w.bad || n > len(w.b); w.bad {
		w.b = nil
		return make([]byte, n)
	}
	part := w.b[:n]
	w.b = w.b[n:]
	return part
}

// numbers are fields of their own size, the highest byte first.
func numbers[T ~uint8 | ~uint16 | ~uint32 | ~uint64](w *wire, fields ...*T) {
	for _, v := range fields {
		b := w.next(binary.Size(*v))
		for i := range b {
			if shift := 8 * (len(b) - 1 - i); w.reads {
				*v = *v&^(0xff<<shift) | T(b[i])<<shift
			} else {
				b[i] = byte(*v >> shift)
			}
		}
	}
}

// text is behind its length, 2 bytes.
func (w *wire) text(s *string) {
	n := uint16(len(*s))
	numbers(w, &n)
	if b := w.next(int(n)); w.reads {
		*s = string(b)
	} else {
		copy(b, *s)
	}
}

func (w *wire) bool(v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	numbers(w, &b)
	*v = b != 0
}

// end says whether everything was there, and nothing else.
func (w *wire) end() error {
	if w.bad || len(w.b) > 0 {
		return errNotAPeer
	}
	return nil
}

var errNotAPeer = errors.New("the other side does not speak the root peer protocol")

func (h hello) append(b []byte) []byte {
	w := wire{b: append(b, magic...)}
	numbers(&w, &h.speaks.max, &h.speaks.min)
	h.fields(&w)
	return w.b
}

// fields are what follows the versions.
func (h *hello) fields(w *wire) {
	numbers(w, &h.level)
	numbers(w, &h.purpose)
	numbers(w, &h.from, &h.to, &h.cluster, &h.fromIncarnation, &h.toIncarnation, &h.peerMap)
	w.text(&h.address)
	w.text(&h.transport)
	c := &h.claim
	numbers(w, &c.Count)
	n := uint16(len(c.Nonces))
	numbers(w, &n)
	for i := 0; i < int(n) && !w.bad; i++ {
		if w.reads {
			c.Nonces = append(c.Nonces, 0)
		}
		numbers(w, &c.Nonces[i])
	}
	numbers(w, &c.Term, &c.Vote, &c.Last)
}

// promise is four numbers.
func (w *wire) promise(p *freshness.Promise) { numbers(w, &p.Term, &p.Vote, &p.Index, &p.IndexTerm) }

// parseHello reads a hello. Without a version in common only the versions are known.
func parseHello(b []byte, mine versions) (h hello, err error) {
	w := wire{b: b, reads: true}
	if string(w.next(len(magic))) != magic {
		return h, errNotAPeer
	}
	numbers(&w, &h.speaks.max, &h.speaks.min)
	switch {
	case w.bad:
		return h, errNotAPeer
	case mine.common(h.speaks) == 0:
		return h, nil
	}
	h.fields(&w)
	if h.speaks.max > mine.max && !w.bad {
		w.b = nil // What a later version appends.
	}
	return h, w.end()
}

func (w welcome) append(b []byte) []byte {
	out := wire{b: b}
	w.fields(&out)
	return out.b
}

func parseWelcome(b []byte) (w welcome, err error) {
	in := wire{b: b, reads: true}
	w.fields(&in)
	return w, in.end()
}

func (w *welcome) fields(on *wire) {
	numbers(on, &w.version)
	numbers(on, &w.level)
	numbers(on, &w.node, &w.incarnation, &w.cluster, &w.peerMap)
	on.text(&w.address)
	on.bool(&w.founders)
	on.bool(&w.replaced)
	n := uint16(len(w.members))
	numbers(on, &n)
	for i := 0; i < int(n) && !on.bad; i++ {
		if on.reads {
			w.members = append(w.members, storage.Peer{})
		}
		m := &w.members[i]
		numbers(on, &m.NodeID, &m.Incarnation)
		on.text(&m.Address)
	}
	on.promise(&w.before)
}

// counted says whether a member lists a workdir.
func (w welcome) counted(node, incarnation uint64) bool {
	return slices.ContainsFunc(w.members, func(m storage.Peer) bool { return m.NodeID == node && m.Incarnation == incarnation })
}

// toStranger is what a caller is told that is no member: whether its node id is free, and whom
// else to ask. Whoever knows the cluster and this workdir can speak as a peer.
func (w welcome) toStranger() welcome {
	w.incarnation, w.peerMap, w.cluster = 0, 0, digest(w.cluster)
	w.members = slices.Clone(w.members)
	for i := range w.members {
		w.members[i].Incarnation = 0
	}
	return w
}

// digest tells clusters apart without naming them.
func digest(cluster uint64) uint64 {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("cluster "), cluster))
	return binary.BigEndian.Uint64(sum[:])
}

// peerMapHash is equal for two processes that were given the same peers.
func peerMapHash(peers []storage.Peer) uint64 {
	sorted := sortedPeers(peers)
	h := fnv.New64a()
	for _, p := range sorted {
		fmt.Fprintf(h, "%d=%s\n", p.NodeID, p.Address)
	}
	return h.Sum64()
}

func sortedPeers(peers []storage.Peer) []storage.Peer {
	sorted := slices.Clone(peers)
	slices.SortFunc(sorted, func(a, b storage.Peer) int { return cmp.Compare(a.NodeID, b.NodeID) })
	return sorted
}

// RefusedError says that the other peer, or this one, refuses to talk. Nothing
// but another configuration or another workdir helps.
type RefusedError struct {
	// Peer is the node id at the other end as this side believes; 0: not known.
	Peer uint64
	// Why names both sides and what differs.
	Why string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Why }

// ReplacedError says that this peer is none any more. Nothing but its end helps.
type ReplacedError struct {
	// Node is this peer, Why what became of it.
	Node uint64
	Why  string
}

// Error implements error.
func (e *ReplacedError) Error() string {
	return fmt.Sprintf("this root peer, %d, is none any more (%s): keep its workdir from being started; a new root peer takes an empty workdir and a node id that was never used", e.Node, e.Why)
}

// TooOldError says that the cluster has what this peer does not understand. Nothing
// but a newer version helps.
type TooOldError struct {
	// Node is this peer, Why what it lacks.
	Node uint64
	Why  string
}

// Error implements error.
func (e *TooOldError) Error() string {
	return fmt.Sprintf("this root peer, %d, is too old for its cluster: %s", e.Node, e.Why)
}

// tooOld says why a peer of a level is refused; empty: it is not.
func tooOld(peer uint64, level uint32, c *rootv1.Cluster) string {
	if level = max(level, 1); level >= c.GetFeatureLevel() {
		return ""
	}
	return fmt.Sprintf("root peer %d understands feature level %d, the cluster is at %d: start it with a newer version", peer, level, c.GetFeatureLevel())
}

// A refusal is logged again after refusalEvery, and at most maxRefusals different
// ones in that time: whoever is refused tries again at once.
const (
	refusalEvery = 30 * time.Second
	maxRefusals  = 100
)

// refusalLog has the refusals that were logged lately.
type refusalLog struct {
	mu sync.Mutex
	at map[string]time.Time // guarded by mu
}

// first says whether a refusal is to be logged now, and takes it for logged.
func (r *refusalLog) first(why string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = map[string]time.Time{}
	}
	at, known := r.at[why]
	if known && time.Since(at) < refusalEvery {
		return false
	}
	if !known && len(r.at) >= maxRefusals {
		maps.DeleteFunc(r.at, func(_ string, at time.Time) bool { return time.Since(at) >= refusalEvery })
		if len(r.at) >= maxRefusals {
			return false
		}
	}
	r.at[why] = time.Now()
	return true
}

// party is one end of a handshake in a sentence.
func party(node, cluster, incarnation uint64) string {
	return fmt.Sprintf("root peer %d (cluster %016x, workdir %016x)", node, cluster, incarnation)
}

// judgeCommon says why any peer refuses a hello; empty: it does not. former are
// the clusters that this one was restored from.
func judgeCommon(h hello, me storage.Identity, former []uint64) string {
	mine := party(me.NodeID, me.ClusterID, me.Incarnation)
	theirs := party(h.from, h.cluster, h.fromIncarnation)
	if h.to != me.NodeID {
		return fmt.Sprintf("%s was dialed by %s as root peer %d: check the addresses of both", mine, theirs, h.to)
	}
	if slices.Contains(former, h.cluster) {
		return fmt.Sprintf("%s was restored from a backup; %s is of the cluster before the restore: stop it, and keep its workdir from being started", mine, theirs)
	}
	if h.cluster != 0 && me.ClusterID != 0 && h.cluster != me.ClusterID {
		return fmt.Sprintf("%s and %s belong to different clusters", mine, theirs)
	}
	return ""
}

// judgeFounder says why a peer that founds a cluster refuses a hello for that. Founders
// understand the same: the cluster begins at that feature level.
func judgeFounder(h hello, me storage.Identity, level uint32) string {
	if max(h.level, 1) != max(level, 1) {
		return fmt.Sprintf("root peer %d understands feature level %d and root peer %d level %d: start all peers of a new cluster with the same version", me.NodeID, max(level, 1), h.from, max(h.level, 1))
	}
	mine, theirs := party(me.NodeID, me.ClusterID, me.Incarnation), party(h.from, h.cluster, h.fromIncarnation)
	if want := peerMapHash(me.Peers); h.peerMap != want {
		return fmt.Sprintf("%s and %s were given different peers (%016x, %016x): their -peer lists must be the same", mine, theirs, want, h.peerMap)
	}
	for _, p := range me.Peers {
		if p.NodeID == h.from && p.NodeID != me.NodeID {
			return ""
		}
	}
	return fmt.Sprintf("%s has no other peer %d: %s", mine, h.from, theirs)
}

// greet says hello on a connection that this side opened, and reads the answer.
func greet(conn net.Conn, h hello, timeout time.Duration) (welcome, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return welcome{}, err
	}
	if _, err := conn.Write(appendFrame(nil, kindHello, h.append(nil))); err != nil {
		return welcome{}, fmt.Errorf("say hello: %w", err)
	}
	k, payload, err := newFrameReader(io.LimitReader(conn, headerBytes+maxHelloBytes), 0).next()
	if err != nil {
		return welcome{}, fmt.Errorf("read the answer to a hello: %w", err)
	}
	switch k {
	case kindRefusal:
		return welcome{}, &RefusedError{Peer: h.to, Why: fmt.Sprintf("root peer %d refuses %s: %s", h.to, party(h.from, h.cluster, h.fromIncarnation), payload)}
	case kindReplaced:
		return welcome{}, &ReplacedError{Node: h.from, Why: string(payload)}
	case kindTooOld:
		return welcome{}, &TooOldError{Node: h.from, Why: string(payload)}
	case kindStale:
		return welcome{}, &freshness.StaleError{Node: h.from, Why: fmt.Sprintf("root peer %d says: %s", h.to, payload)}
	case kindNotYet:
		return welcome{}, fmt.Errorf("root peer %d puts this one off: %s", h.to, payload)
	case kindWelcome:
		w, err := parseWelcome(payload)
		if err != nil || w.version != h.speaks.common(versions{w.version, w.version}) {
			return welcome{}, errNotAPeer
		}
		return w, conn.SetDeadline(time.Time{})
	}
	return welcome{}, errNotAPeer
}

// hear reads the hello on a connection that was accepted. The deadline covers
// the whole handshake and stays set.
func hear(conn net.Conn, mine versions, timeout time.Duration) (hello, *frameReader, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return hello{}, nil, err
	}
	frames := newFrameReader(conn, kindHello)
	_, payload, err := frames.next()
	if err != nil {
		return hello{}, nil, fmt.Errorf("read a hello: %w", err)
	}
	frames.only = 0
	h, err := parseHello(payload, mine)
	return h, frames, err
}

// refused is all that a caller is told who is refused: the reason would tell a
// stranger who this peer is.
const refused = "the reason is in its log"

// otherPeers is what a caller is told who wants to found a cluster with other peers. It
// says nothing of who they are.
const otherPeers = "it was given another list of peers: the -peer lists must be the same"

// refuseVersion refuses a caller that speaks no version of mine.
func refuseVersion(conn net.Conn, mine versions, h hello) error {
	if mine.common(h.speaks) != 0 {
		return nil
	}
	why := fmt.Sprintf("it speaks %s, the caller %s", mine, h.speaks)
	refuse(conn, kindRefusal, why)
	return errors.New(why)
}

// refuse answers a hello with something else than a welcome.
func refuse(conn net.Conn, k kind, why string) {
	// The connection is closed next either way; who dialed then has no reason.
	_, _ = conn.Write(appendFrame(nil, k, []byte(why[:min(len(why), maxHelloBytes)])))
}

// checkWelcome says why a member that dialed refuses who answered.
func checkWelcome(w welcome, h hello) error {
	if w.node == h.to && w.cluster == h.cluster && w.incarnation == h.toIncarnation {
		return nil
	}
	return &RefusedError{Peer: h.to, Why: fmt.Sprintf("%s dialed root peer %d with workdir %016x and reached %s",
		party(h.from, h.cluster, h.fromIncarnation), h.to, h.toIncarnation, party(w.node, w.cluster, w.incarnation))}
}
