package held_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// TestScripts runs the scripts in testdata: commands above the line, what came of
// them below. Rewrite them with -rewrite.
//
//	open, close S           a stream
//	terms S                 each line: ID NAME era|ttl=D|shared [hold=D] [idle=D] [points|slots=N]
//	set S token=N [complete] [partial] [confirmed=SEQUENCE era=N]
//	                        each line: -ID, or ID@EPOCH [frontier=F] [keyspace=N] [start=K end=K]
//	                        [takes=TRANSITION peer=M] [gives=TRANSITION peer=M [release]]
//	                        [reshapes=TRANSITION [left=ID right=ID]]
//	answer S sequence=N [confirmed] [era=N] [again]
//	command S era=N id=N checkpoint|idle|transfer region=N epoch=E
//	frame S                 the next frame, or when it is due
//	calls                   what the application is asked for
//	done N [err=WHY] [frontier=F] [idle]
//	report REGION load=N    what the application tells
//	after D                 time passes, and is told
//	admit, check, leave REGION [epoch=E] [key=K]
//	goodbye D, gone, stop, retire
//
// Each command but admit is followed by what was made of the regions.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.Contains(path, "rapid") {
			return
		}
		m := &machine{clock: &clock.Manual{Elapsed: 1}, work: map[uint64][]*held.Grant{}}
		m.core = held.New(held.Config{Member: "m1", Incarnation: 8, Evicts: true})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			m.t = t
			return m.run(d)
		})
	})
}

type machine struct {
	t     *testing.T
	core  *held.Core
	clock *clock.Manual
	work  map[uint64][]*held.Grant
}

func epochOf(s string) rooted.Epoch {
	var e rooted.Epoch
	if _, err := fmt.Sscanf(s, "%d.%d", &e.Version, &e.ConfVersion); err != nil {
		panic(s)
	}
	return e
}

func (m *machine) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		m.t.Fatal(err)
	}
	return d
}

// options are the words of a line, by what is before and behind "=".
func options(words []string) map[string]string {
	o := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		o[k] = v
	}
	return o
}

func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func at(index uint64) *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}
}

