package transport

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"time"

	"github.com/nokv/nokv/meta/root/storage"
)

// Version is the protocol version; peers of different versions refuse each other.
const Version = 2

const magic = "NoKVroot"

// purpose is what a connection is for.
type purpose byte

const (
	forMessages   purpose = 1
	forCheckpoint purpose = 2
	forBootstrap  purpose = 3
)

// hello is what the dialing side says of itself and expects of the other.
type hello struct {
	version  uint16
	purpose  purpose
	from, to uint64 // node ids
	cluster  uint64 // 0: bootstrap is pending
	// fromIncarnation is the sender's workdir, toIncarnation the one it expects
	// at the other end; 0 in a bootstrap hello.
	fromIncarnation, toIncarnation uint64
	peerMap                        uint64 // hash of the peers it was given
	address                        string // its gRPC address
}

// welcome is how the accepting side says who it is.
type welcome struct {
	node, incarnation uint64
	cluster           uint64 // 0: bootstrap is pending
	peerMap           uint64
	address           string // its gRPC address
	// members are the incarnations that a member knows; empty when pending.
	members []storage.Peer
}

func (h hello) append(b []byte) []byte {
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, h.version)
	b = append(b, byte(h.purpose))
	for _, v := range []uint64{h.from, h.to, h.cluster, h.fromIncarnation, h.toIncarnation, h.peerMap} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return append(b, h.address...)
}

var errNotAPeer = errors.New("the other side does not speak the root peer protocol")

// parseHello reads a hello. Of another version only the version is known.
func parseHello(b []byte) (h hello, err error) {
	const fixed = len(magic) + 3 + 6*8
	if len(b) < len(magic)+2 || string(b[:len(magic)]) != magic {
		return h, errNotAPeer
	}
	b = b[len(magic):]
	h.version = binary.BigEndian.Uint16(b)
	if h.version != Version {
		return h, nil
	}
	if len(b) < fixed-len(magic) {
		return h, errNotAPeer
	}
	h.purpose = purpose(b[2])
	b = b[3:]
	for _, v := range []*uint64{&h.from, &h.to, &h.cluster, &h.fromIncarnation, &h.toIncarnation, &h.peerMap} {
		*v = binary.BigEndian.Uint64(b)
		b = b[8:]
	}
	h.address = string(b)
	return h, nil
}

func (w welcome) append(b []byte) []byte {
	for _, v := range []uint64{w.node, w.incarnation, w.cluster, w.peerMap, uint64(len(w.members))} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	for _, m := range w.members {
		b = binary.BigEndian.AppendUint64(b, m.NodeID)
		b = binary.BigEndian.AppendUint64(b, m.Incarnation)
	}
	return append(b, w.address...)
}

func parseWelcome(b []byte) (w welcome, err error) {
	if len(b) < 5*8 {
		return w, errNotAPeer
	}
	var members uint64
	for _, v := range []*uint64{&w.node, &w.incarnation, &w.cluster, &w.peerMap, &members} {
		*v = binary.BigEndian.Uint64(b)
		b = b[8:]
	}
	if members > uint64(len(b)/16) {
		return w, errNotAPeer
	}
	for range members {
		w.members = append(w.members, storage.Peer{NodeID: binary.BigEndian.Uint64(b), Incarnation: binary.BigEndian.Uint64(b[8:])})
		b = b[16:]
	}
	w.address = string(b)
	return w, nil
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

// party is one end of a handshake in a sentence.
func party(node, cluster, incarnation uint64) string {
	return fmt.Sprintf("root peer %d (cluster %016x, workdir %016x)", node, cluster, incarnation)
}

// judgeCommon says why any peer refuses a hello; empty: it does not.
func judgeCommon(h hello, me storage.Identity) string {
	mine := party(me.NodeID, me.ClusterID, me.Incarnation)
	if h.version != Version {
		return fmt.Sprintf("%s speaks protocol version %d, the caller version %d", mine, Version, h.version)
	}
	theirs := party(h.from, h.cluster, h.fromIncarnation)
	if h.to != me.NodeID {
		return fmt.Sprintf("%s was dialed by %s as root peer %d: check the addresses of both", mine, theirs, h.to)
	}
	if slices.Contains(me.Former, h.cluster) {
		return fmt.Sprintf("%s was restored from a backup; %s is of the cluster before the restore: stop it, and keep its workdir from being started", mine, theirs)
	}
	if h.cluster != 0 && me.ClusterID != 0 && h.cluster != me.ClusterID {
		return fmt.Sprintf("%s and %s belong to different clusters", mine, theirs)
	}
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

// judge says why a member refuses a hello; empty: it does not.
func judge(h hello, me storage.Identity) string {
	if why := judgeCommon(h, me); why != "" || h.purpose == forBootstrap {
		return why
	}
	mine := party(me.NodeID, me.ClusterID, me.Incarnation)
	theirs := party(h.from, h.cluster, h.fromIncarnation)
	if h.cluster != me.ClusterID { // One of them has none yet.
		return fmt.Sprintf("%s and %s belong to different clusters", mine, theirs)
	}
	if h.toIncarnation != me.Incarnation {
		return fmt.Sprintf("%s is not the workdir %016x that %s knows as root peer %d", mine, h.toIncarnation, theirs, h.to)
	}
	if known := incarnationOf(me, h.from); known != h.fromIncarnation {
		return fmt.Sprintf("%s knows root peer %d by workdir %016x, not as %s: the workdir was wiped or swapped", mine, h.from, known, theirs)
	}
	return ""
}

// incarnationOf is the workdir that a member knows a node by.
func incarnationOf(me storage.Identity, node uint64) uint64 {
	for _, p := range me.Peers {
		if p.NodeID == node {
			return p.Incarnation
		}
	}
	return 0
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
		return welcome{}, &RefusedError{Peer: h.to, Why: string(payload)}
	case kindNotYet:
		return welcome{}, errors.New(string(payload))
	case kindWelcome:
		w, err := parseWelcome(payload)
		if err != nil {
			return welcome{}, err
		}
		return w, conn.SetDeadline(time.Time{})
	}
	return welcome{}, errNotAPeer
}

// hear reads the hello on a connection that was accepted. The deadline covers
// the whole handshake and stays set.
func hear(conn net.Conn, timeout time.Duration) (hello, *frameReader, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return hello{}, nil, err
	}
	frames := newFrameReader(conn, kindHello)
	_, payload, err := frames.next()
	if err != nil {
		return hello{}, nil, fmt.Errorf("read a hello: %w", err)
	}
	frames.only = 0
	h, err := parseHello(payload)
	return h, frames, err
}

// refuse answers a hello with a reason.
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
