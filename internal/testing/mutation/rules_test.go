package mutation

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
)

// rules is their number; each is broken by a mutation at least.
const rules = 14

// mutation breaks one rule at one place.
type mutation struct {
	// rule of authority, 1 to 9; 10: windows and fences; 11: who votes at the
	// root; 12: what readers are told, and how much is let in;
	// 13: a change is carried out once, and by the cluster that it is for;
	// 14: nobody has to read what it does not understand.
	rule int
	name string // what is broken
	file string // from the root of the repository
	old  string // occurs once
	new  string
	by   []string // packages, one of which must fail
}

var mutations = []mutation{
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
		"t.GetHolderId() == r.GetHolderId() && t.GetHolderIncarnation() == r.GetHolderIncarnation()",
		"t.GetHolderId() == r.GetHolderId()",
		[]string{replica},
	},
	{
		2, "a confirmation needs no quorum of its own", "meta/root/replica/read.go",
		"if r.id == nil || !bytes.Equal(s.RequestCtx, r.id) {", "if r.id == nil {",
		[]string{replica},
	},

	{
		3, "an era expires at once", "meta/root/replica/authority.go",
		"if wait := c.untilExpired(t); wait > 0 {", "if wait := c.untilExpired(t); wait > 1<<62 {",
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
		"consumed = r.ended.frontiers()", "consumed = a.Tenure.GetInherited()",
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
		"if run.Good(h.cfg.Clock.Now()) {",
		"if until := run.era.confirmedUntil(); h.cfg.Clock.Now() < until {",
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

	{
		12, "what is older than the bound is served", "coordinator/rootview/serve.go",
		"if !ok || age > bound {", "if !ok || age > 1<<62 {",
		[]string{view},
	},
	{
		12, "what is further behind than allowed is served", "coordinator/rootview/serve.go",
		"lag > o.GetMaxRootLag() {", "lag > o.GetMaxRootLag() && false {",
		[]string{view},
	},
	{
		12, "a lag that nobody knows is within the bound", "coordinator/rootview/serve.go",
		"} else if v.Mode(now) == coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE {", "} else if false {",
		[]string{view},
	},
	{
		12, "a replayed past is served as the present", "coordinator/rootview/view.go",
		"func (v *View) Loaded() bool { return v.whole }", "func (v *View) Loaded() bool { return true }",
		[]string{view},
	},
	{
		12, "a descriptor older than asked for is served", "coordinator/rootview/serve.go",
		"if found >= required {", "if true {",
		[]string{view, server},
	},
	{
		12, "a view is level with what it has not applied", "coordinator/rootview/core.go",
		"at.Compare(c.known) >= 0 && resp.GetCommitIndex() >= at.Index {", "resp.GetCommitIndex() >= at.Index {",
		[]string{view},
	},
	{
		12, "a peer that knows less vouches for a view", "coordinator/rootview/core.go",
		"at.Compare(c.known) >= 0 && resp.GetCommitIndex() >= at.Index {", "at.Compare(c.known) >= 0 {",
		[]string{view},
	},
	{
		12, "what waited on its way vouches for the present", "coordinator/rootview/core.go",
		"quiet <= c.cfg.SilentAfter || c.first {", "quiet <= c.cfg.SilentAfter || true {",
		[]string{view},
	},
	{
		12, "a peer without a leader vouches for the present", "coordinator/rootview/core.go",
		"sent.Add(-c.leaderless))", "sent)",
		[]string{view},
	},
	{
		12, "another cluster's entries are applied", "coordinator/rootview/core.go",
		"if c.clusterID != 0 && resp.GetClusterId() != c.clusterID {", "if false {",
		[]string{view},
	},
	{
		12, "a gap in the tail is passed over", "coordinator/rootview/core.go",
		"if !inOrder || e.GetIndex() == 0 {", "if !inOrder && false || e.GetIndex() == 0 {",
		[]string{view},
	},
	{
		12, "a strong read uses an index asked for before it came", "coordinator/rootview/strong.go",
		"r.forming = nil\n\treturn taken", "return taken",
		[]string{view},
	},
	{
		12, "a token is not waited for", "coordinator/rootview/wait.go",
		"if v := f.View(); v.Token.Compare(at) >= 0 {", "if v := f.View(); true {",
		[]string{view},
	},
	{
		12, "a token of another incarnation is waited for", "coordinator/rootview/wait.go",
		"if at.Incarnation == v.Token.Incarnation && (", "if at.Incarnation != 0 && (",
		[]string{view},
	},
	{
		12, "who waits is woken too early", "coordinator/rootview/wait.go",
		"l.heap[0].at.Compare(reached) <= 0", "l.heap[0] != nil",
		[]string{view},
	},
	{
		12, "a watcher that was overtaken reads on", "coordinator/rootview/feed.go",
		"if at.Compare(f.base) < 0 {", "if false {",
		[]string{view},
	},
	{
		12, "calls without number are let in", "coordinator/server/limits.go",
		"if g.n.Add(1) <= g.limit {", "if g.n.Add(1) > 0 {",
		[]string{server},
	},
	{
		12, "a call without a deadline is let in", "coordinator/server/admission.go",
		"if _, ok := ctx.Deadline(); !ok {", "if _, ok := ctx.Deadline(); !ok && false {",
		[]string{server},
	},
	{
		12, "connections without number are let in", "internal/listen/listen.go",
		"if l.closed || len(l.open) >= l.limit {", "if l.closed {",
		[]string{accepts},
	},
	{
		12, "a client believes another cluster", "coordinator/client/call.go",
		"if id == 0 || c.cluster.Load() == id || c.cluster.CompareAndSwap(0, id) {", "if c.cluster.CompareAndSwap(0, id) || true {",
		[]string{client},
	},
	{
		12, "a client takes ids of no cluster", "coordinator/client/call.go",
		"if r.cluster == 0 {", "if false {",
		[]string{client},
	},
	{
		12, "a cache keeps an answer that is older than itself", "coordinator/client/cache.go",
		" || r.At.Compare(t.at.Token) < 0 {", " {",
		[]string{client},
	},
	{
		12, "a cache goes back to an older descriptor", "coordinator/client/cache.go",
		"if mine.Revision > r.Revision {", "if false {",
		[]string{client},
	},
	{
		12, "a cache drops a route newer than the stale one", "coordinator/client/cache.go",
		"if mine != nil && mine.Revision > stale.Region.Revision {", "if false {",
		[]string{client},
	},
	{
		12, "a cache shows half a snapshot", "coordinator/client/watch.go",
		"if !b.Last {", "if false {",
		[]string{client},
	},
	{
		12, "a part of a batch carries the position behind the batch", "coordinator/server/watch.go",
		"w.send(w.at, false, true, part)", "w.send(k.to, false, true, part)",
		[]string{server},
	},
	{
		12, "a watch begins behind its reader", "coordinator/server/watch.go",
		"case w.at.Index > now.Index:", "case false:",
		[]string{server},
	},
	{
		12, "a snapshot takes a reader back", "coordinator/client/watch.go",
		"if to.Compare(w.at) < 0 {", "if to.Compare(w.at) < 0 && !m.GetSnapshot() {",
		[]string{client},
	},
	{
		12, "a snapshot that is not what was promised is shown", "meta/root/state/restore.go",
		"if err == nil && st.Hash() != hash {", "if false {",
		[]string{view},
	},
	{
		12, "a snapshot takes a view back", "coordinator/rootview/snapshot.go",
		"at.Index == 0 || at.Compare(have) < 0 {", "at.Index == 0 {",
		[]string{view},
	},
	{
		12, "another cluster's snapshot is shown", "coordinator/rootview/snapshot.go",
		"if c.clusterID != 0 && id != c.clusterID {", "if false {",
		[]string{view},
	},
	{
		12, "who reads on in the middle of a batch gets none of its rest", "coordinator/rootview/feed.go",
		"b.Changes = b.Changes[b.ends[skip-1]:]", "b.Changes = b.Changes[b.ends[len(b.ends)-1]:]",
		[]string{view},
	},
	{
		12, "what is forgotten is passed over", "coordinator/rootview/feed.go",
		"f.base = b.Token\n\tf.size", "f.size",
		[]string{view},
	},
	{
		12, "a keyspace that had a name is not that of the name", "coordinator/rootview/feed.go",
		"f.feed.named[name]", "f.feed.named[name+name]",
		[]string{server},
	},
	{
		12, "a bounded watch outlives its bound", "coordinator/server/watch.go",
		"if err != nil && w.unheld {", "if false {",
		[]string{server},
	},
	{
		12, "a position that the root never had is waited at", "coordinator/server/watch.go",
		"case w.at.Compare(v.view.Token) > 0:", "case false:",
		[]string{server},
	},
	{
		12, "a position of another log is read on from", "coordinator/server/watch.go",
		"case w.at.Incarnation > now.Incarnation || w.at.Index <= now.Index && w.at.Term > now.Term:", "case false:",
		[]string{server},
	},
	{
		12, "a watch ends with the keyspace that it began with", "coordinator/server/watch.go",
		"} else if w.resumed && reason", "} else if false && reason",
		[]string{server},
	},
	{
		12, "a page of members is as long as it gets", "coordinator/server/members.go",
		"== limit || bytes > MaxReplyBytes; resp", "== limit || bytes > MaxReplyBytes<<20; resp",
		[]string{server},
	},
	{
		12, "a page of keyspaces is as long as it gets", "coordinator/server/keyspaces.go",
		"== limit || bytes > MaxReplyBytes {", "== limit || bytes > MaxReplyBytes<<20 {",
		[]string{server},
	},
	{
		12, "a page of transitions is as long as it gets", "coordinator/server/status.go",
		"case n == limit || bytes > MaxReplyBytes:", "case n == limit || bytes > MaxReplyBytes<<20:",
		[]string{server},
	},
	{
		12, "a page of regions is as long as it gets", "coordinator/server/routes.go",
		"bytes > MaxReplyBytes && i > 0 {", "bytes > MaxReplyBytes<<20 && i > 0 {",
		[]string{server},
	},
	{
		12, "a page begins behind what was left out", "coordinator/server/routes.go",
		"[]byte(r.Start)\n\t\t\tbreak", "[]byte(r.End)\n\t\t\tbreak",
		[]string{server},
	},
	{
		12, "results are as long as they get", "coordinator/server/publish.go",
		"shorten.Results(out[i].GetResults())\n", "",
		[]string{server},
	},
	{
		12, "a batch that broke off is gone on with", "coordinator/client/watch.go",
		"if w.inside && m.GetSnapshot() != w.whole {", "if false {",
		[]string{client},
	},
	{
		12, "a part of a batch moves a reader", "coordinator/client/watch.go",
		"if b.Last {\n\t\tw.at", "if b.Last || true {\n\t\tw.at",
		[]string{client},
	},
	{
		12, "a reader goes on at another cluster", "coordinator/client/watch.go",
		"if w.cluster != 0 {\n", "if false {\n",
		[]string{client},
	},
	{
		12, "a watch stays at a coordinator that is cut off", "coordinator/client/watch.go",
		"if w.stale(m) {", "if false {",
		[]string{client},
	},
	{
		12, "a region that goes takes another one with it", "coordinator/client/mirror.go",
		"ok && there.ID == r.ID {", "ok && there != nil {",
		[]string{client},
	},
	{
		12, "a damaged copy is loaded", "coordinator/client/mirror.go",
		"if !slices.Equal(got, want) {", "if false {",
		[]string{client},
	},
	{
		12, "who asks for different bounds shares an answer", "coordinator/client/lookups.go",
		"\tk.lag, k.age = o.GetMaxRootLag(), o.GetMaxRootLagMillis()\n", "",
		[]string{client},
	},
	{
		12, "who asks for a position shares the answer of who does not", "coordinator/client/lookups.go",
		"o.GetFreshness(), rooted.TokenFromProto(o.GetRequiredRootToken())", "o.GetFreshness(), rooted.Token{}",
		[]string{client},
	},
	{
		12, "a session goes back", "coordinator/client/position.go",
		"if token.Compare(s.token) > 0 {", "if true {",
		[]string{client},
	},
	{
		12, "a loop that stalls goes on vouching", "meta/root/replica/replica.go",
		"since != 0 && r.clock.Now()", "false && r.clock.Now()",
		[]string{replica},
	},
	{
		12, "a peer that stood still, between two turns or at the end of one, goes on vouching", "meta/root/replica/core.go",
		"if c.now.Sub(before) > c.cfg.electionTimeout() {", "if c.now.Sub(before) > 5*c.cfg.electionTimeout() {",
		[]string{replica},
	},
	{
		12, "what waited in a socket informs a peer that was frozen", "meta/root/replica/election.go",
		"	c.retryRead()\n	clear(c.heard)", "	clear(c.heard)",
		[]string{replica},
	},

	{
		13, "a repetition is not recognised", "meta/root/state/remember.go",
		"if n := t.commands.find(id); n >= 0 {", "if n := t.commands.find(id); n >= 0 && false {",
		[]string{state},
	},
	{
		13, "a repetition older than what is remembered is applied", "meta/root/state/remember.go",
		"if forgotten := t.counters.forgottenTo; id.GetKnownIndex() < forgotten {", "if forgotten := t.counters.forgottenTo; false {",
		[]string{state},
	},
	{
		13, "a rejected command is not remembered", "meta/root/state/apply.go",
		"t.remember(c, v, results)", "if v.reject == nil {\n\t\tt.remember(c, v, results)\n\t}",
		[]string{state},
	},
	{
		13, "a member need not follow the rooted one", "meta/root/state/member.go",
		"case !sameStart && e.GetFollows() != old.GetIncarnation():", "case false:",
		[]string{state},
	},
	{
		13, "a coordinator need not follow the rooted one", "meta/root/state/member.go",
		"if !same && old.GetIncarnation() != e.GetFollows() {", "if false {",
		[]string{state},
	},
	{
		13, "a removed region's id is given again", "meta/root/state/fence.go",
		"idKey(id)); removed {", "idKey(id)); removed && false {",
		[]string{state},
	},
	{
		13, "a removed region comes back at an epoch that it had", "meta/root/state/removed.go",
		"return r.epoch.Version\n", "return 0 * r.epoch.Version\n",
		[]string{state},
	},
	{
		13, "a root peer carries out another cluster's call", "meta/root/server/limits.go",
		"if id == 0 || id == s.cfg.ClusterID {", "if true {",
		[]string{peers},
	},
	{
		13, "a coordinator carries out another cluster's call", "internal/clusterid/clusterid.go",
		"case own != 0 && id != own:", "case false:",
		[]string{server, client},
	},
	{
		13, "a change may name no cluster", "internal/clusterid/clusterid.go",
		"if len(named) == 0 && !g.Changes(method) {", "if len(named) == 0 {",
		[]string{server, client},
	},
	{
		13, "a change asked of the root may name no cluster", "meta/root/server/limits.go",
		"if id != 0 {\n\t\treturn s.checkCluster", "if true {\n\t\treturn s.checkCluster",
		[]string{peers},
	},
	{
		13, "a change that comes without an identity gets none", "coordinator/server/publish.go",
		"\ts.identify(cmds)\n", "",
		[]string{server},
	},
	{
		13, "a caller's identity is replaced", "coordinator/client/call.go",
		"if cmd.GetIdentity() != nil {", "if false {",
		[]string{client},
	},
	{
		13, "what may have been carried out is asked for as something new", "coordinator/client/publish.go",
		"&& !open && mine != cmd:", "&& mine != cmd:",
		[]string{client},
	},
	{
		13, "a call that may have been carried out is made as a new one", "coordinator/client/call.go",
		"if !forgotten(err) || open.Load() > 0 {", "if !forgotten(err) {",
		[]string{client},
	},
	{
		13, "what was sent on a broken stream never arrived", "coordinator/client/publish.go",
		"opened > 1 || opened == 1 && b.live {", "opened > 1 {",
		[]string{client},
	},
	{
		13, "a command's condition is left behind", "coordinator/client/call.go",
		"RequireEra: cmd.GetRequireEra(), ", "",
		[]string{client},
	},

	{
		14, "what not everybody understands enters the log", "meta/root/state/feature.go",
		"if need <= rooted {", "if true {",
		[]string{peers},
	},
	{
		14, "an old leader judges the feature level", "meta/root/server/propose.go",
		"return s.currentAsLeader(ctx)", "return st, nil",
		[]string{peers},
	},
	{
		14, "the level is raised while a process is below", "meta/root/server/feature.go",
		"if req.GetDryRun() || to <= rooted || to > common {", "if req.GetDryRun() || to <= rooted {",
		[]string{peers},
	},
	{
		14, "the level is raised as soon as everybody is level", "meta/root/server/feature.go",
		"time.Since(since) >= s.cfg.RaiseAfter", "!since.IsZero()",
		[]string{peers},
	},
	{
		14, "a reader that is too old is served", "meta/root/server/tail.go",
		"if understands >= rooted {", "if true {",
		[]string{peers},
	},
	{
		14, "a root peer that is too old is let in", "meta/root/transport/handshake.go",
		"level >= c.GetFeatureLevel() {", "level > 0 {",
		[]string{wires},
	},
	{
		14, "a coordinator that is too old takes the place of another", "meta/root/state/member.go",
		"level < t.FeatureLevel() {", "level == 0 {",
		[]string{state},
	},
}