func (m *machine) run(d *datadriven.TestData) string {
	var words []string
	for _, a := range d.CmdArgs {
		words = append(words, strings.TrimSuffix(a.Key+"="+strings.Join(a.Vals, ","), "="))
	}
	o, first := options(words), 0
	if len(words) > 0 {
		first = int(number(words[0]))
	}
	now := m.clock.Now()
	has := func(k string) bool { _, ok := o[k]; return ok }
	switch d.Cmd {
	case "open":
		m.core.Open(first)
	case "close":
		m.core.Close(first)
	case "terms":
		terms := &coordinatorv1.MemberTerms{IntervalMillis: 200}
		for _, line := range strings.Split(d.Input, "\n") {
			terms.Keyspaces = append(terms.Keyspaces, m.terms(strings.Fields(line)))
		}
		return m.answer(first, &coordinatorv1.MemberAnswer{Era: 1, Terms: terms})
	case "set":
		set := &coordinatorv1.ShownSet{Token: at(number(o["token"])), Complete: has("complete"), Partial: has("partial")}
		for _, line := range strings.Split(d.Input, "\n") {
			if line != "" {
				m.shown(set, strings.Fields(line))
			}
		}
		return m.answer(first, &coordinatorv1.MemberAnswer{Era: max(1, number(o["era"])), Set: set, Confirmed: has("confirmed"), Sequence: number(o["confirmed"])})
	case "answer":
		return m.answer(first, &coordinatorv1.MemberAnswer{
			Era: max(1, number(o["era"])), Sequence: number(o["sequence"]), Confirmed: has("confirmed"), ReportAgain: has("again"),
		})
	case "command":
		kind := map[bool]coordinatorv1.MemberCommandKind{has("checkpoint"): 1, has("idle"): 2, has("transfer"): 3}[true]
		return m.answer(first, &coordinatorv1.MemberAnswer{Era: number(o["era"]), Commands: []*coordinatorv1.MemberCommand{{
			Era: number(o["era"]), Id: number(o["id"]), Kind: kind, RegionId: number(o["region"]), Epoch: epochOf(o["epoch"]).Proto(), ToMemberId: "m9",
		}}})
	case "frame":
		f := m.core.Frame(first, now)
		if f == nil {
			return fmt.Sprintf("none before %v\n", m.core.Due(first).Sub(now))
		}
		return showFrame(f)
	case "calls":
		var b strings.Builder
		for _, c := range m.core.Calls(100, now) {
			fmt.Fprintf(&b, "%d %s", c.ID, c.Kind)
			if c.Region != nil {
				fmt.Fprintf(&b, " %d@%s", c.Region.ID, c.Region.Epoch)
				if c.Region.Frontier != "" {
					fmt.Fprintf(&b, " frontier=%s", c.Region.Frontier)
				}
			}
			if c.Right != nil {
				fmt.Fprintf(&b, " right=%d@%s frontier=%s", c.Right.ID, c.Right.Epoch, c.Right.Frontier)
			}
			if c.Peer.Member != "" {
				fmt.Fprintf(&b, " peer=%s", c.Peer.Member)
			}
			if c.Kind == held.Stop || c.Kind == held.Resume {
				fmt.Fprintf(&b, " %s", c.Keyspace.Name)
			}
			fmt.Fprintln(&b)
		}
		return b.String()
	case "done":
		m.core.Done(uint64(first), held.Result{Err: o["err"], Frontier: o["frontier"], Idle: has("idle")}, now)
	case "report":
		m.core.Report(rooted.RegionID(first), rooted.Stats{Load: float64(number(o["load"]))})
	case "after":
		m.clock.Advance(m.duration(words[0]))
		m.core.Tick(m.clock.Now())
	case "goodbye":
		m.core.Goodbye(now.Add(m.duration(words[0])), "the host goes away")
	case "gone":
		m.core.Gone("the process ends")
	case "stop":
		m.core.Stop(now)
	case "retire":
		m.core.Retire(now)
	case "admit":
		q := held.Request{Region: rooted.RegionID(first), Keyspace: o["keyspace"]}
		if has("key") {
			q.Key = []byte(o["key"])
		}
		if has("epoch") {
			q.Epoch = epochOf(o["epoch"])
		}
		g, no := m.core.Table().Admit(q, m.clock)
		if no != nil {
			return showRefusal(no)
		}
		m.work[uint64(first)] = append(m.work[uint64(first)], g)
		return fmt.Sprintf("admitted %d@%s\n", g.Region.ID, g.Region.Epoch)
	case "check":
		if no := m.core.Table().Check(m.work[uint64(first)][0], m.clock); no != nil {
			return showRefusal(no)
		}
		return "holds\n"
	case "leave":
		g := m.work[uint64(first)][0]
		m.work[uint64(first)] = m.work[uint64(first)][1:]
		if m.core.Table().Leave(g) {
			m.core.Drained(g.Region.ID, now)
		}
	default:
		m.t.Fatalf("no such command: %s", d.Cmd)
	}
	return m.show()
}

func (m *machine) answer(stream int, a *coordinatorv1.MemberAnswer) string {
	if err := m.core.Answer(stream, a, m.clock.Now()); err != nil {
		return err.Error() + "\n"
	}
	return m.show()
}

func (m *machine) terms(words []string) *coordinatorv1.KeyspaceTerms {
	o := options(words[2:])
	k := &coordinatorv1.KeyspaceTerms{KeyspaceId: uint32(number(words[0])), Name: words[1], Fence: rootv1.Fence_FENCE_EPOCH, HoldRequestsMillis: 2000}
	if ttl, ok := o["ttl"]; ok {
		k.Fence, k.TtlMillis = rootv1.Fence_FENCE_TTL, uint64(m.duration(ttl).Milliseconds())
	}
	_, k.Shared = o["shared"]
	if hold, ok := o["hold"]; ok {
		k.HoldRequestsMillis = uint64(m.duration(hold).Milliseconds())
	}
	if idle, ok := o["idle"]; ok {
		k.IdleEvictMillis = uint64(m.duration(idle).Milliseconds())
	}
	k.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{}}
	if _, ok := o["points"]; ok {
		k.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}
	}
	if n, ok := o["slots"]; ok {
		k.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: uint32(number(n))}}}
	}
	return k
}

