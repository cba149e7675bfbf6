package mutation

import "slices"

// Packages whose tests are fast and must notice.
const (
	tenure  = "./coordinator/tenure"
	replica = "./meta/root/replica"
	state   = "./meta/root/state"
	client  = "./coordinator/client"
	view    = "./coordinator/rootview"
	server  = "./coordinator/server"
	clocks  = "./internal/clock"
	windows = "./coordinator/idalloc"
	stamps  = "./coordinator/tso"
	accepts = "./internal/listen"
	peers   = "./meta/root/server"
	wires   = "./meta/root/transport"
	permits = "./internal/access"
	certs   = "./mtls"
	gates   = "./internal/gate"
	budgets = "./internal/budget"
	shares  = "./internal/places"
	judges  = "./meta/root/witness"
	fresh   = "./meta/root/freshness"
)

// rules is their number; each is broken by a mutation at least.
const rules = 34

// mutation breaks one rule at one place.
type mutation struct {
	// rule of authority, 1 to 9; 10: windows and fences; 11: who votes at the
	// root; 12: what readers are told, and how much is let in;
	// 13: a change is carried out once, and by the cluster that it is for;
	// 14: nobody has to read what it does not understand;
	// 15: what the root judges whoever asks, and who may do what;
	// 16: who does not belong gets nothing, and nobody takes what others need;
	// 17 to 25: rules 1 to 9 of ownership; 26: what a member holds, see members;
	// 27 to 33: the promises of package placement, 1 to 7; 32 has the budgets, and what
	// they rest on; 34: a root peer's folder is the newest, see pasts.
	rule int
	name string // what is broken
	file string // from the root of the repository
	old  string // occurs once
	new  string
	by   []string // packages, one of which must fail
}

var mutations = slices.Concat(authority, promises, pasts, bounds, ownership, lately, members, planner)

