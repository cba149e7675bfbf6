package mutation

// members has rule 26: what a member holds and may act for, by rules 2, 3, 4, 8 and 9 of
// ownership.
var members = []mutation{
	{
		26, "a request of an epoch to come is let in", "internal/held/table.go",
		"if q.Epoch != g.Region.Epoch && q.Epoch != (rooted.Epoch{}) {", "if g.Region.Epoch.NewerThan(q.Epoch) && q.Epoch != (rooted.Epoch{}) {",
		[]string{holds},
	},
	{
		26, "an older set is obeyed", "internal/held/sets.go",
		"if newer < 0 || newer == 0 && !whole {", "if newer == 0 && !whole {",
		[]string{holds},
	},
	{
		26, "an incarnation that is over keeps what it has", "internal/held/held.go",
		"case c.over || s == nil:", "case s == nil:",
		[]string{holds},
	},
	{
		26, "what was lost while a request ran succeeds", "internal/held/table.go",
		"if g.gate.ended() || t.retired.Load() {", "if t.retired.Load() {",
		[]string{holds},
	},
	{
		26, "what was lost is let go of like what is given", "internal/held/table.go",
		"r.gate.end()", "r.gate.close()",
		[]string{holds},
	},
	{
		26, "a command is carried out each time that it comes", "internal/held/frames.go",
		"if old, known := log.replies[ref.id]; known {", "if old, known := log.replies[ref.id]; known && old == nil {",
		[]string{holds, sdk},
	},
	{
		26, "a command of an era that is over is carried out", "internal/held/frames.go",
		"if m.GetEra() < c.era {", "if false {",
		[]string{holds},
	},
	{
		26, "an owner that was replaced writes", "member/fence/fence.go",
		"if o.highest.Compare(epoch) > 0 {", "if false {",
		[]string{fences},
	},
	{
		26, "a confirmation is good for ever", "internal/held/table.go",
		"return at != 0 && now.Now().Sub(at) < ttl", "return at != 0",
		[]string{holds},
	},
	{
		26, "a confirmation counts from when it comes", "internal/held/sets.go",
		"at = s.sent[0].at", "at = now",
		[]string{holds},
	},
	{
		26, "anybody's answer confirms", "internal/held/sets.go",
		"if a.GetConfirmed() && at != 0 && a.GetEra() == c.era {", "if at != 0 && a.GetEra() == c.era {",
		[]string{holds, sdk},
	},
	{
		26, "an era that is over confirms", "internal/held/sets.go",
		"if a.GetConfirmed() && at != 0 && a.GetEra() == c.era {", "if a.GetConfirmed() && at != 0 {",
		[]string{holds},
	},
	{
		26, "a confirmation overtakes the set that it came behind", "internal/held/sets.go",
		"if s.inside || s.pending == 0 {", "if s.pending == 0 {",
		[]string{holds},
	},
	{
		26, "the first ttl that is told is kept to, not the shortest", "internal/held/sets.go",
		"if m.TTL == 0 || k.TTL != 0 && k.TTL < m.TTL {", "if m.TTL == 0 {",
		[]string{holds},
	},
	{
		26, "nobody looks behind the work", "member/do.go",
		"if no := t.Check(g, m.cfg.clock); no != nil {", "if no := t.Check(g, m.cfg.clock); false {",
		[]string{sdk},
	},
	{
		26, "a region is released while requests run", "internal/held/held.go",
		"if r.busy() && !c.outlast(r, now) {", "if false {",
		[]string{holds, sdk},
	},
	{
		26, "a region is acquired while requests run that were let in before it was lost", "internal/held/held.go",
		"case r.busy() && (r.evicted || !c.cfg.Evicts) &&", "case r.busy() && !r.evicted && !c.cfg.Evicts &&",
		[]string{holds, sdk},
	},
	{
		26, "an application that cannot evict releases what it lost while requests run", "internal/held/held.go",
		"case r.busy() && (r.evicted || !c.cfg.Evicts) &&", "case r.busy() && r.evicted &&",
		[]string{sdk},
	},
	{
		26, "a request that never ends keeps its right", "internal/held/outlast.go",
		"	g.end()\n	g.mu.Lock()", "	g.mu.Lock()",
		[]string{holds, sdk},
	},
	{
		26, "a request that never ends is waited for for ever", "internal/held/outlast.go",
		"r.left, r.waitsUntil = nil, 0\n		return true", "return false",
		[]string{holds, sdk},
	},
	{
		26, "who said that it is gone goes on", "internal/held/frames.go",
		"	c.end()\n	c.goodbye = ", "	c.goodbye = ",
		[]string{holds, sdk},
	},
	{
		26, "a region is released before that is due", "internal/held/held.go",
		"s.releaseNow && s.role != coordinatorv1.MoveRole_MOVE_ROLE_UNSPECIFIED", "s.role != coordinatorv1.MoveRole_MOVE_ROLE_UNSPECIFIED",
		[]string{holds, sdk},
	},
	{
		26, "what was released and kept goes on from an older frontier", "internal/held/held.go",
		"at.Frontier = r.frontier", "at.Owners = nil",
		[]string{holds},
	},
	{
		26, "an Acquire that was called off loses what was released before it", "internal/held/held.go",
		"r.at, r.transition = r.kept(), r.shown.transition", "r.at, r.transition = &r.shown.region, r.shown.transition",
		[]string{holds, sdk},
	},
	{
		26, "regions are merged before both are released", "internal/held/held.go",
		"right != nil && right.phase == phaseReleased && right.fits()", "right != nil && right.fits()",
		[]string{holds},
	},
	{
		26, "the left region of a merge is released alone", "internal/held/frames.go",
		"p.Phase = phaseReleasing\n\t}\n\tif s :=", "}\n\tif s :=",
		[]string{holds, sdk},
	},
	{
		26, "nobody says where a key has come", "internal/held/table.go",
		"at.Region.Epoch.Version > q.Epoch.Version {", "false {",
		[]string{holds},
	},
	{
		26, "who is next has the epoch of who was", "internal/held/table.go",
		"Moved, next(s.region.Epoch), s.peer", "Moved, s.region.Epoch, s.peer",
		[]string{holds},
	},
	{
		26, "requests wait without a bound", "member/do.go",
		"over := time.NewTimer(no.Hold)", "over := time.NewTimer(time.Hour)",
		[]string{sdk},
	},
	{
		26, "any number of requests wait", "member/do.go",
		"free <= 0 || w.region[id] > 0", "w.region[id] > 0",
		[]string{sdk},
	},
	{
		26, "requests for one region take all places", "member/do.go",
		"w.region[id] >= heldReserve*free", "false",
		[]string{sdk},
	},
	{
		26, "slow calls of regions that are served have all workers", "internal/held/queue.go",
		"return q.byClass[of] < max(workers/share, 1) &&", "return",
		[]string{holds, sdk},
	},
	{
		26, "regions of one keyspace have all workers", "internal/held/queue.go",
		"busy < reserve*(workers-q.running-1)", "true",
		[]string{holds},
	},
	{
		26, "a call that nobody wants waits for a worker", "internal/held/queue.go",
		"	c.endDropped(now)\n	calls, c.cancels", "	if c.queue.room(classServed, c.cfg.Workers) {\n		c.endDropped(now)\n	}\n	calls, c.cancels",
		[]string{holds, sdk},
	},
	{
		26, "a call that hangs keeps its worker", "internal/held/calls.go",
		"c.queue.free(ref)\n\tref.late = true", "ref.late = true",
		[]string{holds, sdk},
	},
}
