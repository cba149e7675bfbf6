package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/nokv/nokv/coordinator/claims"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Claims makes the regions of keys while this coordinator holds the Tenure, and refuses
// with REASON_TENURE_NOT_HELD otherwise. It is filled by *claims.Desk.
type Claims interface {
	// Claim has one answer for each key. It waits within ctx.
	Claim(ctx context.Context, keyspace state.KeyspaceID, keys [][]byte, why string) []claims.Answer
}

// MaxClaimBytes is the most bytes that the keys of one claim take together.
const MaxClaimBytes = 1 << 20

// ClaimRegions implements coordinatorv1.CoordinatorServer. What is there is answered from
// the view; the rest is claimed.
func (s *Server) ClaimRegions(ctx context.Context, req *coordinatorv1.ClaimRegionsRequest) (*coordinatorv1.ClaimRegionsResponse, error) {
	if err := checkClaim(req); err != nil {
		return nil, err
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	if err := v.mayClaim(ctx, req.GetKeyspace()); err != nil {
		return nil, err
	}
	k, err := v.keyspace(req.GetKeyspace())
	if err != nil {
		return nil, err
	}
	if !s.holds(v.view) {
		return nil, reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "another coordinator makes regions")
	}
	id := state.KeyspaceID(k.GetId())
	if k.GetSettings().GetLayout().GetPoints() == nil {
		return nil, v.atToken(claims.Claimable(v.state, id))
	}
	resp := &coordinatorv1.ClaimRegionsResponse{Regions: make([]*coordinatorv1.ClaimedRegion, len(req.GetKeys()))}
	var missing [][]byte
	var places []int
	for i, key := range req.GetKeys() {
		r := v.state.RegionAt(id, string(key))
		if r == nil || r.Start != string(key) {
			missing, places = append(missing, key), append(places, i)
			continue
		}
		resp.Regions[i] = &coordinatorv1.ClaimedRegion{Region: r.Proto(), Token: v.view.Token.Proto()}
	}
	if len(missing) > 0 {
		made, err := s.claim(ctx, id, missing)
		if err != nil {
			return nil, err
		}
		for i, one := range made {
			resp.Regions[places[i]] = one
		}
	}
	if err := v.complete(ctx, resp); err != nil {
		return nil, err
	}
	resp.Disclosure = v.disclosure()
	return resp, nil
}

func checkClaim(req *coordinatorv1.ClaimRegionsRequest) error {
	n, bytes := len(req.GetKeys()), 0
	switch {
	case n == 0:
		return invalid("keys", "there is none")
	case n > MaxKeys:
		return invalidLimit("keys", uint64(n), MaxKeys)
	}
	for i, key := range req.GetKeys() {
		if len(key) == 0 || len(key) > MaxKeyBytes {
			return checkKey(fmt.Sprintf("keys[%d]", i), key)
		}
		bytes += len(key)
	}
	if bytes > MaxClaimBytes {
		return invalidLimit("keys", uint64(bytes), MaxClaimBytes)
	}
	return checkKeyspace(req.GetKeyspace())
}

// mayClaim refuses a caller whom the grants keep from claiming: by what is rooted now, as
// the view may be behind what its caller knows.
func (v *served) mayClaim(ctx context.Context, keyspace string) error {
	gate := v.server.cfg.Access
	if gate.May(ctx, v.state, rootv1.Verb_VERB_CLAIM, keyspace) == nil {
		return nil
	}
	now, err := v.server.strong(ctx)
	if err != nil {
		return err
	}
	*v = now
	err = gate.May(ctx, v.state, rootv1.Verb_VERB_CLAIM, keyspace)
	if err != nil && v.mayRead(ctx, keyspace) != nil { // names would tell what others have
		return v.mayRead(ctx, keyspace)
	}
	return err
}

