package mutation

// promises has rules 12 to 15.
var promises = []mutation{
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
		12, "who waits for a loaded view is not woken by one that does not move", "coordinator/rootview/follower.go",
		"v.Loaded() == old.Loaded()", "true",
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
		"if l.closed || len(l.open) >= l.limit || ", "if l.closed || ",
		[]string{accepts},
	},
	{
		12, "a client believes another cluster", "coordinator/client/call.go",
		"if meant = c.cluster.Load(); meant == id {", "if meant = c.cluster.Load(); meant != 0 {",
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
		"regions[:i], r.Start\n", "regions[:i], r.End\n",
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
		"if old.GetIncarnation() != e.GetFollows() {", "if false {",
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
		"if len(named) == 0 && !g.Required(method) {", "if len(named) == 0 {",
		[]string{server, client},
	},
	{
		13, "a change asked of the root may name no cluster", "meta/root/server/limits.go",
		"if id != 0 {\n\t\treturn s.checkCluster", "if true {\n\t\treturn s.checkCluster",
		[]string{peers},
	},
	{
		13, "a change that comes without an identity gets none", "coordinator/server/publish.go",
		"\ts.identify(kept)\n", "",
		[]string{server},
	},
	{
		13, "a caller's identity is replaced", "internal/identity/identity.go",
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
		"+b.opened%2 > 1 {", " > 1 {",
		[]string{client},
	},
	{
		13, "a command's condition is left behind", "internal/identity/identity.go",
		"to.Set(field, v)", "",
		[]string{client},
	},

	{
		14, "what not everybody understands enters the log", "meta/root/state/feature.go",
		"if need <= rooted {", "if true {",
		[]string{peers},
	},
	{
		14, "an old leader judges the feature level", "meta/root/server/propose.go",
		"	return s.currentAsLeader(ctx)\n}\n\n// barred", "	return v.State, nil\n}\n\n// barred",
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
	{
		15, "whoever knows the holder's name retires its era", "meta/root/state/tenure.go",
		"case len(t.tenure.GetRetireDigest()) > 0 &&", "case false &&",
		[]string{state},
	},
	{
		15, "a holder gives back what it inherited", "meta/root/state/tenure.go",
		"case hasID && consumed.GetAllocId() < in.GetAllocId():", "case false:",
		[]string{state},
	},
	{
		15, "a claim's ttl has no bound", "meta/root/state/tenure.go",
		"ttl > most {", "ttl > 1<<40 {",
		[]string{state},
	},
	{
		15, "somebody else advances the handover", "meta/root/state/tenure.go",
		"case !t.heldBy(e.GetHolderId(), e.GetHolderIncarnation()):\n\t\treturn verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_FINALITY", "case false:\n\t\treturn verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_FINALITY",
		[]string{state},
	},
	{
		15, "a stranger says where a coordinator is", "meta/root/state/member.go",
		"if old.GetIncarnation() != e.GetFollows() {", "if !same && old.GetIncarnation() != e.GetFollows() {",
		[]string{state},
	},
	{
		15, "an era that was asked to end is confirmed", "meta/root/replica/authority.go",
		"&& t.GetEnd() == nil &&", "&&",
		[]string{replica},
	},
	{
		15, "a holder that was asked to end takes the Tenure back at once", "coordinator/tenure/core.go",
		"return c.askedAt.Add(yieldFor)", "return 0",
		[]string{tenure},
	},
	{
		15, "one secret retires all eras of a process", "coordinator/tenure/propose.go",
		"binary.BigEndian.AppendUint64(slices.Clone(r.cfg.RetireKey), era)", "binary.BigEndian.AppendUint64(slices.Clone(r.cfg.RetireKey), 0*era)",
		[]string{tenure},
	},
	{
		15, "a keyspace that is granted to some stays open to all", "meta/root/state/access.go",
		"a.Allowed = !a.Closed && (", "a.Allowed = (",
		[]string{state},
	},
}

// pasts are the rules of meta/root/freshness.
var pasts = []mutation{
	{
		34, "an earlier start is let in", "meta/root/freshness/memory.go",
		"case now.Count < k.Start.Count:", "case false:",
		[]string{fresh},
	},
	{
		34, "a second copy of one start is let in", "meta/root/freshness/memory.go",
		"case now.Count == k.Start.Count && now.Nonce != k.Start.Nonce:", "case false:",
		[]string{fresh},
	},
	{
		34, "a copy that went on by itself is let in", "meta/root/freshness/memory.go",
		"case nonce != k.Start.Nonce:", "case nonce != k.Start.Nonce && false:",
		[]string{fresh},
	},
	{
		34, "starts that nobody can follow are let in", "meta/root/freshness/memory.go",
		"case !there:", "case !there && false:",
		[]string{fresh},
	},
	{
		34, "a start is answered before it is durable", "meta/root/freshness/memory.go",
		"if err != nil || saved || m.save == nil {", "if saved = true; err != nil || saved || m.save == nil {",
		[]string{fresh},
	},
	{
		34, "a copy that lacks an entry is let in", "meta/root/freshness/freshness.go",
		"case p.Index > f.Last:", "case false:",
		[]string{wires},
	},
	{
		34, "a copy that lacks a vote is let in", "meta/root/freshness/freshness.go",
		"case p.Vote != 0 && p.Vote != f.Vote:", "case false:",
		[]string{wires},
	},
	{
		34, "a copy with another entry is let in", "meta/root/transport/send.go",
		`if why := p.t.cfg.Claim.Lacks(w.before); err == nil && why != "" {`, `if why := ""; why != "" {`,
		[]string{wires},
	},
	{
		34, "a clone is let in beside the original", "meta/root/transport/line.go",
		"if !l.admitted || l.start == mine.start {", "if true {",
		[]string{wires},
	},
	{
		34, "what a folder lacks comes before it is judged", "meta/root/transport/receive.go",
		"if from.cleared.Load() { // Rule 7", "if true { // Rule 7",
		[]string{wires},
	},
	{
		34, "peers that differ go on voting", "meta/root/replica/standing.go",
		"\th.silent, c.changed = true, true", "\th.silent, c.changed = false, true",
		[]string{replica},
	},
}
