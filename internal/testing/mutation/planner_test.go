package mutation

// Packages that must notice what breaks a plan.
const (
	evens  = "./coordinator/placement/balance"
	weighs = "./coordinator/placement/load"
)

// lately has more of rules 21 and 22 of ownership: what is waited for when settings change,
// and who may be asked whether it lives.
var lately = []mutation{
	{
		20, "a longer ttl counts at once", "internal/held/sets.go",
		"	case k.shorter == 0 || m.TTL <= k.shorter:", "	case true:",
		[]string{holds},
	},
	{
		20, "a shorter ttl does not count", "internal/held/sets.go",
		"	case k.shorter == 0 || m.TTL <= k.shorter:", "	case k.shorter == 0:",
		[]string{holds},
	},
	{
		20, "a longer ttl counts for a frame of before it", "internal/held/sets.go",
		"if k.longer == 0 || sent < k.longerFrom {", "if k.longer == 0 {",
		[]string{holds},
	},
	{
		20, "a ttl runs out between two frames", "meta/root/state/check.go",
		"ttl > 0 && ttl < 2*interval {", "ttl > 0 && ttl < interval {",
		[]string{state},
	},
	{
		21, "a member is dead between two frames", "meta/root/state/check.go",
		"dead > 0 && dead < interval {", "dead > 0 && dead < interval/2 {",
		[]string{state},
	},
	{
		22, "who is refused at its own address serves on", "member/member.go",
		"	if m.core != nil {\n		m.endLocked(m.lost)\n	}\n", "",
		[]string{sdk},
	},
	{
		22, "nobody says that the listener is lost", "member/probe.go",
		"			p.lost(err)\n", "",
		[]string{sdk},
	},
}

