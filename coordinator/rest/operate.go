package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// operation is what several calls are made for.
type operation struct {
	route
	summary string
	// fields of the body, for the document: name, type, and what it is.
	fields [][3]string
	do     func(*Handler) doing
}

// operations are what the requirements have names for and no one call does.
var operations = []operation{
	{route{"GET", "/api/coordinator/metrics", "metrics"}, "Load and health of members, how load was evened out lately, and how many members keyspaces want.", nil, (*Handler).metrics},
	{route{"POST", "/api/coordinator/rebalance", "rebalance"}, "Evens out now what the planner would: a Plan, and ApplyPlan of it.", [][3]string{
		{"keyspace", "string", "Name; empty: all assigned keyspaces."},
	}, (*Handler).rebalance},
	{route{"POST", "/api/coordinator/failover/{instanceId}", "failover"}, "The verdict that a process of a member is dead.", [][3]string{
		{"incarnation", "integer", "Process that is meant; needed, so that a repetition does not hit the next one."},
		{"reason", "string", "Why, for people."},
	}, (*Handler).failover},
	{route{"POST", "/api/coordinator/scale-up", "scale-up"}, "At least so many members for a keyspace whose scaling is enabled: its scaling.min_members, and max_members if that is below.", [][3]string{
		{"keyspace", "string", "Name; needed."}, {"members", "integer", "How many; needed."},
	}, (*Handler).scaleUp},
	{route{"POST", "/api/coordinator/scale-down", "scale-down"}, "At most so many members for a keyspace whose scaling is enabled: its scaling.max_members, and min_members if that is above; and, or, one member is drained.", [][3]string{
		{"keyspace", "string", "Name; needed with members."},
		{"members", "integer", "How many."},
		{"member_id", "string", "Member that is to end: it gives away what it has."},
		{"incarnation", "integer", "Process of it; 0: the current one."},
	}, (*Handler).scaleDown},
}

// ask makes a call of the service.
func ask[R any, P interface {
	*R
	proto.Message
}](ctx context.Context, a *asked, method string, req proto.Message) (P, error) {
	answer := P(new(R))
	return answer, a.conn.Invoke(ctx, "/nokv.coordinator.v1.Coordinator/"+method, req, answer)
}

// object writes an answer of several messages, by their names.
func (h *Handler) object(w http.ResponseWriter, a *asked, fields map[string]any) error {
	out := map[string]json.RawMessage{}
	size := 0
	for _, v := range fields {
		if m, ok := v.(proto.Message); ok {
			size += proto.Size(m) * answerCost
		}
	}
	if err := a.out.Take(size); err != nil {
		return err
	}
	defer a.out.Give(size)
	for name, v := range fields {
		var err error
		if m, ok := v.(proto.Message); ok {
			out[name], err = encode(m)
		} else {
			out[name], err = json.Marshal(v)
		}
		if err != nil {
			return err
		}
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(raw, '\n'))
	return nil
}

// metrics: a page of members; what comes behind it is asked for by ?after=ID.
func (h *Handler) metrics() doing {
	members := find("ListMembers")
	return func(w http.ResponseWriter, r *http.Request, a *asked) error {
		req, err := members.read(r, nil)
		if err != nil {
			return err
		}
		list, err := ask[coordinatorv1.ListMembersResponse](r.Context(), a, "ListMembers", req)
		if err != nil {
			return err
		}
		said, err := ask[coordinatorv1.StatusResponse](r.Context(), a, "Status", &coordinatorv1.StatusRequest{})
		if err != nil {
			return err
		}
		// What of it is not about load is left out.
		return h.object(w, a, map[string]any{"instances": list, "load": &coordinatorv1.StatusResponse{
			CoordinatorId: said.GetCoordinatorId(), Disclosure: said.GetDisclosure(), ServingAuthority: said.GetServingAuthority(),
			Keyspaces: said.GetKeyspaces(), Regions: said.GetRegions(), Members: said.GetMembers(), OrphanedRegions: said.GetOrphanedRegions(), AssignedRegions: said.GetAssignedRegions(),
			MembersActive: said.GetMembersActive(), MembersDraining: said.GetMembersDraining(), MembersFailed: said.GetMembersFailed(), MembersSuspected: said.GetMembersSuspected(),
			Rounds: said.GetRounds(), Scaling: said.GetScaling(), Stuck: said.GetStuck(),
		}})
	}
}

