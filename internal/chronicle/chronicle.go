// Package chronicle tells rooted history in sentences, for people.
//
// It owns the words. It promises: (1) an entry told behind the state it met is told with
// what became of it, who had what before, and nothing that did not happen; (2) one from
// before the state is told by what the state remembers, and as asked for where that is
// forgotten; (3) no secret is in a line. Where entries come from is left to others.
package chronicle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Line is something that happened, or was refused.
type Line struct {
	// Time is when it was proposed, by the clock of the root leader of then; zero: the
	// entry does not say.
	Time        time.Time
	Term, Index uint64
	// Command counts the commands of an entry from 0.
	Command int
	// Kind is the event's name on the wire, such as "region_published".
	Kind string
	// Outcome is applied, already_applied, rejected, or empty: it is not known any more.
	Outcome string
	// Reason is why it was rejected.
	Reason rootv1.Reason
	// Actor is who asked, ROLE/NAME, where somebody could vouch for it, Via the coordinator
	// that did; Why is in the caller's words.
	Actor, Via, Why string
	// Text is the sentence.
	Text string
	// What it is about: names of keyspaces, ids of members, ids of regions, each once.
	Keyspaces, Members []string
	Regions            []uint64
}

// Filter is which events are told. The zero Filter has all that matter to people.
type Filter struct {
	// Keyspace is a name, Member an id, Region an id: only what is about it. Of a keyspace
	// are also the members that take its regions.
	Keyspace, Member string
	Region           uint64
	// Actor is ROLE/NAME; NAME may end in *: any that begins so.
	Actor string
	// All has routine too: fences, steps of handovers and moves, what was so already.
	All bool
}

// Chronicle tells entries, one behind the other.
type Chronicle struct {
	st     *state.State
	filter Filter
	// met are the keyspace, the member and the region of the filter that were told of.
	met [3]bool
}

// New makes a Chronicle over a state, which it keeps and changes.
func New(st *state.State, f Filter) *Chronicle { return &Chronicle{st: st, filter: f} }

// Tell tells an entry that the state has, or the one behind it.
func (c *Chronicle) Tell(e *rootv1.TailEntry) ([]Line, error) {
	var entry rootv1.Entry
	if err := proto.Unmarshal(e.GetEntry(), &entry); err != nil {
		return nil, fmt.Errorf("entry %d: %w", e.GetIndex(), err)
	}
	s := &scene{before: c.st, after: c.st}
	var out state.Applied
	if e.GetIndex() > c.st.Token().Index {
		s.before, s.known = c.st.Fork(), true
		if err := c.st.ApplyEntry(e.GetTerm(), e.GetIndex(), e.GetEntry(), &out); err != nil {
			return nil, err
		}
	}
	g := groups{same: map[alike]int{}}
	for i, cmd := range entry.GetCommands() {
		l := Line{Term: e.GetTerm(), Index: e.GetIndex(), Command: i, Time: timeOf(&entry, cmd), Actor: cmd.GetActor(), Via: cmd.GetVia(), Why: cmd.GetWhy()}
		s.results = nil
		if s.known {
			l.Outcome, l.Reason, s.results = outcomeName(out.Results[i].Outcome), out.Results[i].Reject.GetReason(), out.Results[i].Events
		} else if outcome, why, ok := c.st.Judged(cmd.GetIdentity()); ok {
			l.Outcome, l.Reason = outcomeName(outcome), why
		}
		s.outcome = l.Outcome
		if c.asked(l.Actor) {
			c.command(&g, s, cmd, l)
		}
	}
	lines := make([]Line, len(g.all))
	for i := range g.all {
		lines[i] = g.all[i].line()
	}
	return lines, nil
}