// claim claims keys that have no region in the view. What ails the call and no key in
// itself, such as that another coordinator holds the Tenure, refuses all of it: it is
// repeated there, and finds what was made.
func (s *Server) claim(ctx context.Context, id state.KeyspaceID, keys [][]byte) ([]*coordinatorv1.ClaimedRegion, error) {
	if s.cfg.Claims == nil {
		return nil, reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "this coordinator makes no regions")
	}
	who := places.Of(ctx)
	if err := s.changes.Enter(who); err != nil {
		return nil, err
	}
	defer s.changes.Leave(who)
	ctx, cancel := s.patient(ctx)
	defer cancel()
	made := make([]*coordinatorv1.ClaimedRegion, len(keys))
	for i, a := range s.cfg.Claims.Claim(ctx, id, keys, claimWords(ctx)) {
		switch reason.Of(a.Err) {
		case rootv1.Reason_REASON_TENURE_NOT_HELD, rootv1.Reason_REASON_OUTCOME_UNKNOWN, rootv1.Reason_REASON_OVERLOADED, rootv1.Reason_REASON_ROOT_UNAVAILABLE:
			return nil, a.Err
		}
		if a.Err != nil {
			made[i] = &coordinatorv1.ClaimedRegion{Error: s.detail(a.Err)}
			continue
		}
		made[i] = &coordinatorv1.ClaimedRegion{Region: a.Region, Made: a.Made, Token: a.Token.Proto()}
	}
	return made, nil
}

// claimWords say in the log why a region was made: by whom, and in whose words.
func claimWords(ctx context.Context) string {
	text := "first touch"
	if actor := principal.FromContext(ctx).Actor(); actor != "" {
		text += " by " + actor
	}
	if said := why.Of(ctx); said != "" {
		text += ": " + said
	}
	return oneline.Within(state.MaxWhyBytes, text)
}

// answerBytes is what a region has in an answer beside itself.
const answerBytes = 64

var errLongClaim = reason.New(rootv1.Reason_REASON_OVERLOADED, "the answer would be too long with this region: claim its key by another call")

// complete says of an answer's regions who owns them, and whether anybody does. Who owns
// what somebody else made may be newer than the view.
func (v *served) complete(ctx context.Context, resp *coordinatorv1.ClaimRegionsResponse) error {
	for _, one := range resp.GetRegions() {
		for _, o := range one.GetRegion().GetOwners() {
			if m := v.state.Member(state.MemberID(o.GetMemberId())); m.GetIncarnation() >= o.GetIncarnation() {
				continue
			}
			newer, err := v.server.serve(ctx, &coordinatorv1.ReadOptions{RequiredRootToken: one.GetToken()})
			if err != nil {
				return err
			}
			v.view, v.state = newer.view, newer.state
		}
	}
	told, bytes := map[string]struct{}{}, 0
	for i, one := range resp.GetRegions() {
		if one.GetError() != nil {
			continue
		}
		if bytes += proto.Size(one.GetRegion()) + answerBytes; bytes > MaxReplyBytes && i > 0 {
			resp.Regions[i] = &coordinatorv1.ClaimedRegion{Error: errLongClaim.Detail}
			continue
		}
		owners := one.GetRegion().GetOwners()
		one.Orphaned = !slices.ContainsFunc(owners, func(o *rootv1.Owner) bool {
			return v.state.Acts(state.Owner{Member: state.MemberID(o.GetMemberId()), Incarnation: o.GetIncarnation()})
		})
		for _, o := range owners {
			if _, known := told[o.GetMemberId()]; known {
				continue
			}
			told[o.GetMemberId()] = struct{}{}
			m := v.state.Member(state.MemberID(o.GetMemberId()))
			resp.Owners = append(resp.Owners, &coordinatorv1.OwnerAddress{
				MemberId: o.GetMemberId(), Address: m.GetAddress(), State: m.GetState(), Incarnation: m.GetIncarnation(),
			})
		}
	}
	return nil
}
