package state_test

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// TestScripts runs the scripts in testdata: commands above the line, results
// and state below. Rewrite them with -rewrite.
//
//	apply [require-era=N]   one command; each line is an event in text format
//	      [origin=N seq=N known=N]  its identity
//	assess                  one event, judged without being applied
//	state [kind ...]        the records, of these kinds
//	orphans                 regions that nobody owns
//	lookup ks=N             each line is a key
//	repeat n=N              the event below, N times, each $i replaced
//	trial kind=K            this process understands one level more, in which K is new
//
// After each command the script itself checks that a rejected command left the
// hash alone, and that the hash is that of the records.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		m := newMachine(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			m.t = t
			return m.run(d)
		})
	})
}

func (m *machine) run(d *datadriven.TestData) string {
	switch d.Cmd {
	case "apply":
		c := &rootv1.Command{Events: parseEvents(m.t, d.Input)}
		d.MaybeScanArgs(m.t, "require-era", &c.RequireEra)
		x := &rootv1.KeyspaceVersion{}
		if d.MaybeScanArgs(m.t, "require-keyspace", &x.KeyspaceId); x.KeyspaceId != 0 {
			d.MaybeScanArgs(m.t, "at-version", &x.Version)
			c.RequireKeyspaces = append(c.RequireKeyspaces, x)
		}
		d.MaybeScanArgs(m.t, "actor", &c.Actor)
		d.MaybeScanArgs(m.t, "via", &c.Via)
		d.MaybeScanArgs(m.t, "why", &c.Why)
		id := &rootv1.CommandIdentity{}
		if d.MaybeScanArgs(m.t, "origin", &id.Origin); id.Origin != 0 {
			d.MaybeScanArgs(m.t, "seq", &id.Sequence)
			d.MaybeScanArgs(m.t, "known", &id.KnownIndex)
			c.Identity = id
		}
		r := m.apply(c)[0]
		m.checkHash()
		return showResult(r) + m.showOther()
	case "trial":
		var kind string
		d.ScanArgs(m.t, "kind", &kind)
		m.t.Cleanup(state.Trial(kind))
		return fmt.Sprintf("this process understands feature level %d\n", state.SupportedLevel())
	case "repeat":
		var n int
		d.ScanArgs(m.t, "n", &n)
		counts := map[string]int{}
		for i := 1; i <= n; i++ {
			r := m.apply(&rootv1.Command{Events: parseEvents(m.t, strings.ReplaceAll(d.Input, "$i", fmt.Sprint(i)))})[0]
			counts[strings.TrimPrefix(r.Outcome.String(), "OUTCOME_")]++
		}
		m.checkHash()
		return fmt.Sprintln(counts)
	case "access":
		var b strings.Builder
		for _, line := range strings.Split(d.Input, "\n") {
			f := strings.Fields(line)
			role, name, _ := strings.Cut(f[0], "/")
			a := m.s.Access(role, name, rootv1.Verb(rootv1.Verb_value["VERB_"+strings.ToUpper(f[1])]), f[2])
			fmt.Fprintf(&b, "%s: %t", line, a.Allowed)
			if a.Grant != nil {
				fmt.Fprintf(&b, " by %s for %s", a.Grant.GetKeyspace(), a.Grant.GetPrincipal())
			}
			fmt.Fprintln(&b)
		}
		return b.String()
	case "members":
		r := m.s.RootMembers()
		return fmt.Sprintf("voters %v outgoing %v learners %v\n", r.Voters, r.Outgoing, r.Learners)
	case "orphans":
		var ids []state.RegionID
		m.s.Orphans(func(r *state.Region) bool { ids = append(ids, r.ID); return true })
		return fmt.Sprintf("%d: %d\n", m.s.Orphaned(), ids)
	case "renew":
		r := state.Renewal{ClusterID: m.s.Cluster().GetClusterId() + 1, Peers: []*rootv1.RootPeer{{NodeId: 4, Incarnation: 44}}, UnixMillis: 5}
		d.MaybeScanArgs(m.t, "cluster", &r.ClusterID)
		d.MaybeScanArgs(m.t, "ids", &r.IDGap)
		d.MaybeScanArgs(m.t, "tso", &r.TSOFence)
		hash := m.s.Hash()
		next, err := m.s.Renew(r)
		if m.s.Hash() != hash {
			m.t.Errorf("renew changed the state")
		}
		if err != nil {
			return err.Error() + "\n"
		}
		m.s = next
		m.checkHash()
		return m.s.Token().String() + "\n"
	case "assess":
		hash := m.s.Hash()
		r, status := m.s.Assess(parseEvents(m.t, d.Input)[0])
		if m.s.Hash() != hash {
			m.t.Errorf("assess changed the state")
		}
		return short(status.String(), "TRANSITION_STATUS_") + ": " + showResult(r)
	case "state":
		var b strings.Builder
		for _, r := range records(m.t, m.s) {
			if line := showRecord(r); len(d.CmdArgs) == 0 || hasKind(d, line) {
				fmt.Fprintln(&b, line)
			}
		}
		return b.String()
	case "lookup":
		var b strings.Builder
		for _, line := range strings.Split(d.Input, "\n") {
			fmt.Fprintf(&b, "%s: %s\n", line, m.lookup(d, line))
		}
		return b.String()
	default:
		m.t.Fatalf("unknown command %q", d.Cmd)
		return ""
	}
}