// timeOf is when an entry was proposed. That of the bootstrap says it by itself.
func timeOf(e *rootv1.Entry, cmd *rootv1.Command) time.Time {
	ms := e.GetUnixMillis()
	for _, event := range cmd.GetEvents() {
		ms = cmp.Or(ms, event.GetClusterBootstrapped().GetCluster().GetCreatedUnixMillis())
	}
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

func outcomeName(o rootv1.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}

// Outcomes in lines.
const (
	already  = "already_applied"
	rejected = "rejected"
)

// asked reports whether the filter has who asked.
func (c *Chronicle) asked(actor string) bool {
	prefix, some := strings.CutSuffix(c.filter.Actor, "*")
	return c.filter.Actor == "" || actor == c.filter.Actor || some && strings.HasPrefix(actor, prefix)
}

// scene is what an entry met, and made.
type scene struct {
	before, after *state.State
	// known: before is right before the entry.
	known bool
	// results are those of the events of the command that is told; nil: they are not known.
	results []state.EventResult
	outcome string
}

// piece is an event, or a region of one, as far as it goes into a sentence with others.
type piece struct {
	kind string
	// routine is told when all is.
	routine bool
	// key is the same for pieces that one sentence tells; empty: each has its own.
	key string
	// tell makes the sentence of them.
	tell func(all []piece) string

	keyspace string
	members  []string
	// pools are keyspaces of which a member takes regions; everywhere: of all.
	pools      []string
	everywhere bool
	region     uint64
	// place is the region for people, to whom its next owners.
	place string
	to    []string
}

// group is pieces that one sentence tells.
type group struct {
	head   Line
	pieces []piece
}

// groups are those of an entry, in the order of their first pieces.
type groups struct {
	all []group
	// same is the group of what one sentence may tell.
	same map[alike]int
}

// alike is what pieces of an entry have in common that one sentence may tell.
type alike struct {
	key, outcome    string
	reason          rootv1.Reason
	actor, via, why string
}

// command adds what a command asks for to the groups of an entry.
func (c *Chronicle) command(g *groups, s *scene, cmd *rootv1.Command, l Line) {
	for i, e := range cmd.GetEvents() {
		note := l.Why != "" && (e.GetMemberStateChanged() != nil || e.GetRegionsAssigned() != nil)
		so := l.Outcome == already && !note
		for _, p := range s.pieces(e, i) {
			if l.Outcome != rejected {
				c.meet(&p)
			}
			if !c.filter.All && (p.routine || so) || !c.filter.has(&p) {
				continue
			}
			key := alike{p.key, l.Outcome, l.Reason, l.Actor, l.Via, l.Why}
			if n, known := g.same[key]; known && p.key != "" {
				g.all[n].pieces = append(g.all[n].pieces, p)
				continue
			}
			g.same[key] = len(g.all)
			g.all = append(g.all, group{l, []piece{p}})
		}
	}
}

func (c *Chronicle) meet(p *piece) {
	f := &c.filter
	c.met[0] = c.met[0] || p.keyspace == f.Keyspace
	c.met[1] = c.met[1] || slices.Contains(p.members, f.Member)
	c.met[2] = c.met[2] || p.region == f.Region
}

// Unknown is what the filter asks for and neither is there nor was in what was told; empty:
// there is nothing such.
func (c *Chronicle) Unknown() string {
	f := &c.filter
	switch {
	case f.Keyspace != "" && !c.met[0] && c.st.KeyspaceByName(f.Keyspace) == nil:
		return fmt.Sprintf("keyspace %q", f.Keyspace)
	case f.Member != "" && !c.met[1] && c.st.Member(state.MemberID(f.Member)) == nil:
		return fmt.Sprintf("member %q", f.Member)
	case f.Region != 0 && !c.met[2] && c.st.Region(state.RegionID(f.Region)) == nil:
		return fmt.Sprintf("region %d", f.Region)
	}
	return ""
}

// has reports whether a piece is about what the filter is.
func (f *Filter) has(p *piece) bool {
	return (f.Keyspace == "" || p.keyspace == f.Keyspace || p.everywhere || slices.Contains(p.pools, f.Keyspace)) &&
		(f.Member == "" || slices.Contains(p.members, f.Member)) && (f.Region == 0 || p.region == f.Region)
}

func (g *group) line() Line {
	l := g.head
	l.Kind, l.Text = g.pieces[0].kind, g.pieces[0].tell(g.pieces)
	switch l.Outcome {
	case rejected:
		l.Text = "refused, " + reason.Name(l.Reason) + ": that " + l.Text
	case "":
		l.Text = "asked for: that " + l.Text
	}
	for i := range g.pieces {
		p := &g.pieces[i]
		l.Members = append(l.Members, p.members...)
		if p.keyspace != "" {
			l.Keyspaces = append(l.Keyspaces, p.keyspace)
		}
		if p.region != 0 {
			l.Regions = append(l.Regions, p.region)
		}
	}
	l.Members, l.Keyspaces, l.Regions = set(l.Members), set(l.Keyspaces), set(l.Regions)
	return l
}

// set sorts values, each once.
func set[T cmp.Ordered](values []T) []T {
	slices.Sort(values)
	return slices.Compact(values)
}
