package access

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/strangers"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var rewrite = flag.Bool("rewrite", false, "write the tables into the documents")

// services are all that the servers of a cluster register; that it is all of them
// their own tests find out.
var services = []protoreflect.FileDescriptor{
	rootv1.File_nokv_root_v1_root_proto, coordinatorv1.File_nokv_coordinator_v1_coordinator_proto, storev1.File_nokv_store_v1_store_proto, healthpb.File_grpc_health_v1_health_proto,
	reflectionpb.File_grpc_reflection_v1_reflection_proto, reflectionalphapb.File_grpc_reflection_v1alpha_reflection_proto,
}

func eachMethod(fn func(protoreflect.MethodDescriptor)) {
	for _, f := range services {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				fn(methods.Get(j))
			}
		}
	}
}

// TestEveryCallHasARow: every call of every service has a row, and every row is a
// call's. It shows the table.
func TestEveryCallHasARow(t *testing.T) {
	seen, counts := 0, map[Rule]int{}
	var lines []string
	eachMethod(func(m protoreflect.MethodDescriptor) {
		seen++
		r, ok := calls[impersonate.FullMethod(m)]
		if !ok {
			t.Errorf("%s has no row in calls: say who may call it", m.FullName())
		}
		for _, role := range principal.Roles {
			counts[r[role]]++
		}
		lines = append(lines, fmt.Sprintf("%-70s %s", m.FullName(), cells(r, "  ")))
	})
	if len(calls) != seen {
		t.Errorf("%d rows for %d calls", len(calls), seen)
	}
	testreport.Linef(t, "access: %d RPCs x %d roles: %d yes, %d own, %d granted, %d no", seen, len(principal.Roles), counts[Allowed], counts[Own], counts[Granted], counts[No])
	testreport.Linef(t, "%-70s root     coordinator  member   client   operator proxy\n%s", "call", strings.Join(lines, "\n"))
}

// TestEveryKindHasARow: every kind of event has a row, and every row is a kind's.
func TestEveryKindHasARow(t *testing.T) {
	counts := map[Rule]int{}
	for i := range kindFields.Len() {
		k, ok := kinds[kindFields.Get(i).Number()]
		if !ok {
			t.Errorf("%s has no row in kinds: say who may ask for it", kindFields.Get(i).Name())
		}
		for _, role := range principal.Roles {
			counts[k.published[role]]++
			counts[k.proposed[role]]++
		}
	}
	if len(kinds) != kindFields.Len() {
		t.Errorf("%d rows for %d kinds", len(kinds), kindFields.Len())
	}
	testreport.Linef(t, "access: %d kinds of events x %d roles, published and proposed: %d yes, %d own, %d granted, %d no",
		len(kinds), len(principal.Roles), counts[Allowed], counts[Own], counts[Granted], counts[No])
}

func cells(r rules, between string) string {
	var words []string
	for _, role := range principal.Roles {
		words = append(words, fmt.Sprintf("%-7s", r[role]))
	}
	return strings.TrimRight(strings.Join(words, between), " ")
}

// strangersOf are what strangers get by the calls of a service.
var strangersOf = map[protoreflect.Name]map[protoreflect.Name]strangers.Row{"Coordinator": strangers.Coordinator, "Store": strangers.Store}

// TestEveryCallThatBearsAKeyspaceHasARow: what a stranger gets is written down for each call that
// names a keyspace, or anything of one.
func TestEveryCallThatBearsAKeyspaceHasARow(t *testing.T) {
	bearing := 0
	eachMethod(func(m protoreflect.MethodDescriptor) {
		rows, serves := strangersOf[m.Parent().Name()]
		if !serves {
			return
		}
		_, row := rows[m.Name()]
		if bears := strangers.Bears(m); bears != row {
			t.Errorf("%s bears a keyspace: %t; it has a row: %t", m.FullName(), bears, row)
		} else if bears {
			bearing++
		}
	})
	if n := len(strangers.Coordinator) + len(strangers.Store); bearing != n {
		t.Errorf("%d calls bear a keyspace, there are %d rows", bearing, n)
	}
}

const tables = "../../docs/access.md"

