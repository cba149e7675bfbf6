package ownership

import (
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// roots is the table of rooted states. Each is a real state.State; a world holds its
// number. Steps from one to another are real commands, applied once and remembered.
type roots struct {
	*config
	all       []*truth
	byContent map[string]uint32
	commands  []*command
	byText    map[string]uint16
	verdicts  map[judged]uint16
	steps     map[attempt]outcome
	// broken is what was found wrong with any of them.
	broken error
}

// truth is a state, its past as far as it is asked for, and what is asked of it often.
type truth struct {
	st  *state.State
	era uint8
	// holder is the coordinator of that era, number plus 1.
	holder uint8
	past
	regions [maxRegions]owned
	// acts has a bit for each process that may act, by the root; accepts for each that
	// could register.
	acts, draining uint8
	pending        bool
	orphans        int
}

// past is what the log says of what was.
type past struct {
	// incarnations of the processes; 0: none yet.
	incarnations [maxProcesses]uint8
	// owners are the incarnations that regions were granted to, by conf version.
	owners [maxRegions][maxConf]uint8
	// gone has a bit for each process of which a verdict says that it said its last word.
	gone uint8
}

type owned struct {
	// by is the incarnation of the owner, 0: none.
	by, conf, frontier uint8
}

// command is one to the root.
type command struct {
	events []*rootv1.Event
	era    uint8
	// region that it is about, plus 1.
	region uint8
	// failed is the process that it is a verdict about, plus 1; ends: a move is completed
	// in favour of who prepared.
	failed uint8
	name   string
}

// judged is all that a verdict depends on.
type judged struct {
	process, incarnation, era uint8
	ended                     bool
	lastWords
}

// lastWords are what a verdict knows of a process that has left by itself: what it released.
type lastWords struct {
	gone     bool
	released [maxRegions]release
}

// release is how far the owner of a region at an epoch got; conf is 0: nothing is said of it.
type release struct{ conf, frontier uint8 }

type attempt struct {
	from    uint32
	command uint16
}

// outcome is what became of a command.
type outcome struct {
	to       uint32
	applied  bool
	rejected bool
	// moved has a bit for each region that a completed move gave to another owner,
	// granted for each that was assigned otherwise.
	moved, granted uint8
}

func newRoots(c *config) *roots {
	r := &roots{config: c, byContent: map[string]uint32{}, byText: map[string]uint16{}, verdicts: map[judged]uint16{}, steps: map[attempt]outcome{}}
	s := state.New()
	must(s, &rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{
			ClusterId: 1, Incarnation: 1, FeatureLevel: state.FeatureLevel,
			Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "root:1"}},
		},
	}}})
	for i := range c.regions {
		must(s, &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
			Name: keyspaceName(i), Settings: c.settings(i),
		}}})
	}
	r.intern(s, past{})
	return r
}

func keyspaceName(i uint8) string { return string(rune('a' + i)) }

// settings are those of the keyspace of a region: each has one of its own, the first
// with a ttl.
func (c *config) settings(i uint8) *rootv1.KeyspaceSettings {
	s := &rootv1.KeyspaceSettings{
		Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}},
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: uint64(c.fence().Milliseconds())},
		Liveness: &rootv1.Liveness{
			IntervalMillis: ms(unit), SuspectAfterMillis: ms(suspect * unit), DeadAfterMillis: ms(dead * unit),
			Probe: c.probe,
		},
		Moves:  &rootv1.Moves{PrepareMaxMillis: ms(prepareMax), DeadlineMillis: ms(deadline)},
		Guards: &rootv1.Guards{MassPermille: 1000, FlapFailures: 16},
	}
	if i > 0 || c.ttl == 0 {
		s.Ownership.Fence, s.Ownership.TtlMillis = rootv1.Fence_FENCE_EPOCH, 0
	}
	return s
}

func ms(d time.Duration) uint64 { return uint64(d.Milliseconds()) }

// anyEra is required by commands that are a planner's in whichever era they come: a rule is left out.
const anyEra = 255

// apply applies a command of events to s.
func apply(s *state.State, era uint8, events ...*rootv1.Event) ([]state.Change, state.Result) {
	if era == anyEra {
		era = uint8(s.Tenure().GetEra())
	}
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events, RequireEra: uint64(era)}}})
	if err != nil {
		panic(err)
	}
	var out state.Applied
	if err := s.ApplyEntry(1, s.Token().Index+1, data, &out); err != nil {
		panic(err)
	}
	return out.Changes, out.Results[0]
}

func must(s *state.State, event *rootv1.Event) {
	if _, result := apply(s, 0, event); result.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		panic(fmt.Sprintf("%v: %v", event, result.Reject))
	}
}

func (r *roots) at(i uint32) *truth { return r.all[i] }

func (r *truth) token() uint64 { return r.st.Token().Index }

// order is the number of a command, new or not.
func (r *roots) order(c command) uint16 {
	text := fmt.Sprint(c.era, c.region, c.failed)
	for _, e := range c.events {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			panic(err)
		}
		text += string(b)
	}
	if n, known := r.byText[text]; known {
		return n
	}
	n := uint16(len(r.commands))
	if int(n) != len(r.commands) {
		panic("ownership: too many commands")
	}
	r.commands = append(r.commands, &c)
	r.byText[text] = n
	return n
}

