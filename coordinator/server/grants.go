package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/bearer"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// EndTenure implements coordinatorv1.CoordinatorServer.
func (s *Server) EndTenure(ctx context.Context, req *coordinatorv1.EndTenureRequest) (*coordinatorv1.EndTenureResponse, error) {
	if req.GetEra() == 0 {
		return nil, invalid("era", "it is 0; say which era is meant, as Status shows it: by the time the call comes another may have begun")
	}
	if err := s.tooYoung(req.GetEra()); err != nil {
		return nil, err
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: req.GetEra()}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.EndTenureResponse{Tenure: made(result).GetTenure(), Token: result.GetToken()}, nil
}

// tooYoung refuses to end an era that has just begun: the holder of the one before may
// leave the Tenure to others still, and nobody would be left to serve. What was
// asked before is for the root to answer.
func (s *Server) tooYoung(era uint64) error {
	a := s.cfg.Authority.Status()
	left := a.TenureAt.Add(tenure.LeastEra).Sub(s.cfg.Clock.Now())
	if a.Tenure.GetEra() != era || a.Tenure.GetRetired() || a.Tenure.GetEnd() != nil || left <= 0 {
		return nil
	}
	e := reason.New(rootv1.Reason_REASON_OVERLOADED, "era %d has just begun: an era is ended %v after it began at the earliest, so that somebody serves", era, tenure.LeastEra)
	e.Detail.RetryAfterMillis = uint64(left/time.Millisecond) + 1
	return e
}

// GrantAccess implements coordinatorv1.CoordinatorServer.
func (s *Server) GrantAccess(ctx context.Context, req *coordinatorv1.GrantAccessRequest) (*coordinatorv1.GrantAccessResponse, error) {
	if s.cfg.Access == nil {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "coordinator %s has no certificates: nobody is known by name there, and grants would mean nothing; see nokv cert init", s.cfg.ID)
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: req.GetGrant()}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.GrantAccessResponse{
		Grant: made(result).GetGrant(), Token: result.GetToken(), Changed: changed(result), Hint: s.hint(ctx, req.GetGrant().GetKeyspace()),
	}, nil
}

// hint says what about a grant for one keyspace may be a slip, as far as that is known: a name that is
// nobody's, and owners that it has closed the keyspace to.
func (s *Server) hint(ctx context.Context, keyspace string) string {
	if strings.HasSuffix(keyspace, "*") {
		return ""
	}
	now, err := s.serve(ctx, &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG})
	if err != nil {
		return ""
	}
	k := now.state.KeyspaceByName(keyspace)
	if k == nil {
		return fmt.Sprintf("there is no keyspace %q yet", keyspace)
	}
	closed := 0
	now.state.Members(func(m *rootv1.Member) bool {
		id := state.MemberID(m.GetId())
		if now.state.MemberKeyspaceRegionCount(id, state.KeyspaceID(k.GetId())) > 0 && !now.state.Hosts(id, keyspace) {
			closed++
		}
		return true
	})
	if closed == 0 {
		return ""
	}
	return fmt.Sprintf("%d members that own regions there may not any more: let them by nokv access grant 'member/*' host '%s'", closed, keyspace)
}

// RevokeAccess implements coordinatorv1.CoordinatorServer. That there is nothing to
// take back is an answer.
func (s *Server) RevokeAccess(ctx context.Context, req *coordinatorv1.RevokeAccessRequest) (*coordinatorv1.RevokeAccessResponse, error) {
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{
		Principal: req.GetPrincipal(), Keyspace: req.GetKeyspace(), Verbs: req.GetVerbs(),
	}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RevokeAccessResponse{
		Grant: made(result).GetGrant(), Token: result.GetToken(), Changed: changed(result), Hint: s.reopened(ctx, req.GetKeyspace()),
	}, nil
}

// reopened says that whoever lost the last grant of a keyspace reads it as all others
// do, as far as that is known.
func (s *Server) reopened(ctx context.Context, keyspace string) string {
	now, err := s.serve(ctx, &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG})
	if err != nil || now.state.Access("client", "", rootv1.Verb_VERB_READ, strings.TrimSuffix(keyspace, "*")).Closed {
		return ""
	}
	return fmt.Sprintf("no grant names %q any more: every client may read and claim there, and every member own regions", keyspace)
}