// find is the route of a method.
func find(method string) *call {
	for _, c := range calls() {
		if c.method == method && len(c.fields) == 0 {
			return c
		}
	}
	panic("rest: there is no route of " + method)
}

func (h *Handler) rebalance() doing {
	return func(w http.ResponseWriter, r *http.Request, a *asked) error {
		var keyspace string
		if err := own(r, a, map[string]any{"keyspace": &keyspace}); err != nil {
			return err
		}
		plan, err := ask[coordinatorv1.PlanResponse](r.Context(), a, "Plan", &coordinatorv1.PlanRequest{Keyspace: keyspace, Limit: 1, MemberLimit: 1})
		if err != nil {
			return err
		}
		if plan.GetPlanId() == "" {
			return h.object(w, a, map[string]any{"operations": 0, "not_applicable": cmp.Or(plan.GetNotApplicable(), "there is nothing to even out")})
		}
		done, err := ask[coordinatorv1.ApplyPlanResponse](r.Context(), a, "ApplyPlan", &coordinatorv1.ApplyPlanRequest{PlanId: plan.GetPlanId()})
		if err != nil {
			return err
		}
		return h.object(w, a, map[string]any{"operations": done.GetOperations(), "plan_id": plan.GetPlanId(), "token": done.GetToken()})
	}
}

// own reads the body of an operation, which takes no parameters.
func own(r *http.Request, a *asked, fields map[string]any) error {
	if r.URL.RawQuery != "" {
		return bad("parameters: a POST has its fields in a JSON body")
	}
	return parseOwn(a.body, fields)
}

func (h *Handler) failover() doing {
	return func(w http.ResponseWriter, r *http.Request, a *asked) error {
		var (
			incarnation uint64
			reason      string
		)
		if err := own(r, a, map[string]any{"incarnation": &incarnation, "reason": &reason}); err != nil {
			return err
		}
		id := r.PathValue("instanceId")
		if incarnation == 0 {
			list, err := ask[coordinatorv1.ListMembersResponse](r.Context(), a, "ListMembers", &coordinatorv1.ListMembersRequest{MemberId: id})
			if err != nil {
				return err
			}
			for _, m := range list.GetMembers() {
				return bad("incarnation: the verdict is about one process; that of %.64q is %d now", id, m.GetMember().GetIncarnation())
			}
		}
		out, err := ask[coordinatorv1.FailMemberResponse](r.Context(), a, "FailMember", &coordinatorv1.FailMemberRequest{MemberId: id, Incarnation: incarnation, Reason: reason})
		if err != nil {
			return err
		}
		return h.answer(w, a, out)
	}
}

// scaled is the body of scale-up and scale-down.
type scaled struct {
	Keyspace    string
	Members     uint64
	MemberID    string
	Incarnation uint64
}

func (s *scaled) fields() map[string]any {
	return map[string]any{"keyspace": &s.Keyspace, "members": &s.Members, "member_id": &s.MemberID, "incarnation": &s.Incarnation}
}

func (h *Handler) scaleUp() doing {
	return func(w http.ResponseWriter, r *http.Request, a *asked) error {
		var in scaled
		if err := own(r, a, in.fields()); err != nil {
			return err
		}
		if in.MemberID != "" || in.Incarnation != 0 {
			return bad("member_id: only scale-down is about one member")
		}
		out, err := rescale(r.Context(), a, &in, func(s *rootv1.Scaling, n uint64) {
			s.MinMembers, s.MaxMembers = n, max(n, cmp.Or(s.GetMaxMembers(), defaultMaxMembers))
		})
		if err != nil {
			return err
		}
		return h.object(w, a, out)
	}
}

func (h *Handler) scaleDown() doing {
	return func(w http.ResponseWriter, r *http.Request, a *asked) error {
		var in scaled
		if err := own(r, a, in.fields()); err != nil {
			return err
		}
		if in.MemberID == "" && in.Members == 0 {
			return bad("member_id: say which member is to end, or with keyspace and members how many there are at most")
		}
		out := map[string]any{}
		if in.Members > 0 || in.Keyspace != "" {
			var err error
			out, err = rescale(r.Context(), a, &in, func(s *rootv1.Scaling, n uint64) {
				s.MaxMembers, s.MinMembers = n, min(n, cmp.Or(s.GetMinMembers(), defaultMinMembers))
			})
			if err != nil {
				return err
			}
		}
		if in.MemberID != "" {
			drained, err := ask[coordinatorv1.DrainMemberResponse](r.Context(), a, "DrainMember",
				&coordinatorv1.DrainMemberRequest{MemberId: in.MemberID, Incarnation: in.Incarnation, Reason: "scale-down"})
			if err != nil && out["changed"] == true {
				return half(err, "keyspace %.64q wants %d members at most from now on, but member %.64q was not drained", in.Keyspace, in.Members, in.MemberID)
			}
			if err != nil {
				return err
			}
			out["member"] = drained.GetMember()
		}
		return h.object(w, a, out)
	}
}