func (m *machine) shown(set *coordinatorv1.ShownSet, words []string) {
	if id, ok := strings.CutPrefix(words[0], "-"); ok {
		set.Ended = append(set.Ended, number(id))
		return
	}
	id, epoch, _ := strings.Cut(words[0], "@")
	o := options(words[1:])
	r := &rootv1.Region{Id: number(id), KeyspaceId: uint32(max(1, number(o["keyspace"]))), Epoch: epochOf(epoch).Proto(), Frontier: []byte(o["frontier"]), StartKey: []byte(o["start"]), EndKey: []byte(o["end"])}
	p := &coordinatorv1.ShownRegion{Region: r}
	for word, role := range map[string]coordinatorv1.MoveRole{"takes": coordinatorv1.MoveRole_MOVE_ROLE_TAKES, "gives": coordinatorv1.MoveRole_MOVE_ROLE_GIVES} {
		if transition, ok := o[word]; ok {
			_, release := o["release"]
			p.Move = &coordinatorv1.ShownMove{TransitionId: transition, Role: role, PeerId: o["peer"], PeerAddress: o["peer"] + ":7000", ReleaseNow: release}
		}
	}
	if transition, ok := o["reshapes"]; ok {
		p.Move = &coordinatorv1.ShownMove{
			TransitionId: transition, Role: coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES, ReleaseNow: true, LeftRegionId: number(o["left"]), RightRegionId: number(o["right"]),
		}
	}
	set.Regions = append(set.Regions, p)
}

func (m *machine) show() string {
	var b strings.Builder
	for id := range rooted.RegionID(100) {
		phase, epoch := m.core.Phase(id)
		if epoch == (rooted.Epoch{}) {
			continue
		}
		fmt.Fprintf(&b, "%d@%s %s\n", id, epoch, strings.ToLower(strings.TrimPrefix(phase.String(), "REGION_PHASE_")))
	}
	if n := m.core.Waiting(); n > 0 {
		fmt.Fprintf(&b, "calls: %d\n", n)
	}
	return b.String()
}

func showRefusal(no *held.Refusal) string {
	s := no.Verdict.String()
	if no.Epoch != (rooted.Epoch{}) {
		s += " epoch=" + no.Epoch.String()
	}
	if no.To != "" {
		s += fmt.Sprintf(" to=%s at %s", no.To, no.Address)
	}
	if no.Hold != 0 {
		s += fmt.Sprintf(" hold=%v", no.Hold)
	}
	return s + "\n"
}

func showFrame(f *coordinatorv1.MemberFrame) string {
	var b strings.Builder
	fmt.Fprintf(&b, "frame %d", f.GetSequence())
	if h := f.GetHello(); h != nil {
		fmt.Fprintf(&b, " hello %s incarnation=%d obeyed=%d", h.GetMemberId(), h.GetIncarnation(), h.GetObeyed().GetIndex())
	}
	if f.GetComplete() {
		fmt.Fprint(&b, " complete")
	}
	if f.GetPartial() {
		fmt.Fprint(&b, " partial")
	}
	if s := f.GetShown(); s != nil {
		fmt.Fprintf(&b, " shown=%d count=%d sum=%04x", s.GetToken().GetIndex(), s.GetCount(), s.GetChecksum()>>48)
	}
	if g := f.GetGoodbye(); g != nil {
		fmt.Fprintf(&b, " goodbye in %dms gone=%t", g.GetDeadlineMillis(), g.GetGone())
	}
	fmt.Fprintln(&b)
	for _, r := range f.GetRegions() {
		fmt.Fprintf(&b, "  %d@%s %s", r.GetRegionId(), rooted.EpochFromProto(r.GetEpoch()), strings.ToLower(strings.TrimPrefix(r.GetPhase().String(), "REGION_PHASE_")))
		if r.GetSetFrontier() {
			fmt.Fprintf(&b, " frontier=%q", r.GetFrontier())
		}
		if r.GetTransitionId() != "" {
			fmt.Fprintf(&b, " of %s", r.GetTransitionId())
		}
		if r.GetError() != "" {
			fmt.Fprintf(&b, " error=%q", r.GetError())
		}
		if r.GetLoad() != 0 {
			fmt.Fprintf(&b, " load=%v", r.GetLoad())
		}
		if r.GetIdleMillis() > 0 {
			fmt.Fprint(&b, " unused")
		}
		fmt.Fprintln(&b)
	}
	if len(f.GetGone()) > 0 {
		fmt.Fprintf(&b, "  gone %v\n", f.GetGone())
	}
	for _, r := range f.GetReplies() {
		fmt.Fprintf(&b, "  reply %d.%d done=%t %s %s\n", r.GetEra(), r.GetId(), r.GetDone(), strings.ToLower(strings.TrimPrefix(r.GetError().GetReason().String(), "REASON_")), r.GetError().GetMessage())
	}
	return b.String()
}