// TestTheDocumentsShowTheTables: what stands in the documents is what is judged by.
// Run it with -rewrite after a change.
func TestTheDocumentsShowTheTables(t *testing.T) {
	text, err := os.ReadFile(tables)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(text), "<!-- made by go test ./internal/access -rewrite -->\n")
	if !found {
		t.Fatalf("%s has no place for the tables", tables)
	}
	var b strings.Builder
	b.WriteString(head + "<!-- made by go test ./internal/access -rewrite -->\n")
	b.WriteString("| call | root | coordinator | member | client | operator | proxy |\n|---|---|---|---|---|---|---|\n")
	eachMethod(func(m protoreflect.MethodDescriptor) {
		fmt.Fprintf(&b, "| `%s.%s` |%s |\n", m.Parent().FullName(), m.Name(), markdown(calls[impersonate.FullMethod(m)]))
	})
	b.WriteString("\n| event | published by a member | client | operator | proxy | proposed by a coordinator itself | for a member | client | operator | proxy |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range kindFields.Len() {
		f := kindFields.Get(i)
		k := kinds[f.Number()]
		fmt.Fprintf(&b, "| `%s` |%s |%s |\n", f.Name(), markdown(k.published, principal.Root, principal.Coordinator), markdown(k.proposed, principal.Root))
	}
	b.WriteString("\nWhat a principal without any grant there gets of a closed keyspace, call by call; empty: nothing, and reads answer as if there were no such keyspace.\n\n| call | sees | owns | changes | is given |\n|---|---|---|---|---|\n")
	eachMethod(func(m protoreflect.MethodDescriptor) {
		if r, ok := strangersOf[m.Parent().Name()][m.Name()]; ok {
			fmt.Fprintf(&b, "| `%s.%s` | %s | %s | %s | %s |\n", m.Parent().FullName(), m.Name(), r.Sees, r.Owns, r.Changes, r.Given)
		}
	})
	if *rewrite {
		if err := os.WriteFile(tables, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if b.String() != string(text) {
		t.Errorf("%s does not show the tables of this package: run this test with -rewrite", tables)
	}
}

func markdown(r rules, without ...principal.Role) string {
	var words []string
	for _, role := range principal.Roles {
		if len(without) > 0 && role <= without[len(without)-1] {
			continue
		}
		words = append(words, " "+r[role].String())
	}
	return strings.Join(words, " |")
}

// world is a state with things of m1 and of others, and coordinator m1 holding era 1.
func world(t testing.TB) (st *state.State, own, foreign impersonate.Things) {
	t.Helper()
	st = state.New()
	index := uint64(0)
	apply := func(e *rootv1.Event) *rootv1.EventResult {
		t.Helper()
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
		if err != nil {
			t.Fatal(err)
		}
		index++
		var out state.Applied
		if err := st.ApplyEntry(1, index, data, &out); err != nil {
			t.Fatal(err)
		}
		result := out.Results[0].Proto()
		if result.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			t.Fatalf("%v: %v", e, result)
		}
		return result.GetEvents()[0]
	}
	apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "a:1"}},
	}}}})
	own, foreign = impersonate.Rooted(t, apply)
	apply(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "m1", HolderIncarnation: 9, HolderAddress: "c:1", Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO}, RetireDigest: make([]byte, 32),
	}}})
	return st, own, foreign
}

// calling is the context of a server's handler.
func calling(p principal.Principal, method string) context.Context {
	ctx := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: principal.Info{CommonAuthInfo: credentials.CommonAuthInfo{}, Principal: p}})
	return grpc.NewContextWithServerTransportStream(ctx, transport(method))
}

type transport string

func (m transport) Method() string             { return string(m) }
func (transport) SetHeader(metadata.MD) error  { return nil }
func (transport) SendHeader(metadata.MD) error { return nil }
func (transport) SetTrailer(metadata.MD) error { return nil }

// TestEveryKindByEveryRole judges every kind of event of every role, about what is
// the caller's own and about what is another's, with and without a grant.
func TestEveryKindByEveryRole(t *testing.T) {
	st, own, foreign := world(t)
	g := New()
	judged := 0
	for i := range kindFields.Len() {
		kind := kindFields.Get(i)
		for _, role := range principal.Roles {
			p := impersonate.Named(role, "m1")
			for about, things := range map[string]impersonate.Things{"own": own, "foreign": foreign} {
				e := impersonate.Event(kind, things)
				c := &rootv1.Command{Events: []*rootv1.Event{e}}
				if about == "foreign" && kind.Name() == "fence_extended" {
					e.GetFenceExtended().Era = 2
				}
				published, proposed := OfEvent(e, role)
				check := func(what string, rule Rule, err error) {
					t.Helper()
					judged++
					denied := reason.Of(err) == rootv1.Reason_REASON_PERMISSION_DENIED
					if want := rule == No || rule == Granted || rule == Own && about == "foreign"; denied != want {
						t.Errorf("%v %ss %s %s (%v): %v", p, what, about, kind.Name(), rule, err)
					}
				}
				check("publish", published, g.Asked(calling(p, coordinatorv1.Coordinator_PublishRootEvents_FullMethodName), c, st))
				if role != principal.Coordinator && role != principal.Root {
					sender := calling(impersonate.Named(principal.Coordinator, "c9"), rootv1.Root_Propose_FullMethodName)
					c.Actor = p.Actor()
					check("propose through a coordinator", proposed, g.Proposed(sender, c, st))
				}
				c.Actor = ""
				direct := calling(p, rootv1.Root_Propose_FullMethodName)
				g.Sign(direct, c)
				if role != principal.Root {
					check("propose", proposed, g.Proposed(direct, c, st))
				} else if g.Proposed(direct, c, st) == nil {
					t.Errorf("a root peer proposed %s", kind.Name())
				}
			}
		}
	}
	testreport.Linef(t, "access: %d judgements of %d kinds of events", judged, kindFields.Len())
}