// half is the refusal of the second of two things, behind the first, which was done and stays.
func half(err error, format string, args ...any) error {
	p := *problemOf(err)
	p.detail = fmt.Sprintf(format, args...) + ": " + p.detail
	p.wayOut = "correct member_id and incarnation, and send it again: what was done is not done twice"
	return &p
}

// What 0 counts as in Scaling.
const (
	defaultMinMembers = 2
	defaultMaxMembers = 10
)

// rescale sets how many members a keyspace has at least, or at most. Asked for again it
// changes nothing.
func rescale(ctx context.Context, a *asked, in *scaled, to func(s *rootv1.Scaling, n uint64)) (map[string]any, error) {
	if in.Keyspace == "" || in.Members == 0 {
		return nil, bad("keyspace and members: both are needed")
	}
	k, err := ask[coordinatorv1.GetKeyspaceResponse](ctx, a, "GetKeyspace",
		&coordinatorv1.GetKeyspaceRequest{Name: in.Keyspace, Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}})
	if err != nil {
		return nil, err
	}
	settings := proto.CloneOf(k.GetKeyspace().GetSettings())
	scaling := settings.GetScaling()
	if !scaling.GetEnabled() {
		return nil, refuse(http.StatusConflict, "invalid_request", "enable settings.scaling of the keyspace first, or start and stop members yourself",
			"nobody is told how many members keyspace %.64q wants: its scaling is not enabled", in.Keyspace)
	}
	to(scaling, in.Members)
	out := map[string]any{"keyspace": k.GetKeyspace(), "changed": false}
	if proto.Equal(settings, k.GetKeyspace().GetSettings()) {
		return out, nil
	}
	done, err := ask[coordinatorv1.UpdateKeyspaceResponse](ctx, a, "UpdateKeyspace",
		&coordinatorv1.UpdateKeyspaceRequest{Name: in.Keyspace, ExpectedVersion: k.GetKeyspace().GetVersion(), Settings: settings})
	if err != nil {
		return nil, err
	}
	return map[string]any{"keyspace": done.GetKeyspace(), "token": done.GetToken(), "changed": true}, nil
}

// healthWithin bounds a look at the health.
const healthWithin = 2 * time.Second

// health says whether the coordinator serves, to everybody, and to those who may ask for
// its status what there is in the cluster.
func (h *Handler) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), healthWithin)
	defer cancel()
	out, code := map[string]any{"status": "ok"}, http.StatusOK
	if err := h.cfg.Healthy(ctx); err != nil {
		out["status"], out["detail"], code = "unavailable", err.Error(), http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	if s := h.status(r); s != nil {
		out["coordinator_id"], out["cluster"], out["epoch"], out["holder"] = s.GetCoordinatorId(), clusterid.String(s.GetCluster().GetClusterId()), s.GetDisclosure().GetEra(), s.GetServingAuthority()
		out["members_active"], out["members"], out["partitions"], out["partitions_without_owner"] = s.GetMembersActive(), s.GetMembers(), s.GetRegions(), s.GetOrphanedRegions()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	raw, _ := json.Marshal(out)
	_, _ = w.Write(append(raw, '\n'))
}

// status is what the coordinator says of itself; nil: not to this caller.
func (h *Handler) status(r *http.Request) *coordinatorv1.StatusResponse {
	p, err := h.cfg.Caller(r)
	if err != nil || h.cfg.Secure && !p.Known() {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), healthWithin)
	defer cancel()
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	conn, done, err := h.cfg.As(p, host)
	if err != nil {
		return nil
	}
	defer done()
	s, err := ask[coordinatorv1.StatusResponse](ctx, &asked{conn: conn}, "Status", &coordinatorv1.StatusRequest{})
	if err != nil {
		return nil
	}
	return s
}
