package mutation

// Packages that must notice what breaks ownership.
const (
	holds   = "./internal/held"
	detects = "./coordinator/liveness"
	plans   = "./coordinator/placement"
	assigns = "./coordinator/assigner"
	shows   = "./coordinator/shown"
	fences  = "./member/fence"
	sdk     = "./member"
)

// ownership has rules 17 to 25: those of ownership, 1 to 9.
var ownership = []mutation{
	{
		17, "a grant counts at whatever epoch", "meta/root/state/assign.go",
		"if x := a.GetExpectedEpoch(); x != nil && EpochFromProto(x) != old.Epoch {", "if x := a.GetExpectedEpoch(); x != nil && false {",
		[]string{state},
	},
	{
		17, "an operator gives keys that others may act for", "meta/root/state/assign.go",
		"d != nil && !a.GetAtOnce()", "false && d != nil",
		[]string{"./meta/root/state", "./cmd/nokv"},
	},
	{
		17, "a grant keeps the epoch", "meta/root/state/assign.go",
		"next.Epoch = t.nextOwners(k, old.Epoch)", "next.Epoch = t.raise(k, old.Epoch)",
		[]string{state},
	},
	{
		17, "a deposed planner counts", "coordinator/assigner/propose.go",
		"Actor: p.actor, RequireEra: uint64(a.era)", "Actor: p.actor, RequireEra: 0 * uint64(a.era)",
		[]string{assigns},
	},

	{
		18, "an older set is obeyed", "internal/held/sets.go",
		"if newer < 0 || newer == 0 && !whole {", "if newer < 0 && false {",
		[]string{holds},
	},
	{
		18, "another epoch is admitted", "internal/held/table.go",
		"if q.Epoch != g.Region.Epoch && q.Epoch != (rooted.Epoch{}) {", "if false {",
		[]string{holds},
	},
	{
		18, "an incarnation that is over admits", "internal/held/held.go",
		"\tc.table.retired.Store(true)\n", "",
		[]string{holds},
	},

	{
		19, "a resource takes a lower conf version", "rooted/region.go",
		"return cmp.Or(cmp.Compare(e.Version, o.Version), cmp.Compare(e.ConfVersion, o.ConfVersion))", "return cmp.Compare(e.Version, o.Version)",
		[]string{fences},
	},
	{
		19, "a resource forgets what sticks out on the right of a region", "member/fence/fence.go",
		"if keys.End != \"\" && !o.keys.below(keys.End) {", "if false {",
		[]string{fences},
	},
	{
		19, "keys of a region that is no more begin anew", "meta/root/state/publish.go",
		"max(t.lastVersion(want.ID), k.versionFloor())", "t.lastVersion(want.ID)",
		[]string{state, fences},
	},
	{
		19, "a merge forgets how far the right region got", "meta/root/state/publish.go",
		"if right == nil || !k.carried() ||", "if true || !k.carried() ||",
		[]string{state},
	},
	{
		19, "behind a restore an owner is below one of the lost tail", "meta/root/state/removed.go",
		"\te = s.raise(k, e)\n\te.ConfVersion++\n", "\te.ConfVersion = s.raise(k, e).ConfVersion + 1\n",
		[]string{state, fences},
	},

	{
		20, "the ttl counts from the answer", "internal/held/sets.go",
		"\t\t\tat = s.sent[0].at\n", "\t\t\tat = now\n",
		[]string{holds},
	},
	{
		20, "a confirmation of an era that is over counts", "internal/held/sets.go",
		"at != 0 && a.GetEra() == c.era {", "at != 0 {",
		[]string{holds},
	},
	{
		20, "nothing is checked behind the work", "internal/held/table.go",
		"	if !t.confirms(g, now) {\n		return &Refusal{Verdict: Unconfirmed", "	if false {\n		return &Refusal{Verdict: Unconfirmed",
		[]string{holds},
	},
	{
		20, "the era is not checked behind the answer", "coordinator/server/memberanswer.go",
		"if confirms && t.check(ctx, holding.Era) != nil {", "if confirms && t.check(ctx, holding.Era) != nil && false {",
		[]string{server},
	},
	{
		20, "a standby confirms", "coordinator/liveness/core.go",
		"if m == nil || !c.holding || !m.accepting()", "if m == nil || !m.accepting()",
		[]string{detects},
	},

	{
		21, "a verdict does not wait for the fence", "coordinator/liveness/turn.go",
		"dueAt = max(dueAt, c.firstFree(&m.life))", "dueAt = max(dueAt, 0*c.firstFree(&m.life))",
		[]string{detects},
	},
	{
		21, "an answer does not extend the wait", "coordinator/liveness/core.go",
		"return c.runsOut(l.answered, ", "return c.runsOut(0*l.answered, ",
		[]string{detects},
	},
	{
		21, "a new holder does not wait", "coordinator/liveness/core.go",
		"	since := c.began\n", "	since := 0 * c.began\n",
		[]string{detects},
	},
	{
		21, "a ttl that was longer is forgotten", "coordinator/liveness/core.go",
		"Add(c.s.stretched(f.Former))", "Add(0*c.s.stretched(f.Former))",
		[]string{detects},
	},
	{
		21, "an answer of before the change counts as one of behind it", "coordinator/liveness/core.go",
		"m.fences, m.older = c.pools.changes, now", "m.fences = c.pools.changes",
		[]string{detects},
	},
	{
		21, "the root forgets a longer ttl", "meta/root/state/keyspace.go",
		"max(k.GetFormerTtlMillis(), fenceTTL(k.GetSettings()))", "fenceTTL(k.GetSettings())",
		[]string{state},
	},
	{
		21, "the drift of clocks is not waited for", "coordinator/liveness/settings.go",
		"return ttl + time.Duration(uint64(ttl/1000)*s.DriftPermille)", "return ttl + 0*time.Duration(s.DriftPermille)",
		[]string{detects},
	},
	{
		21, "a region is granted while its fence runs", "coordinator/placement/plan.go",
		"	if at <= p.Now {", "	if at <= p.Now || true {",
		[]string{plans},
	},

	{
		22, "one refused connection proves a death", "coordinator/liveness/probe.go",
		"l.refused >= 2 {", "l.refused >= 1 {",
		[]string{detects},
	},
	{
		22, "a refused connection counts beside a stream", "coordinator/liveness/probe.go",
		"case r == Refused && l.stream == 0:", "case r == Refused:",
		[]string{detects},
	},
	{
		22, "another process at the address is the member", "coordinator/liveness/probe.go",
		"	case r == AnsweredOther:\n		l.finds(ProbeOther)\n", "	case r == AnsweredOther:\n		l.asked = 0\n",
		[]string{detects},
	},
	{
		22, "a refused connection proves the death of one that another coordinator hears", "coordinator/liveness/probe.go",
		"case l.open >= m.told:", "case l.open > now:",
		[]string{detects},
	},
	{
		22, "a refused connection proves the death of one that was heard since", "coordinator/liveness/probe.go",
		"case l.elsewhere > l.broke:", "case l.elsewhere > now:",
		[]string{detects},
	},
	{
		22, "a coordinator that cannot be asked hears nobody", "coordinator/liveness/probe.go",
		"case m.toldByAll < l.foundAt && (l.proven() || now < c.firstFree(l)):", "case m.toldByAll < 0:",
		[]string{detects},
	},
	{
		22, "a proof that not everybody confirmed spares a fence", "coordinator/liveness/core.go",
		"(l.sure || l.signals&", "(true || l.signals&",
		[]string{detects},
	},
	{
		22, "deaths that are proven hold verdicts", "coordinator/liveness/guards.go",
		"m.vanished != 0 && !m.explained && !m.proven() &&", "m.vanished != 0 &&",
		[]string{detects},
	},
	{
		22, "members that may own nothing of a keyspace count for its guard", "coordinator/liveness/guards.go",
		"if k.hosts == \"\" || c.owned.Hosts(m.id, k.name) {", "if true {",
		[]string{detects},
	},
	{
		22, "an owner whose record does not name the keyspace counts for no guard", "coordinator/liveness/guards.go",
		"	count(c.tolls.beyond[k.id])\n", "",
		[]string{detects},
	},
	{
		22, "a plan that takes long holds probes up", "coordinator/assigner/run.go",
		"	a.calls.Go(func() { a.detect(ctx) })\n", "",
		[]string{"./coordinator/assigner"},
	},
	{
		22, "who takes nothing that it is shown is confirmed", "coordinator/liveness/core.go",
		"|| m.signals&TakesNothing != 0 {", "{",
		[]string{detects},
	},
	{
		22, "who lets go of nothing keeps what it does not serve", "coordinator/placement/steps.go",
		"case p.over(x, x.deadline()) && p.clings(x):", "case false && p.clings(x):",
		[]string{plans},
	},
	{
		22, "a region that its owner never speaks of counts as served", "coordinator/assigner/unsaid.go",
		"if !a.said(at) && a.owes(at) {", "if false && !a.said(at) && a.owes(at) {",
		[]string{"./coordinator/assigner"},
	},
	{
		22, "a hold never ends", "coordinator/liveness/guards.go",
		"return now < m.vanished.Add(k.massHold) && c", "return c",
		[]string{detects},
	},
	{
		22, "a reset proves a death", "coordinator/memberprobe.go",
		"if errors.Is(err, syscall.ECONNREFUSED) {", "if err != nil {",
		[]string{"./coordinator"},
	},

	{
		23, "a verdict on another incarnation counts", "meta/root/state/member.go",
		"if i := e.GetIncarnation(); i != 0 && i != old.GetIncarnation() {", "if i := e.GetIncarnation(); i != 0 && false {",
		[]string{state},
	},
	{
		23, "who has failed still owns", "meta/root/state/member.go",
		"		s.endLife(life(old.GetIncarnation()))\n", "",
		[]string{state},
	},
	{
		23, "who has failed is confirmed", "coordinator/liveness/core.go",
		"|| m.judged || m.proven() || m.signals", "|| m.signals",
		[]string{detects},
	},
	{
		23, "the coldest regions are granted first", "coordinator/placement/plan.go",
		"return cmp.Or(cmp.Compare(b.load, a.load), cmp.Compare(a.region.ID, b.region.ID))", "return cmp.Compare(a.region.ID, b.region.ID)",
		[]string{plans},
	},

	{
		24, "a move is completed without the frontier", "coordinator/placement/steps.go",
		"case done:\n\t\tp.proceed(x, Operation{Kind: Complete, Frontier: last.Frontier, SetFrontier: true})", "case done:\n\t\t_ = last\n\t\tp.proceed(x, Operation{Kind: Complete})",
		[]string{plans},
	},
	{
		24, "a goodbye releases nothing", "coordinator/placement/plan.go",
		"|| !report.Last ||", "|| true ||",
		[]string{plans, "./nokvtest"},
	},
	{
		24, "nobody is told that a goodbye was the last word", "coordinator/assigner/heard.go",
		"		report.Last = o.core.Left(owner.Member, owner.Incarnation)\n", "",
		[]string{"./nokvtest"},
	},
	{
		24, "a last word that is ahead of the view is dropped", "coordinator/catalog/reports.go",
		"if len(shard.early) < share(maxEarly) &&", "if false &&",
		[]string{"./coordinator/catalog"},
	},
	{
		24, "what was said before the last word takes it back", "coordinator/server/memberstream.go",
		"if err == nil && s.cfg.Soft.Ended(id, incarnation) {", "if false {",
		[]string{server},
	},
	{
		24, "frames of an incarnation are taken at once", "coordinator/server/memberstream.go",
		"	m.turn.taking.Lock()\n	defer m.turn.taking.Unlock()\n", "",
		[]string{server},
	},
	{
		24, "what was said before the last word comes between its parts", "coordinator/server/memberstream.go",
		"	case m.turn.leaving.Load():", "	case false:",
		[]string{server},
	},
	{
		24, "what was said before the last word takes its place", "coordinator/server/membertable.go",
		"h.turn.leaving.Load() && !gone", "false",
		[]string{server},
	},
	{
		24, "a frame of a stream that was replaced is taken", "coordinator/server/memberstream.go",
		"	case m.turn.newest.Load() != m.number:", "	case false:",
		[]string{server},
	},
	{
		24, "last words are in the memory of coordinators alone", "coordinator/assigner/propose.go",
		"	if v.Signals&liveness.Gone == 0 {\n		return nil", "	if true {\n		return nil",
		[]string{"./nokvtest"},
	},
	{
		24, "a last word waits for the next frame", "member/member.go",
		"			kick(l.wake) // what is said last is said at once, whatever the interval\n", "",
		[]string{"./member"},
	},
	{
		24, "a complete report ends before what changed behind its part", "internal/held/frames.go",
		"f.Partial = s.whole || len(s.dirty) > 0 //", "f.Partial = s.whole //",
		[]string{"./internal/held"},
	},
	{
		24, "an early last word ends with the next process", "coordinator/catalog/reports.go",
		"	if now == nil || r.epoch.NewerThan(now.Epoch) {", "	if true {",
		[]string{"./coordinator/catalog"},
	},
	{
		24, "what was said of a move that was given up counts", "coordinator/placement/steps.go",
		"report.Shown.Compare(state.TokenFromProto(x.t.GetPlannedAt())) >= 0", "true",
		[]string{plans},
	},
	{
		24, "the old owner is told to release before the next one is ready", "coordinator/shown/set.go",
		"(v.move.GetReadyAt() != nil || v.peer == nil && !shared(v.settings))", "true",
		[]string{shows},
	},
	{
		24, "a region is released while work goes on", "internal/held/held.go",
		"	if r.busy() && !c.outlast(r, now) {", "	if false {",
		[]string{holds},
	},
	{
		24, "a move is planned for a region that is on its way", "coordinator/placement/plan.go",
		"if p.Busy.Has(id) || r == nil {", "if r == nil {",
		[]string{plans, assigns},
	},

	{
		25, "a request of an epoch to come is refused", "internal/held/table.go",
		"	if asked.Compare(g.Region.Epoch) > 0 {", "	if false {",
		[]string{holds},
	},
	{
		25, "who gives does not say to whom", "internal/held/table.go",
		`s.role == coordinatorv1.MoveRole_MOVE_ROLE_GIVES && s.peer.Member != "" && r.phase != phaseNone && !c.over:`,
		`s.role == coordinatorv1.MoveRole_MOVE_ROLE_GIVES && s.peer.Member != "" && false:`,
		[]string{holds},
	},
}