// TestJudgeTakesAnything: commands without events, events without a kind, kinds
// without content are judged, and allowed to nobody but operators at most.
func TestJudgeTakesAnything(t *testing.T) {
	st, _, _ := world(t)
	g := New()
	for _, c := range []*rootv1.Command{nil, {}, {Events: []*rootv1.Event{nil}}, {Events: []*rootv1.Event{{}}}, {Events: []*rootv1.Event{{Kind: (*rootv1.Event_RegionPublished)(nil)}}}} {
		for _, role := range principal.Roles {
			ctx := calling(impersonate.Named(role, "m1"), coordinatorv1.Coordinator_PublishStream_FullMethodName)
			asked, proposed := g.Asked(ctx, c, st), g.Proposed(ctx, c, st)
			if len(c.GetEvents()) > 0 && c.GetEvents()[0].GetKind() == nil && (asked == nil || proposed == nil) {
				t.Errorf("%v may ask for %v: %v, %v", role, c, asked, proposed)
			}
		}
	}
}

func FuzzJudge(f *testing.F) {
	st, own, _ := world(f)
	for i := range kindFields.Len() {
		seed, err := proto.Marshal(&rootv1.Command{Events: []*rootv1.Event{impersonate.Event(kindFields.Get(i), own)}, Actor: "member/m1"})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed, uint8(i))
	}
	g := New()
	f.Fuzz(func(t *testing.T, data []byte, role uint8) {
		var c rootv1.Command
		if proto.Unmarshal(data, &c) != nil {
			return
		}
		p := impersonate.Named(principal.Roles[int(role)%len(principal.Roles)], "m1")
		_ = g.Asked(calling(p, coordinatorv1.Coordinator_PublishStream_FullMethodName), &c, st)
		_ = g.Proposed(calling(p, rootv1.Root_Propose_FullMethodName), &c, st)
	})
}

// TestAnAllowedCallCostsNoAllocation: the lookup of a call, of a name and of grants.
func TestAnAllowedCallCostsNoAllocation(t *testing.T) {
	st, _, _ := world(t)
	g := New()
	p := impersonate.Named(principal.Client, "a")
	ctx := calling(p, coordinatorv1.Coordinator_GetRegionByKey_FullMethodName)
	info := &grpc.UnaryServerInfo{FullMethod: coordinatorv1.Coordinator_GetRegionByKey_FullMethodName}
	var request any = &coordinatorv1.GetRegionByKeyRequest{}
	handler := func(ctx context.Context, _ any) (any, error) { return nil, g.May(ctx, st, rootv1.Verb_VERB_READ, "") }
	if n := testing.AllocsPerRun(100, func() {
		if _, err := g.unary(ctx, request, info, handler); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNobodyMayDoNothing: a caller whom no certificate names, and a call that the
// table does not know, are refused.
func TestNobodyMayDoNothing(t *testing.T) {
	for method := range calls {
		if admit(principal.Principal{}, method) == nil {
			t.Errorf("nobody in particular may call %s", method)
		}
	}
	for _, role := range principal.Roles {
		if admit(impersonate.Named(role, "x"), "/nokv.root.v1.Root/Other") == nil {
			t.Errorf("%v may call what there is not", role)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	g := New()
	ctx := calling(impersonate.Named(principal.Client, "a"), "")
	info := &grpc.UnaryServerInfo{FullMethod: coordinatorv1.Coordinator_GetRegionByKey_FullMethodName}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	b.ReportAllocs()
	for b.Loop() {
		_, _ = g.unary(ctx, nil, info, handler)
	}
}