// authority has rules 1 to 11.
var authority = []mutation{
	{
		1, "an era begins whatever era was expected", "meta/root/state/tenure.go",
		"if expected != t.era() {", "if expected > t.era() {",
		[]string{state},
	},
	{
		1, "an era begins over an active one", "meta/root/state/tenure.go",
		"if t.ActiveEra() != 0 && !e.GetPredecessorExpired() {", "if false {",
		[]string{state, replica},
	},
	{
		1, "a holder is its name alone", "meta/root/state/tenure.go",
		"return s.tenure.GetHolderId() == id && s.tenure.GetHolderIncarnation() == incarnation", "return s.tenure.GetHolderId() == id",
		[]string{state},
	},
	{
		1, "a caller may say itself that the predecessor expired", "meta/root/replica/authority.go",
		"claimCommand(claim.Request, over)", "claimCommand(claim.Request, true)",
		[]string{replica, tenure},
	},

	{
		2, "a confirmation counts from its answer", "coordinator/tenure/holding.go",
		"h.until = max(h.until, f.sentAt.Add(h.ttl))", "_, h.until = f, max(h.until, now.Add(h.ttl))",
		[]string{tenure},
	},
	{
		2, "a confirmation of another era counts", "meta/root/replica/authority.go",
		"t.GetEra() == r.GetEra() && ", "",
		[]string{replica},
	},
	{
		2, "a confirmation of another process counts", "meta/root/replica/authority.go",
		"return t.GetHolderId() == id && t.GetHolderIncarnation() == incarnation",
		"return t.GetHolderId() == id",
		[]string{replica},
	},
	{
		2, "a confirmation needs no quorum of its own", "meta/root/replica/read.go",
		"if r.id == nil || !bytes.Equal(s.RequestCtx, r.id) {", "if r.id == nil {",
		[]string{replica},
	},

	{
		3, "whoever claims over an era waits for nothing", "meta/root/replica/authority.go",
		"over && !isOf(t, claim.Request.GetHolderId(), claim.Request.GetHolderIncarnation())", "!over",
		[]string{replica},
	},
	{
		3, "an era expires at once", "meta/root/replica/authority.go",
		"wait := c.untilExpired(t)\n", "wait := min(c.untilExpired(t), 0)\n",
		[]string{replica},
	},
	{
		3, "drift is not waited for", "meta/root/replica/authority.go",
		"nanos + nanos/1000*c.cfg.DriftPermille", "nanos",
		[]string{replica},
	},
	{
		3, "a confirmation does not extend the wait", "meta/root/replica/authority.go",
		"c.authority.since = max(c.authority.since, c.now)\n\t}\n\tr.Token", "}\n\tr.Token",
		[]string{replica},
	},
	{
		3, "a new leader does not wait", "meta/root/replica/authority.go",
		"a.since = max(a.since, now)\n\t}", "}",
		[]string{replica},
	},
	{
		3, "an era is confirmed while a claim over it is under way", "meta/root/replica/authority.go",
		"c.authority.fenced[state.Era(t.GetEra())] > 0", "false",
		[]string{replica},
	},

	{
		4, "a holder retires below what it served", "coordinator/tenure/propose.go",
		"consumed, sealed = r.ended.frontiers(), r.ended.sealed", "consumed, sealed = a.Tenure.GetInherited(), r.ended.sealed",
		[]string{tenure},
	},
	{
		4, "frontiers are told before the windows are closed", "coordinator/tenure/raw.go",
		"e.ids.close(e, over)\n\te.tso.close(e, over)\n", "",
		[]string{tenure},
	},
	{
		4, "a retired era may be extended", "meta/root/state/tenure.go",
		"case s.tenure.GetRetired():\n\t\treturn s.withHolder(refuse(rootv1.Reason_REASON_SILENCE", "case false:\n\t\treturn s.withHolder(refuse(rootv1.Reason_REASON_SILENCE",
		[]string{state},
	},
	{
		4, "a frontier above the fence is taken", "meta/root/state/fence.go",
		"case consumed > f.value:", "case false:",
		[]string{state},
	},
	{
		4, "a retirement gives back what its era has used up", "meta/root/state/fence.go",
		"case consumed < f.usedUp:", "case false:",
		[]string{state},
	},

	{
		5, "nothing is checked after it was generated", "coordinator/tenure/serve.go",
		"return now < v.era.confirmedUntil()", "return true || now < v.era.confirmedUntil()",
		[]string{tenure},
	},
	{
		5, "the check reads the confirmation before the clock", "coordinator/tenure/holder.go",
		"if run.Good(h.cfg.Clock.Now()) {\n\t\th.close(run)",
		"if until := run.era.confirmedUntil(); h.cfg.Clock.Now() < until {\n\t\th.close(run)",
		[]string{tenure},
	},

	{
		6, "with a ttl of 0 an earlier confirmation serves", "coordinator/tenure/holding.go",
		"seq = h.sent + 1\n\th.wanted", "seq = h.confirmed + 0*h.sent\n\th.wanted",
		[]string{tenure},
	},
	{
		6, "a lapsed confirmation fails requests", "coordinator/tenure/serve.go",
		"e.waiting++\n", "if true {\n\t\treturn nil, eraStale(e.number, e.number)\n\t}\n\te.waiting++\n",
		[]string{tenure},
	},

	{
		7, "slow confirmations teach nothing before the era lapses", "coordinator/tenure/pace.go",
		"slow := took >= c.holding.ttl/2", "slow := took < 0",
		[]string{tenure},
	},
	{
		7, "an era that was taken teaches its holder nothing", "coordinator/tenure/pace.go",
		"c.takenAt, c.takenTTL = now, ttlOf(t)", "c.takenAt, c.takenTTL = 0, 0",
		[]string{tenure},
	},
	{
		7, "the holder's own ttl counts, not the record's", "coordinator/tenure/holding.go",
		"ttl: ttlOf(t), wanted: 1", "ttl: c.s.TTL, wanted: 1",
		[]string{tenure},
	},
	{
		7, "a sleeping machine's time does not count", "internal/clock/clock.go",
		"max(elapsed, c.boot()-c.bootStart)", "elapsed",
		[]string{clocks},
	},

	{
		8, "a refused connection makes no suspect", "coordinator/tenure/standby.go",
		"case HealthRefused:\n\t\tc.suspectHolder()", "case HealthRefused:",
		[]string{tenure},
	},
	{
		8, "a silent holder is never suspect", "coordinator/tenure/standby.go",
		"at = s.servingAt.Add(c.s.UnknownAfter)", "at = never",
		[]string{tenure},
	},

	{
		9, "a holder goes on after its era", "coordinator/tenure/core.go",
		"if c.holding.era != 0 && (t.Era > c.holding.era || t.Retired) {", "if false {",
		[]string{tenure},
	},
	{
		9, "what was taken in an ended era stays good", "coordinator/tenure/raw.go",
		"\te.until.Store(0)\n", "",
		[]string{tenure},
	},
	{
		9, "a client takes lower eras", "coordinator/client/call.go",
		"if floor := c.era.Load(); era < floor {", "if floor := c.era.Load(); false {",
		[]string{client},
	},

	{
		10, "a successor starts at the fence", "coordinator/idalloc/runs.go",
		"first = max(after+1, floor)", "first = max(after, floor)",
		[]string{windows, stamps, tenure},
	},
	{
		10, "a window is extended by whoever asks", "meta/root/state/fence.go",
		"if d := t.judgeEra(era); d != nil {", "if d := t.judgeEra(era); false && d != nil {",
		[]string{state},
	},
	{
		10, "a window may begin below the fence", "meta/root/state/fence.go",
		"from: max(f.value, e.GetFloor())}", "from: e.GetFloor()}",
		[]string{state},
	},
	{
		10, "a window uses up as many ids as it likes", "meta/root/state/fence.go",
		"case size > MaxIDWindow:", "case false:",
		[]string{state},
	},
	{
		10, "a window skips as many ids as it likes", "meta/root/state/fence.go",
		"case f.last.to > 0 && floor > f.value && floor-f.value > MaxIDSkip:", "case false:",
		[]string{state},
	},
	{
		10, "a claim fails with a window that is refused", "meta/root/replica/authority.go",
		"c.state.CheckIDWindow(ids.floor, ids.size) == nil && ", "",
		[]string{replica},
	},
	{
		10, "a start far ahead is asked for at once, for ever", "coordinator/idalloc/window.go",
		"w.refused && floor > top {", "false {",
		[]string{windows},
	},
	{
		10, "a window of another era is served", "coordinator/tenure/serve.go",
		"if w.GetEra() != e.number || w.From < floor", "if w == nil || w.From < floor",
		[]string{tenure},
	},
	{
		10, "a window that was not asked for is served", "coordinator/tenure/serve.go",
		" || w.From < floor || w.To < w.From || w.To-w.From != size {", " {",
		[]string{tenure},
	},
	{
		10, "a claim brings windows that may not apply", "meta/root/replica/authority.go",
		"if c.windowsFit(claim) {", "if c.windowsFit(claim) || true {",
		[]string{replica},
	},
	{
		10, "a successor inherits nothing", "meta/root/state/tenure.go",
		"inherited := &rootv1.Frontiers{AllocId: t.alloc.id.value, Tso: t.alloc.tso.value}", "inherited := &rootv1.Frontiers{}",
		[]string{state},
	},
	{
		10, "values that were not rooted are served", "coordinator/idalloc/runs.go",
		"return first, first <= limit && limit-first >= count-1", "return first, true",
		[]string{windows, stamps, tenure},
	},

	{
		11, "the vote moves in one step", "meta/root/replica/members.go",
		"	conf := c.raft.ApplyConfChange(changeBetween(before.RootMembers, c.members.RootMembers))\n",
		`	conf, change := c.members.confState(), changeBetween(before.RootMembers, c.members.RootMembers)
	c.proposals.settling = true
	for _, single := range change.Changes {
		c.raft.ApplyConfChange(&raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{single}})
	}
`,
		[]string{replica},
	},
	{
		11, "a learner that has nothing is promoted", "meta/root/replica/members.go",
		"return c.judgeLearner(learner)", "return nil",
		[]string{replica},
	},
	{
		11, "a peer that lives is replaced", "meta/root/replica/members.go",
		"if c.hears(lost) && !r.Force {", "if false {",
		[]string{replica},
	},
	{
		11, "a leader of a moment says who is lost", "meta/root/replica/members.go",
		"if c.ticks-c.ledSince < uint64(c.cfg.ElectionTicks) {", "if false {",
		[]string{replica},
	},
	{
		11, "a peer is replaced while another one is away", "meta/root/replica/members.go",
		"if id != lost && id != c.cfg.NodeID && !c.hears(id) {", "if false {",
		[]string{replica},
	},
	{
		11, "the new peers alone decide during a joint change", "meta/root/replica/members.go",
		"return majority(m.Voters) && (len(m.Outgoing) == 0 || majority(m.Outgoing))", "return majority(m.Voters)",
		[]string{replica},
	},
	{
		11, "a learner bears out a state", "meta/root/replica/members.go",
		"return majority(m.Voters) && (", "return majority(slices.Concat(m.Voters[:2], m.Learners)) && (",
		[]string{replica},
	},
	{
		11, "who leaves leads on", "meta/root/replica/members.go",
		"if !c.members.votes(c.cfg.NodeID) {", "if false {",
		[]string{replica},
	},
	{
		11, "who was replaced is listened to", "meta/root/replica/members.go",
		"return !state.WasReplaced(c.state.Cluster(), id)", "return true",
		[]string{replica},
	},
	{
		11, "a checkpoint goes by what its sender announced", "meta/root/replica/members.go",
		"m.Snapshot.Metadata.ConfState = (&members{RootMembers: st}).confState()", "_ = st",
		[]string{replica},
	},
	{
		11, "a learner votes at once", "meta/root/state/rootpeer.go",
		"Role: learnerRole, Replaces", "Role: joiningRole, Replaces",
		[]string{state},
	},
	{
		11, "a replaced node id is taken again", "meta/root/state/rootpeer.go",
		"if WasReplaced(t.cluster, next.GetNodeId()) || slices", "if slices",
		[]string{state},
	},
}