func (m *machine) lookup(d *datadriven.TestData, key string) string {
	var ks uint64
	d.ScanArgs(m.t, "ks", &ks)
	layout := m.s.Keyspace(state.KeyspaceID(ks)).GetSettings().GetLayout()
	route := rooted.RouteKey(layout, []byte(key))
	r := m.s.RegionAt(state.KeyspaceID(ks), route)
	if other := m.s.RegionAtBytes(state.KeyspaceID(ks), rooted.AppendRouteKey(nil, layout, []byte(key))); other != r {
		m.t.Errorf("RegionAt %v, RegionAtBytes %v", r, other)
	}
	if r == nil {
		return "none"
	}
	return showMessage(r.Proto().ProtoReflect())
}

func hasKind(d *datadriven.TestData, line string) bool {
	for _, a := range d.CmdArgs {
		if strings.HasPrefix(line, a.Key+" ") {
			return true
		}
	}
	return false
}

func parseEvents(t testing.TB, text string) []*rootv1.Event {
	t.Helper()
	var events []*rootv1.Event
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		e := &rootv1.Event{}
		if err := prototext.Unmarshal([]byte(line), e); err != nil {
			t.Fatalf("parse %q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

// showOther tells of changes that the results do not show.
func (m *machine) showOther() string {
	var kinds []string
	for _, c := range m.out.Changes {
		name := map[state.ChangeKind]string{
			state.ChangeRegion: "region", state.ChangeKeyspace: "keyspace", state.ChangeMember: "member",
			state.ChangeCoordinator: "coordinator", state.ChangeTenure: "tenure", state.ChangeHandover: "handover",
			state.ChangeTransition: "transition", state.ChangeAllocators: "allocators", state.ChangePinKey: "pin_key",
			state.ChangeCluster: "cluster", state.ChangeSettings: "settings", state.ChangeGrant: "grant",
			state.ChangeTokenKey: "token_key", state.ChangeRevokedToken: "revoked_token",
		}[c.Kind]
		if c.Removed {
			name = "-" + name
		}
		if n := len(kinds); n > 0 && strings.HasPrefix(kinds[n-1], name+" x") {
			var times int
			fmt.Sscanf(kinds[n-1], name+" x%d", &times)
			kinds[n-1] = fmt.Sprintf("%s x%d", name, times+1)
			continue
		}
		kinds = append(kinds, name+" x1")
	}
	if len(kinds) == 0 {
		return ""
	}
	return "changes: " + strings.Join(kinds, ", ") + "\n"
}

func showResult(r state.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", short(r.Outcome.String(), "OUTCOME_"), r.Token)
	if r.Repetition {
		b.WriteString(" repetition")
	}
	if r.Reject != nil {
		d := proto.CloneOf(r.Reject)
		d.Reason, d.Message = 0, ""
		fmt.Fprintf(&b, " %s: %s", short(r.Reject.GetReason().String(), "REASON_"), r.Reject.GetMessage())
		if s := showMessage(d.ProtoReflect()); s != "" {
			fmt.Fprintf(&b, "\n  %s", s)
		}
	}
	fmt.Fprintln(&b)
	for _, e := range r.Proto().GetEvents() {
		if s := showMessage(e.ProtoReflect()); s != "" {
			fmt.Fprintf(&b, "  %s\n", s)
		}
	}
	return b.String()
}

func showRecord(r *rootv1.Record) string {
	m := r.ProtoReflect()
	fd := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	return string(fd.Name()) + " " + showMessage(m.Get(fd).Message())
}

// showMessage is a stable text of a message; the text format of the library is
// random on purpose. Tokens are shown short.
func showMessage(m protoreflect.Message) string {
	switch v := m.Interface().(type) {
	case *rootv1.RootToken:
		return state.TokenFromProto(v).String()
	case *rootv1.RegionEpoch:
		return state.EpochFromProto(v).String()
	}
	var parts []string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		parts = append(parts, string(fd.Name())+":"+showField(fd, m.Get(fd)))
	}
	return strings.Join(parts, " ")
}

func showField(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case fd.IsMap():
		var parts []string
		v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
			parts = append(parts, k.String()+":"+e.String())
			return true
		})
		sort.Strings(parts)
		return "{" + strings.Join(parts, " ") + "}"
	case fd.IsList():
		var parts []string
		for i := range v.List().Len() {
			parts = append(parts, showValue(fd, v.List().Get(i)))
		}
		return "[" + strings.Join(parts, " ") + "]"
	default:
		return showValue(fd, v)
	}
}

func showValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		s := showMessage(v.Message())
		switch v.Message().Interface().(type) {
		case *rootv1.RootToken, *rootv1.RegionEpoch:
			return s
		}
		return "{" + s + "}"
	case protoreflect.BytesKind:
		return fmt.Sprintf("%q", v.Bytes())
	case protoreflect.EnumKind:
		name := string(fd.Enum().Values().ByNumber(v.Enum()).Name())
		return short(name, strings.ToUpper(snake(string(fd.Enum().Name())))+"_")
	default:
		return fmt.Sprint(v.Interface())
	}
}

func short(s, prefix string) string { return strings.ToLower(strings.TrimPrefix(s, prefix)) }

func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return b.String()
}