// ListGrants implements coordinatorv1.CoordinatorServer. A page is named by the last
// grant before it.
func (s *Server) ListGrants(ctx context.Context, req *coordinatorv1.ListGrantsRequest) (*coordinatorv1.ListGrantsResponse, error) {
	limit, err := limitOf(req.GetLimit(), DefaultListLimit, MaxListLimit)
	if err != nil {
		return nil, err
	}
	keyspace, principal, whole := strings.Cut(req.GetPage(), " ")
	if req.GetPage() != "" && !whole {
		return nil, invalid("page", "it is %.64q: give the one that came with the page before", req.GetPage())
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	resp, bytes := &coordinatorv1.ListGrantsResponse{Disclosure: v.disclosure()}, 0
	v.state.Grants(principal, keyspace, func(g *rootv1.Grant) bool {
		if n := len(resp.Grants); n == limit || bytes > MaxReplyBytes {
			last := resp.Grants[n-1]
			resp.NextPage = last.GetKeyspace() + " " + last.GetPrincipal()
			return false
		}
		bytes += proto.Size(g)
		resp.Grants = append(resp.Grants, g)
		return true
	})
	return resp, nil
}

// nobody is a principal of CheckAccess: a caller whom nothing names.
const nobody = "nobody"

// CheckAccess implements coordinatorv1.CoordinatorServer.
func (s *Server) CheckAccess(ctx context.Context, req *coordinatorv1.CheckAccessRequest) (*coordinatorv1.CheckAccessResponse, error) {
	who := req.GetPrincipal()
	switch d := state.CheckPrincipal(who); {
	case req.GetBearerToken() != "" && who != "":
		return nil, invalid("bearer_token", "there is a principal too: say one of them")
	case req.GetBearerToken() == "" && who != nobody && (d != nil || strings.HasSuffix(who, "*")):
		return nil, invalid("principal", "%.64q is no ROLE/NAME of one principal", who)
	}
	if v := req.GetVerb(); v < rootv1.Verb_VERB_READ || v > rootv1.Verb_VERB_HOST {
		return nil, invalid("verb", "%d is none: read, claim, host, publish or admin", v)
	}
	if req.GetKeyspace() == "" || len(req.GetKeyspace()) > state.MaxNameBytes {
		return nil, invalid("keyspace", "it has %d bytes, a name has 1 to %d", len(req.GetKeyspace()), state.MaxNameBytes)
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	if req.GetBearerToken() != "" {
		p, err := bearer.Verify(req.GetBearerToken(), v.state, s.cfg.Secret)
		if err != nil {
			return &coordinatorv1.CheckAccessResponse{Why: err.Error(), Disclosure: v.disclosure()}, nil
		}
		who = p.Actor()
	}
	role, name, _ := strings.Cut(who, "/")
	a := v.state.Access(role, name, req.GetVerb(), req.GetKeyspace())
	if role == nobody { // as a client that no grant names, not even one for all clients
		role, a = "client", v.state.Access("client", "", req.GetVerb(), req.GetKeyspace())
		a.Allowed, a.Grant = a.Allowed && !a.Closed, nil
	}
	resp := &coordinatorv1.CheckAccessResponse{Allowed: a.Allowed, Grant: a.Grant, Why: whyAccess(role, req.GetVerb(), req.GetKeyspace(), a), Disclosure: v.disclosure()}
	if req.GetBearerToken() != "" {
		resp.Bearer = who
	}
	if p := principal.FromContext(ctx); p.Role == principal.Proxy { // which principals are granted what is for operators
		resp.Grant = nil
		if !v.state.Access("proxy", p.Name, rootv1.Verb_VERB_READ, req.GetKeyspace()).Allowed {
			resp.Allowed, resp.Why = false, p.Actor()+" itself may not read it"
		} else if resp.Allowed {
			resp.Why = ""
		}
	}
	return resp, nil
}

func whyAccess(role string, verb rootv1.Verb, keyspace string, a state.Access) string {
	switch {
	case a.Grant != nil:
		by, implies := verb, ""
		if verbs := a.Grant.GetVerbs(); !slices.Contains(verbs, verb) {
			by = verbs[len(verbs)-1] // ascending: publish, admin or host
			implies = ", which implies read"
		}
		word := strings.ToLower(strings.TrimPrefix(by.String(), "VERB_"))
		return fmt.Sprintf("%s is granted %s on %s%s", a.Grant.GetPrincipal(), word, a.Grant.GetKeyspace(), implies)
	case role != "client" && role != "proxy" && role != "member":
		return fmt.Sprintf("%ss need no grant", role)
	case a.Closed:
		return fmt.Sprintf("keyspace %s is closed to whom no grant names for this", keyspace)
	case a.Allowed:
		return fmt.Sprintf("no grant names keyspace %s: everybody may read and claim there, and members own regions", keyspace)
	}
	return fmt.Sprintf("no grant names keyspace %s: nobody but operators, and members for what they own, may change it", keyspace)
}
