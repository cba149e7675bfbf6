package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/pin"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// PinKeys implements coordinatorv1.CoordinatorServer. A key of one keyspace opens the
// pins of no other.
func (s *Server) PinKeys(ctx context.Context, req *coordinatorv1.PinKeysRequest) (*coordinatorv1.PinKeysResponse, error) {
	v, keyspace, err := s.pinned(ctx, req.GetKeyspace(), req.GetRead())
	if err != nil {
		return nil, err
	}
	verb := rootv1.Verb_VERB_PUBLISH
	if principal.FromContext(ctx).Role == principal.Member {
		verb = rootv1.Verb_VERB_HOST
	}
	if s.cfg.Access != nil { // a grant that was taken back somewhere gives no key
		if v, err = s.strong(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.cfg.Access.May(ctx, v.state, verb, req.GetKeyspace()); err != nil {
		return nil, v.atToken(err)
	}
	keys, err := s.pinKeys(v.state, keyspace)
	if err != nil {
		return nil, v.atToken(err)
	}
	cluster := v.state.Cluster().GetClusterId()
	resp := &coordinatorv1.PinKeysResponse{ClusterId: cluster, KeyspaceId: keyspace.GetId(), Disclosure: v.disclosure()}
	for _, k := range keys {
		resp.Keys = append(resp.Keys, &coordinatorv1.KeyspacePinKey{Id: k.ID, Secret: k.Secret[:]})
	}
	return resp, nil
}

// ResolvePin implements coordinatorv1.CoordinatorServer. Nothing is kept of a pin: what it
// says is judged by the members that there are.
func (s *Server) ResolvePin(ctx context.Context, req *coordinatorv1.ResolvePinRequest) (*coordinatorv1.ResolvePinResponse, error) {
	v, keyspace, err := s.pinned(ctx, req.GetKeyspace(), req.GetRead())
	if err != nil {
		return nil, err
	}
	p, err := s.openPin(v.state, keyspace, req.GetPin())
	m := v.state.Member(state.MemberID(p.Member))
	// Who made it may have heard of its key, or its incarnation, before this process has.
	if no, ok := errors.AsType[*pin.Error](err); ok && no.Kind == pin.KeyUnknown || err == nil && (m == nil || m.GetIncarnation() < p.Incarnation) {
		if v, err = s.strong(ctx); err != nil {
			return nil, err
		}
		if keyspace, err = v.keyspace(req.GetKeyspace()); err != nil {
			return nil, err
		}
		p, err = s.openPin(v.state, keyspace, req.GetPin())
		m = v.state.Member(state.MemberID(p.Member))
	}
	if no, ok := errors.AsType[*pin.Error](err); ok {
		return nil, v.atToken(&reason.Error{Detail: no.Detail()})
	}
	if err != nil {
		return nil, v.atToken(err)
	}
	if !pin.Lives(m, p.Incarnation) {
		return nil, v.atToken(&reason.Error{Detail: pin.LostWith(p.Member).Detail()})
	}
	return &coordinatorv1.ResolvePinResponse{
		Owner:    &coordinatorv1.OwnerAddress{MemberId: m.GetId(), Address: m.GetAddress(), State: m.GetState(), Incarnation: m.GetIncarnation()},
		RegionId: uint64(p.Region), ExpiresUnixMillis: uint64(p.Expires.UnixMilli()), Disclosure: v.disclosure(),
	}, nil
}

// pinned is what a call about pins of a keyspace is served from.
func (s *Server) pinned(ctx context.Context, name string, read *coordinatorv1.ReadOptions) (v served, k *rootv1.Keyspace, err error) {
	if len(name) > state.MaxNameBytes {
		return v, nil, invalidLimit("keyspace", uint64(len(name)), state.MaxNameBytes)
	}
	if v, err = s.serve(ctx, read); err != nil {
		return v, nil, err
	}
	if err = v.mayRead(ctx, name); err != nil {
		return v, nil, err
	}
	k, err = v.keyspace(name)
	return v, k, err
}

// pinKeys are the keys of a keyspace, oldest first.
func (s *Server) pinKeys(st *state.State, k *rootv1.Keyspace) ([]pin.Key, error) {
	rooted := st.PinKeys()
	if len(rooted) == 0 {
		return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "%v", pin.ErrNoKey)
	}
	keys := make([]pin.Key, 0, len(rooted))
	for _, r := range rooted {
		key, err := s.pinKey(st, k, r)
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "coordinator %s: key %d of pins: %v", s.cfg.ID, r.GetId(), err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (s *Server) pinKey(st *state.State, k *rootv1.Keyspace, r *rootv1.PinKey) (pin.Key, error) {
	secret, err := s.cfg.Secret.Open(seal.Pins, r)
	if err != nil {
		return pin.Key{}, err
	}
	return pin.Derive(secret, st.Cluster().GetClusterId(), rooted.KeyspaceID(k.GetId()), r.GetId())
}

// openPin opens a pin by the keys of a keyspace.
func (s *Server) openPin(st *state.State, k *rootv1.Keyspace, text string) (pin.Pin, error) {
	now := time.UnixMilli(int64(s.cfg.Clock.Wall()))
	ring, err := s.pinRing(st, k, now)
	if err != nil {
		return pin.Pin{}, err
	}
	return ring.Open(text, now)
}

// maxPinRings bounds the keyspaces whose keys are ready for use.
const maxPinRings = 1024

// pinRings are keys that are ready for use, by keyspace.
type pinRings struct {
	mu sync.Mutex
	at map[uint32]pinRing // guarded by mu
}

// pinRing is a Ring that has learnt the newest key, which has a digest.
type pinRing struct {
	ring   *pin.Ring
	digest string
}

// pinRing is the keys of a keyspace, ready for use. What was replaced meanwhile opens on, as
// package pin has it.
func (s *Server) pinRing(st *state.State, k *rootv1.Keyspace, now time.Time) (*pin.Ring, error) {
	cluster, all := st.Cluster().GetClusterId(), st.PinKeys()
	var r pinRing
	if len(all) > 0 {
		newest := all[len(all)-1]
		s.pins.mu.Lock()
		r = s.pins.at[k.GetId()]
		s.pins.mu.Unlock()
		if r.ring != nil {
			of, _ := r.ring.Of()
			switch known := r.ring.Newest(); {
			case of != cluster:
				r.ring = nil
			case known > newest.GetId() || r.digest == string(newest.GetDigest()):
				return r.ring, nil
			case known == newest.GetId():
				r.ring = nil
			}
		}
	}
	keys, err := s.pinKeys(st, k)
	if err != nil {
		return nil, err
	}
	if r.ring == nil {
		r.ring = pin.NewRing(cluster, rooted.KeyspaceID(k.GetId()))
	}
	r.digest = string(all[len(all)-1].GetDigest())
	if err := r.ring.Learn(now, keys...); err != nil {
		return nil, err
	}
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	if s.pins.at == nil || len(s.pins.at) >= maxPinRings {
		s.pins.at = map[uint32]pinRing{}
	}
	s.pins.at[k.GetId()] = r
	return r.ring, nil
}