// do has a state judge a command. What is not applied is not in the log.
func (r *roots) do(from uint32, number uint16) outcome {
	if o, known := r.steps[attempt{from, number}]; known {
		return o
	}
	before, c := r.all[from], r.commands[number]
	s := before.st.Fork()
	changes, result := apply(s, c.era, c.events...)
	o := outcome{to: from, applied: result.Outcome == rootv1.Outcome_OUTCOME_APPLIED, rejected: result.Outcome == rootv1.Outcome_OUTCOME_REJECTED}
	if o.applied {
		was := before.past
		r.note(&was, s, changes)
		o.to = r.intern(s, was)
		r.judge(before, r.all[o.to], c, &o)
	} else if s.Hash() != before.st.Hash() {
		r.wrong("%s was %v and changed the hash", c.name, result.Outcome)
	}
	r.steps[attempt{from, number}] = o
	return o
}

// note adds what changed to the past.
func (r *roots) note(p *past, s *state.State, changes []state.Change) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeMember:
			p.incarnations[c.Member.GetStartNonce()-1] = uint8(c.Member.GetIncarnation())
			if c.Member.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && slices.Equal(c.Member.GetSignals(), gone) {
				p.gone |= 1 << (c.Member.GetStartNonce() - 1)
			}
		case state.ChangeRegion:
			at := &p.owners[regionIndex(c.Region.ID)][c.Region.Epoch.ConfVersion]
			by := ownerOf(c.Region)
			if *at != 0 && by != *at {
				r.wrong("region %d has another owner at %s", c.Region.ID, c.Region.Epoch)
			}
			*at = by
		}
	}
}

// judge asks what no step may do: a frontier that falls, an owner that changes at one
// epoch.
func (r *roots) judge(before, after *truth, c *command, o *outcome) {
	for i := range r.config.regions {
		was, is := &before.regions[i], &after.regions[i]
		if is.frontier < was.frontier {
			r.wrong("%s took the frontier of region %d from %d to %d", c.name, i+1, was.frontier, is.frontier)
		}
		switch {
		case is.by == was.by && is.conf == was.conf:
		case is.conf <= was.conf:
			r.wrong("%s changed the owner of region %d at epoch %d", c.name, i+1, was.conf)
		case c.events[0].GetTransitionCompleted() != nil:
			o.moved |= 1 << i
		default:
			o.granted |= 1 << i
		}
	}
}

func (r *roots) wrong(format string, args ...any) {
	if r.broken == nil {
		r.broken = fmt.Errorf(format, args...)
	}
}

// intern finds the number of a state with its past, new or not.
func (r *roots) intern(s *state.State, p past) uint32 {
	key := fmt.Append(nil, s.Token().Index, p)
	_ = s.EncodedRecords(func(b []byte) error {
		key = append(append(key, byte(len(b)), byte(len(b)>>8)), b...)
		return nil
	})
	if i, known := r.byContent[string(key)]; known {
		return i
	}
	if again, err := state.Restore(s.Token(), reader(s)); err != nil || again.Hash() != s.Hash() {
		r.wrong("a state is not restored from its records: %v", err)
	}
	i := uint32(len(r.all))
	r.all = append(r.all, r.summary(s, p))
	r.byContent[string(key)] = i
	return i
}

func reader(s *state.State) func() (*rootv1.Record, error) {
	var all []*rootv1.Record
	_ = s.Records(func(r *rootv1.Record) error {
		all = append(all, proto.CloneOf(r))
		return nil
	})
	return func() (*rootv1.Record, error) {
		if len(all) == 0 {
			return nil, io.EOF
		}
		first := all[0]
		all = all[1:]
		return first, nil
	}
}

func (r *roots) summary(s *state.State, p past) *truth {
	x := &truth{st: s, past: p, era: uint8(s.Tenure().GetEra()), orphans: s.Orphaned()}
	if x.era != 0 {
		x.holder = s.Tenure().GetHolderId()[1] - '0'
	}
	for i, incarnation := range p.incarnations {
		m := s.Member(r.memberOf(i))
		if incarnation == 0 || m.GetIncarnation() != uint64(incarnation) {
			continue
		}
		switch m.GetState() {
		case rootv1.MemberState_MEMBER_STATE_DRAINING:
			x.draining |= 1 << i
			fallthrough
		case rootv1.MemberState_MEMBER_STATE_ACTIVE:
			x.acts |= 1 << i
		}
	}
	orphans := 0
	for i := range r.config.regions {
		region := s.Region(regionID(i))
		x.regions[i] = owned{by: ownerOf(region), conf: uint8(region.Epoch.ConfVersion), frontier: number(region.Frontier)}
		x.pending = x.pending || s.PendingTransition(region.ID) != nil
		if !slices.ContainsFunc(region.Owners, s.Acts) {
			orphans++
		}
	}
	if orphans != x.orphans {
		r.wrong("%d regions have no owner, and %d are counted", orphans, x.orphans)
	}
	return x
}