// planner has rules 27 to 33: the promises of package placement, 1 to 7, with those of
// packages balance and load that they rest on.
var planner = []mutation{
	{
		27, "operations come as they are found", "coordinator/placement/plan.go",
		"	slices.SortFunc(p.plan.Operations, inOrder)\n", "",
		[]string{plans},
	},
	{
		27, "a round depends on the order of its input", "coordinator/placement/balance/make.go",
		"if !slices.IsSortedFunc(r.regions, byID) {", "if false {",
		[]string{evens},
	},
	{
		27, "no number is a load", "coordinator/placement/load/amount.go",
		"if !(x >= 0 && x <= 1e300) {", "if x < 0 {",
		[]string{weighs},
	},
	{
		27, "a negative number is a load", "coordinator/placement/load/amount.go",
		"if !(x >= 0 && x <= 1e300) {", "if !(x <= 1e300) {",
		[]string{weighs},
	},

	{
		28, "an operation does not say at which epoch", "coordinator/placement/plan.go",
		"o.Region, o.Keyspace, o.Epoch = r.ID, r.Keyspace, r.Epoch", "o.Region, o.Keyspace = r.ID, r.Keyspace",
		[]string{plans},
	},
	{
		28, "a region that was not let go is asked for again at once", "coordinator/placement/drain.go",
		"until > p.Now", "until > p.Now && false",
		[]string{plans, assigns},
	},
	{
		28, "a new holder counts deadlines anew", "coordinator/placement/steps.go",
		"	if !known {", "	if known = false; !known {",
		[]string{plans, assigns},
	},
	{
		28, "a step does not say of which plan", "coordinator/placement/steps.go",
		"x.t.GetId(), x.t.GetPlannedAt().GetIndex()", "x.t.GetId(), 0*x.t.GetPlannedAt().GetIndex()",
		[]string{plans},
	},

	{
		29, "a region is granted before whom it was taken from knows", "coordinator/placement/plan.go",
		"if !p.letGo(f) && !p.clear(", "if !p.letGo(f) && false && !p.clear(",
		[]string{plans},
	},
	{
		29, "who was shown less has let go", "coordinator/placement/plan.go",
		"&& shown.Index >= f.Revision", "&& shown.Index > 0",
		[]string{plans},
	},
	{
		29, "a region on its way is granted while its fence runs", "coordinator/placement/steps.go",
		"	if !p.clear(x.k, x.region, x.from) {", "	if false {",
		[]string{plans},
	},
	{
		29, "a release without frontier completes a move", "coordinator/placement/steps.go",
		"	done = done && last.SetFrontier\n", "",
		[]string{plans},
	},
	{
		29, "what was said of another epoch counts", "coordinator/placement/steps.go",
		"report.Transition == x.t.GetId() && report.Epoch == x.region.Epoch &&", "report.Transition == x.t.GetId() &&",
		[]string{plans},
	},
	{
		29, "what another life said counts", "coordinator/placement/steps.go",
		"report, ok && report.Incarnation == o.Incarnation && report.Phase == phase &&", "report, ok && report.Phase == phase &&",
		[]string{plans},
	},

	{
		30, "a move does not end", "coordinator/placement/steps.go",
		"	case p.over(x, x.deadline()):\n		p.cancel(x, \"its deadline has passed\")\n	case x.t.GetReadyAt() == nil && p.prepared(x) &&",
		"	case x.t.GetReadyAt() == nil && p.prepared(x) &&",
		[]string{plans},
	},
	{
		30, "a next owner that cannot take is waited for", "coordinator/placement/steps.go",
		"	case !p.mayHave(x.k, x.to):\n		p.cancel(x, \"the next owner", "	case false:\n		p.cancel(x, \"the next owner",
		[]string{plans},
	},
	{
		30, "a next owner that does not get ready is waited for", "coordinator/placement/steps.go",
		"return said || p.over(x, p.prepareMax(x))", "return said",
		[]string{plans},
	},
	{
		30, "a split does not end", "coordinator/placement/steps.go",
		"	case p.over(x, x.deadline()):\n		p.cancel(x, \"its deadline has passed\")\n	default:\n		p.wait(x, NotReleased, x.deadline())\n	}\n	return true\n}\n\n// told",
		"	default:\n		p.wait(x, NotReleased, x.deadline())\n	}\n	return true\n}\n\n// told",
		[]string{plans},
	},
	{
		30, "who plans next counts from when it began", "coordinator/placement/work.go",
		"	if known && old.same(x) {\n", "	if false {\n",
		[]string{plans},
	},
	{
		30, "a goodbye takes as long as any drain", "coordinator/placement/steps.go",
		"if most == 0 || half < most {", "if false {",
		[]string{plans},
	},

	{
		31, "a new owner of a shared region is one before it is ready", "coordinator/placement/steps.go",
		"	case p.prepared(x):\n		p.proceed(x, Operation{Kind: Complete})", "	case true:\n		p.proceed(x, Operation{Kind: Complete})",
		[]string{plans},
	},
	{
		31, "an owner of a shared region goes while no other serves", "coordinator/placement/steps.go",
		"{ return p.serves(x.region, o) })", "{ return true })",
		[]string{plans},
	},
	{
		31, "the last owner of a shared region is taken off at once", "coordinator/placement/drain.go",
		"if stay < k.needed(w.reason) {", "if stay < k.needed(w.reason) && !k.shared() {",
		[]string{plans},
	},

	{
		31, "a shared region lets go before its next owner has it", "coordinator/placement/rebalance.go",
		"		if k.oneMore(r) {\n", "		if false {\n",
		[]string{plans},
	},
	{
		31, "an owner goes before the one serves that was added for it", "coordinator/placement/steps.go",
		"may = p.serves(x.region, l.to)", "may = may || p.stays(l.to)",
		[]string{plans},
	},

	{
		32, "a member gives away all at once", "coordinator/placement/drain.go",
		"	if p.under(from.Member) >= w.most {", "	if false {",
		[]string{plans},
	},
	{
		32, "a member takes all at once", "coordinator/placement/targets.go",
		"busy := move && p.taking(s.ID) >= inFlight; busy {", "busy := false && p.taking(s.ID) >= inFlight; busy {",
		[]string{plans},
	},
	{
		32, "what is proposed is taken however much it has", "coordinator/placement/targets.go",
		"t.seen[i].Load.Plus(w) > max(t.room(i, mostPart), w):", "false:",
		[]string{plans},
	},
	{
		32, "what is proposed is taken whoever it is", "coordinator/placement/targets.go",
		"	case !may(i):\n", "	case false:\n",
		[]string{plans},
	},
	{
		32, "most members vanish, and the others get all", "coordinator/placement/rebalance.go",
		"return members, 2*missing > len(members)", "return members, 20*missing > 19*len(members)+missing",
		[]string{plans},
	},
	{
		32, "a round of evening out has no budget", "coordinator/placement/balance/pay.go",
		"return first || !round.above(r.allowance()) && (", "return first || (",
		[]string{evens},
	},
	{
		32, "a round has any number of moves", "coordinator/placement/balance/pay.go",
		"r.k.MostMoves == 0 || l.moves+n <= r.k.MostMoves)", "r.k.MostMoves == 0 || l.moves+n <= 1000*r.k.MostMoves)",
		[]string{evens},
	},
	{
		32, "joiners get all that they lack at once", "coordinator/placement/balance/pay.go",
		"return max(r.k.Round*1000, r.joiner)", "return 1 << 62",
		[]string{evens},
	},
	{
		32, "whoever has least gets more than it can take", "coordinator/placement/balance/field.go",
		"	if f.roomy == nil {", "	if true {",
		[]string{evens},
	},
	{
		32, "one mad load counts in what all have", "coordinator/placement/balance/weigh.go",
		"	if w > s.heavy {", "	if false {",
		[]string{evens},
	},
	{
		32, "regions of two members are joined", "coordinator/placement/balance/shape.go",
		"own != r.owners(b)[0] || ", "",
		[]string{evens},
	},
	{
		32, "a member has next to no regions left when all are joined", "coordinator/placement/balance/shape.go",
		"r.f.seats[own].Count <= leastRegions || ", "",
		[]string{evens},
	},
	{
		32, "an hour of evening out has no budget", "coordinator/placement/balance/pay.go",
		"reaches(most) && !(", "reaches(most) && false && !(",
		[]string{evens},
	},
	{
		32, "what was spent an hour ago counts for ever", "coordinator/placement/balance/budget.go",
		"if int64(now)/int64(slotTime)-s.number < int64(len(b.slots)) {", "if s.number >= 0 {",
		[]string{evens},
	},
	{
		32, "rounds of evening out follow each other", "coordinator/placement/balance/shed.go",
		"rests, waits, idle := !r.out.Budget.over(Shed, &r.k, r.Now), nobody, nobody", "rests, waits, idle := false, nobody, nobody",
		[]string{evens},
	},
	{
		32, "a region is moved to even out, and again", "coordinator/placement/balance/pay.go",
		"	r.out.Budget.rest(r.regions[region].ID, r.Now.Add(r.k.Spacing))\n", "",
		[]string{evens},
	},
	{
		32, "what could not be moved is tried again at once", "coordinator/placement/balance/budget.go",
		"b.rest(id, now.Add(p.withDefaults().Backoff))", "b.rest(id, now)",
		[]string{evens},
	},
	{
		32, "who plans next does not know what was spent", "coordinator/placement/balance/budget.go",
		"if !m.Failed && !m.Late && now.Sub(m.At) < time.Hour {", "if !m.Failed && !m.Late && now.Sub(m.At) < 0 {",
		[]string{evens},
	},
	{
		32, "who plans next does not know what rests", "coordinator/placement/balance/budget.go",
		"		if rests > now {", "		if false {",
		[]string{evens},
	},
	{
		32, "a member that is not heard gets something", "coordinator/placement/rebalance.go",
		"x.Takes, x.Regions = p.Observed.Takes(x.ID) && !trial, ", "x.Takes, x.Regions = !trial, ",
		[]string{plans},
	},
	{
		32, "a label of another value is as good", "coordinator/placement/balance/rules.go",
		"!ok || got != v {", "!ok && got != v {",
		[]string{evens},
	},
	{
		32, "who has as many regions as it may gets one more", "coordinator/placement/balance/field.go",
		"s.Count < f.k.PerMember)", "s.Count <= f.k.PerMember)",
		[]string{evens},
	},
	{
		32, "a member whose load is not known gets something", "coordinator/placement/balance/make.go",
		"s.Stale || s.gets >= r.f.most(s) {", "s.gets >= r.k.InFlight {",
		[]string{evens},
	},
	{
		32, "what gains nothing is moved", "coordinator/placement/balance/shed.go",
		"<= r.below(from)\n}", "<= r.level(from, r.f.seats[from].Low)\n}",
		[]string{evens},
	},
	{
		32, "room of its own is nothing for who is to have no more for its capacity", "coordinator/placement/balance/shed.go",
		"	return r.round == Limit && r.limitOf(to) > 0 ||\n		r.level(", "	return r.level(",
		[]string{evens},
	},
	{
		32, "what was weighed is of who had it then", "coordinator/placement/weigh.go",
		"				w.count(c.Region.Owners, l, known, 1)\n", "				w.count(c.OldRegion.Owners, l, known, 1)\n",
		[]string{plans},
	},
	{
		32, "a move makes the higher load higher", "coordinator/placement/balance/shed.go",
		"if to < 0 || !r.lowers(from, to, r.weights[region].High) {", "if to < 0 {",
		[]string{evens},
	},
	{
		32, "what is under way is counted where it was", "coordinator/placement/balance/make.go",
		"ok && o.Member != x.From {", "ok {",
		[]string{evens},
	},
	{
		32, "what is under way is moved", "coordinator/placement/balance/make.go",
		"r.begun[i] = x.Busy || x.Quarantined", "r.begun[i] = x.Quarantined",
		[]string{evens},
	},
	{
		32, "loads that are not known are evened out", "coordinator/placement/balance/make.go",
		"	case r.scale.Estimated:", "	case r.scale.Estimated && false:",
		[]string{evens},
	},
	{
		32, "a spike moves something", "coordinator/placement/load/book.go",
		"return Pair{min(avg.fast, avg.slow, most)", "return Pair{min(max(avg.fast, avg.slow), most)",
		[]string{weighs},
	},
	{
		32, "a lull attracts something", "coordinator/placement/load/book.go",
		"min(max(avg.fast, avg.slow), most)}, true", "min(avg.fast, avg.slow, most)}, true",
		[]string{weighs},
	},
	{
		32, "a region that came just now is judged by its last seconds", "coordinator/placement/load/book.go",
		"now.Sub(r.moved) < settledAfter {", "now.Sub(r.moved) < 0 {",
		[]string{weighs},
	},
	{
		32, "what is booked is counted beside what is told", "coordinator/placement/load/book.go",
		"	case booked:\n		m.booked -= p.value\n", "	case booked:\n",
		[]string{weighs},
	},
	{
		32, "what an owner says of an epoch that is over counts", "coordinator/placement/load/book.go",
		"if i < 0 || epoch.ConfVersion < r.parts[i].conf {", "if i < 0 {",
		[]string{weighs},
	},

	{
		33, "keys of a removed region wait for nobody", "coordinator/placement/plan.go",
		"if len(r.Owners) == 0 && !p.vacated(k, r) {", "if false {",
		[]string{plans},
	},
	{
		33, "a claimed key is given away that somebody may act for", "coordinator/claims/give.go",
		"		free = false\n", "",
		[]string{"./coordinator/claims"},
	},
	{
		33, "who may act for keys is forgotten with the settings", "meta/root/state/keyspace.go",
		"Vacated: k.record.GetVacated(),", "",
		[]string{"./meta/root/state"},
	},
	{
		33, "epochs of keys begin anew with other settings", "meta/root/state/keyspace.go",
		"VersionFloor: k.record.GetVersionFloor(),", "",
		[]string{"./meta/root/state"},
	},
	{
		33, "who cannot acquire is given more", "coordinator/placement/targets.go",
		"case p.unfit(k, m.ID, m.Incarnation):", "case false:",
		[]string{plans},
	},
	{
		33, "who cannot acquire keeps what it has", "coordinator/placement/unserved.go",
		"if (unsaid || said.Failed) && k.prepareMax > 0 &&", "if false &&",
		[]string{plans},
	},
	{
		33, "who lost what it could not acquire does not rest", "coordinator/placement/unserved.go",
		"f.restsUntil = now.Add(min(unfitRest<<min(f.times, 10), longestUnfitRest))", "f.restsUntil = now",
		[]string{plans},
	},
	{
		33, "all goes elsewhere without a trial", "coordinator/placement/unserved.go",
		"			return now.Add(UnservedLook)\n", "			return now\n",
		[]string{plans},
	},
	{
		33, "a region that nobody can acquire goes round", "coordinator/placement/unserved.go",
		"s.until = now.Add(min(regionRest<<min(s.times, 10), longestRegionRest))", "s.until = now",
		[]string{plans},
	},
	{
		33, "what a region does counts against its owner", "coordinator/placement/unserved.go",
		"g.failed && !stays {", "g.failed && (stays || !stays) {",
		[]string{plans},
	},
	{
		33, "a Release that does not return counts against its member", "coordinator/placement/unserved.go",
		"g.Failed && !g.Releases, g.Unsaid}", "g.Failed, g.Unsaid}",
		[]string{plans},
	},
	{
		33, "the only owner that serves is taken off", "coordinator/placement/drain.go",
		"others = func(o state.Owner) bool { return p.serves(r, o) }", "others = p.stays",
		[]string{plans},
	},
	{
		33, "who fails to prepare is given it", "coordinator/placement/steps.go",
		"return said && last.Failed && x.t", "return said && !said && last.Failed && x.t",
		[]string{plans},
	},
	{
		33, "gone counts before all is told", "coordinator/server/memberstream.go",
		"if f.GetPartial() && heard.Goodbye.GetGone() {", "if false {",
		[]string{"./coordinator/server"},
	},
	{
		33, "the left one of a merge is released at both frontiers", "internal/held/frames.go",
		"	case c.over: // with the process", "	case false: // with the process",
		[]string{"./internal/held"},
	},
	{
		33, "an acquire that hangs keeps its region", "internal/held/held.go",
		"case r.phase == phaseAcquiring && w == wantGive && r.fits():\n		r.hung = true", "case false:\n		r.hung = true",
		[]string{"./nokvtest"},
	},
	{
		33, "an owner is added where another one may act", "meta/root/state/transition.go",
		"	if d := t.mayGive(k, region, nil, next); d != nil {", "	if d := t.mayGive(k, region, nil, next); false {",
		[]string{state},
	},
	{
		33, "what was taken before counts as taken now", "meta/root/state/vacated.go",
		"all = append(all, *r.Former)", "all = append(all, rooted.FormerOwner{Member: r.Former.Member, Incarnation: r.Former.Incarnation, Revision: max(r.Former.Revision, index)})",
		[]string{"./nokvtest"},
	},
	{
		5, "a member that was removed is waited for no more", "coordinator/liveness/core.go",
		"c.forgotten = max(c.forgotten, m.forgotten, m.life.answered)", "c.forgotten = max(c.forgotten, m.forgotten)",
		[]string{"./coordinator/liveness"},
	},
	{
		33, "anybody completes a move from an owner that may act", "meta/root/state/move.go",
		"if d := t.mayGive(k, region, nil, next); d != nil {", "if d := t.mayGive(k, region, nil, next); false && d != nil {",
		[]string{"./meta/root/state"},
	},
	{
		33, "a keyspace that is made again waits for nobody", "meta/root/state/deleted.go",
		"k.Vacated = slices.Concat(k.GetVacated(), left.GetVacated())", "_ = slices.Concat(k.GetVacated(), left.GetVacated())",
		[]string{"./nokvtest"},
	},
	{
		33, "a member back from its rest gets as many as there are", "coordinator/placement/targets.go",
		"if alone || t.fit && p.Observed.Probation(", "if alone || false && p.Observed.Probation(",
		[]string{plans},
	},
	{
		33, "a member back from its rest is evened out at once", "coordinator/placement/rebalance.go",
		"x.OneAtATime = p.Observed.Probation(", "x.OneAtATime = false && p.Observed.Probation(",
		[]string{plans},
	},
	{
		33, "a member on probation stays on it", "coordinator/placement/unserved.go",
		"f.probe, f.probation = 0, false", "f.probe, f.probation = f.probe, f.probation",
		[]string{plans},
	},
	{
		33, "an acquire under way counts as failed", "coordinator/assigner/heard.go",
		`said.More.Error != "" && !said.Calling`, `said.More.Error != ""`,
		[]string{"./nokvtest"},
	},
	{
		32, "a minority of members ends an era", "coordinator/cutoff.go",
		"if 2*vain <= of {", "if vain == 0 {",
		[]string{"./nokvtest"},
	},
	{
		32, "a member that found another way counts as cut off", "coordinator/server/cutoff.go",
		"if a.times >= vainTimes && a.at.Sub(a.since) >= vainLeast {", "if true {",
		[]string{"./coordinator/server", "./nokvtest"},
	},
	{
		32, "a holder that answers counts as cut off", "coordinator/server/memberrelay.go",
		"s.vain.forget(id) // what it says, it says itself", "_ = id",
		[]string{"./coordinator/server"},
	},
	{
		32, "who is more patient counts as alive", "coordinator/liveness/guards.go",
		"from, _ := slices.BinarySearch(t.heard, at+1)", "from, _ := slices.BinarySearch(t.heard, 1)",
		[]string{"./coordinator/liveness"},
	},
	{
		33, "no region is suspected", "coordinator/placement/poison.go",
		"s.soon >= poisonDeaths &&", "s.soon >= 3*poisonDeaths &&",
		[]string{plans},
	},
	{
		33, "what chance explains is blamed on a region", "coordinator/placement/poison.go",
		"s.chance*ways(len(x.deaths), s.deaths) < byChance", "true",
		[]string{plans},
	},
	{
		33, "a death counts however late", "coordinator/placement/poison.go",
		"now.Sub(x.queue[0].at) > x.soon {", "now.Sub(x.queue[0].at) > 1000*x.soon {",
		[]string{plans},
	},
	{
		33, "a grant that ended by a death is lived through", "coordinator/placement/poison.go",
		"\t\tdelete(x.granted, id) // this grant has had its death\n", "",
		[]string{plans},
	},
	{
		33, "a trial that lives ends nothing", "coordinator/placement/poison.go",
		"\t\tdelete(x.granted, a.region)\n\t\tx.Release(a.region)\n", "\t\tdelete(x.granted, a.region)\n",
		[]string{plans},
	},
	{
		33, "a member's death is the fault of all that it has", "coordinator/placement/poison.go",
		"case like > severally || widely*like > len(regions):", "case like > severally:",
		[]string{plans},
	},
	{
		33, "a quarantine does not end", "coordinator/placement/poison.go",
		"\t\tif until <= now {", "\t\tif until <= now && false {",
		[]string{plans},
	},
	{
		33, "a quarantine that comes again is as short", "coordinator/placement/poison.go",
		"poisonRest<<min(s.rests, 10)", "poisonRest",
		[]string{plans},
	},
	{
		33, "a death that somebody asked for counts", "coordinator/placement/poison.go",
		"&& !(failed && explained(m))", "",
		[]string{plans},
	},
	{
		33, "a region in quarantine goes to members that have others", "coordinator/placement/targets.go",
		"return alone && s.Regions > 0", "return alone && false",
		[]string{plans},
	},
	{
		33, "a region in quarantine is moved to even out", "coordinator/placement/balance/make.go",
		"r.begun[i] = x.Busy || x.Quarantined", "r.begun[i] = x.Busy",
		[]string{evens},
	},
}