func ownerOf(r *state.Region) uint8 {
	if len(r.Owners) == 0 {
		return 0
	}
	return uint8(r.Owners[0].Incarnation)
}

func regionID(i uint8) state.RegionID           { return state.RegionID(i + 1) }
func regionIndex(id state.RegionID) uint8       { return uint8(id - 1) }
func (c *config) memberOf(i int) state.MemberID { return state.MemberID(c.names[i]) }
func frontierOf(n uint8) string                 { return strconv.Itoa(int(n)) }
func number(frontier string) (n uint8)          { v, _ := strconv.Atoi(frontier); return uint8(v) }
func (r *truth) actsAs(process int) bool        { return r.acts&(1<<process) != 0 }
func (r *truth) incarnation(process int) uint64 { return uint64(r.incarnations[process]) }

// processOf is the process that has an incarnation, -1: none.
func (r *truth) processOf(incarnation uint8) int {
	if incarnation == 0 {
		return -1
	}
	return slices.Index(r.incarnations[:], incarnation)
}

// Commands.

func (r *roots) join(from uint32, process int) uint16 {
	old := r.all[from].st.Member(r.memberOf(process))
	return r.order(command{name: "a registration", events: []*rootv1.Event{{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Follows: old.GetIncarnation(),
		Member: &rootv1.Member{
			Id: r.names[process], Address: r.names[process] + ":1", ProbeAddress: fmt.Sprintf("p%d:2", process+1), StartNonce: uint64(process + 1),
		},
	}}}}})
}

func (r *roots) claim(from uint32, coordinator int) uint16 {
	digest := sha256.Sum256([]byte{byte(coordinator)})
	return r.order(command{name: "a claim", events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: fmt.Sprintf("c%d", coordinator+1), HolderIncarnation: uint64(coordinator + 1), HolderAddress: "c:1",
		ExpectedEra: uint64(r.all[from].era), PredecessorExpired: true, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID}, RetireDigest: digest[:],
	}}}}})
}

func (r *roots) verdict(process int, incarnation uint64, era uint8, ended bool, last lastWords) uint16 {
	key := judged{uint8(process), uint8(incarnation), era, ended, last}
	n, known := r.verdicts[key]
	if known {
		return n
	}
	change := &rootv1.MemberStateChanged{
		MemberId: r.names[process], Incarnation: incarnation, State: rootv1.MemberState_MEMBER_STATE_FAILED, Reason: "gone",
	}
	if ended {
		change.Signals = []string{"process_ended"}
	}
	if last.gone {
		change.Signals = gone
	}
	c := command{name: "a verdict on " + r.processName(process), era: era, failed: uint8(process + 1)}
	if e := last.event(r.names[process], incarnation); len(e.Assignments) > 0 {
		c.name = "the last words and " + c.name
		c.events = append(c.events, &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: e}})
	}
	c.events = append(c.events, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: change}})
	n = r.order(c)
	r.verdicts[key] = n
	return n
}

// gone are the signals of a verdict on a process that has said its last word.
var gone = liveness.Gone.Names()

// event has the root take what was released.
func (l *lastWords) event(member string, incarnation uint64) *rootv1.RegionsAssigned {
	e := new(rootv1.RegionsAssigned)
	for region, x := range l.released {
		if x.conf != 0 {
			e.Assignments = append(e.Assignments, &rootv1.Assignment{
				RegionId: uint64(regionID(uint8(region))), ExpectedEpoch: state.Epoch{Version: 1, ConfVersion: uint64(x.conf)}.Proto(),
				Owners: []*rootv1.Owner{{MemberId: member, Incarnation: incarnation}}, Frontier: []byte(frontierOf(x.frontier)), SetFrontier: true, Acknowledged: true,
			})
		}
	}
	return e
}

func (r *roots) drain(process int, incarnation uint64) uint16 {
	return r.order(command{name: "a drain of " + r.processName(process), events: []*rootv1.Event{{Kind: &rootv1.Event_MemberStateChanged{
		MemberStateChanged: &rootv1.MemberStateChanged{
			MemberId: r.names[process], Incarnation: incarnation, State: rootv1.MemberState_MEMBER_STATE_DRAINING, Reason: "asked",
		},
	}}}})
}

func (r *roots) grant(view uint32, region uint8, process int) uint16 {
	x := r.all[view]
	a := &rootv1.Assignment{
		RegionId: uint64(regionID(region)), ExpectedEpoch: x.st.Region(regionID(region)).Epoch.Proto(),
		Owners: []*rootv1.Owner{{MemberId: r.names[process], Incarnation: x.incarnation(process)}}, AtOnce: true,
	}
	if r.off == epochExpected {
		a.ExpectedEpoch = nil
	}
	return r.order(command{
		name: fmt.Sprintf("an operator's grant of region %d to %s", region+1, r.processName(process)), era: r.planEra(x), region: region + 1,
		events: []*rootv1.Event{{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{a}}}}},
	})
}

func (c *config) processName(i int) string { return fmt.Sprintf("%s (process %d)", c.names[i], i+1) }
