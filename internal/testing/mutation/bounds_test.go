package mutation

// bounds has rule 16.
var bounds = []mutation{
	{
		16, "a role without a rule is let in", "internal/access/access.go",
		"if r[p.Role] != No {", "if true {",
		[]string{permits},
	},
	{
		16, "a call speaks for somebody else", "internal/access/access.go",
		"ok && name != p.Name {", "ok && name == \"\" {",
		[]string{permits, peers},
	},
	{
		16, "a request of a stream speaks for somebody else", "internal/access/access.go",
		"if calls[info.FullMethod][p.Role] == Own {", "if false {",
		[]string{permits, peers},
	},
	{
		16, "an event is published whatever its kind", "internal/access/event.go",
		"r = kinds[number(e)].published", "r = kinds[number(e)].proposed",
		[]string{permits, server},
	},
	{
		16, "what is not the caller's own counts as its own", "internal/access/event.go",
		"if k.owns(p.Name, e) && (p.Role", "if true || (p.Role",
		[]string{permits, server},
	},
	{
		16, "whoever is named becomes owner in a closed keyspace", "meta/root/state/publish.go",
		"		case !t.Hosts(want[i].Member, k.record.GetName()):", "		case false:",
		[]string{"./meta/root/state"},
	},
	{
		16, "who may not own regions keeps them where nothing is evened out", "coordinator/assigner/rounds.go",
		"|| idle && !leaves {", "|| idle && (leaves || !leaves) {",
		[]string{assigns},
	},
	{
		16, "a move goes on to who may not own the region any more", "coordinator/placement/plan.go",
		"return p.stays(o) && Accepts(p.State, p.State.Member(o.Member), k.name)", "return p.stays(o)",
		[]string{assigns},
	},
	{
		16, "what the root refuses for good is asked for without end", "coordinator/assigner/propose.go",
		"o.Kind != placement.Cancel && forGood(d)", "o.Kind != placement.Cancel && forGood(d) && false",
		[]string{assigns},
	},
	{
		16, "who is assigned a region splits and merges it by itself", "meta/root/state/permission.go",
		"return ownedBy(name, r) && !s.assigns(r)", "return ownedBy(name, r)",
		[]string{state},
	},
	{
		16, "a coordinator completes changes in the era of another", "meta/root/state/apply.go",
		"role == roleCoordinator && name == t.tenure.GetHolderId())", "role == roleCoordinator && (name == t.tenure.GetHolderId() || true))",
		[]string{state},
	},
	{
		16, "one of many owners takes a shared region", "meta/root/state/permission.go",
		"(len(r.Owners) == 1 || !s.assigns(r))", "(true || !s.assigns(r))",
		[]string{state},
	},
	{
		16, "a member registers for closed keyspaces", "meta/root/state/member.go",
		"		if !t.Hosts(id, keyspace) {", "		if false {",
		[]string{"./meta/root/state"},
	},
	{
		16, "who owned a region goes on to change it", "meta/root/state/permission.go",
		"!(t.Owns(name, e) && t.HostsAll(name, e))", "!t.Owns(name, e)",
		[]string{"./meta/root/state"},
	},
	{
		16, "any member is told keys of pins", "coordinator/server/pins.go",
		"		verb = rootv1.Verb_VERB_HOST", "		verb = rootv1.Verb_VERB_READ",
		[]string{server},
	},
	{
		16, "a member keeps regions that it may not have", "coordinator/placement/balance/constrain.go",
		"		case r.f.seats[at].Leaves:", "		case false:",
		[]string{"./coordinator/placement"},
	},
	{
		16, "names of closed keyspaces are shown to all who list members", "coordinator/server/members.go",
		"v.mayRead(ctx, keyspace) == nil })", "true })",
		[]string{server},
	},
	{
		16, "a caller says itself who it is", "internal/access/event.go",
		"case p.Role != principal.Coordinator || c.GetActor() == \"\":", "case c.GetActor() == \"\":",
		[]string{permits, peers},
	},
	{
		16, "a coordinator speaks for another one", "internal/access/event.go",
		"by.Role == principal.Coordinator && by.Name != p.Name {", "false {",
		[]string{permits, peers},
	},
	{
		16, "a witness tells of the regions of closed keyspaces", "coordinator/server/witness.go",
		"if a.Region != 0 && v.mayReadOf(ctx, v.keyspaceOf(a.Region)) != nil {", "if a.Region != 0 && v.mayReadOf(ctx, v.keyspaceOf(a.Region)) == nil && false {",
		[]string{server},
	},
	{
		16, "a repetition shows what its caller may not read any more", "coordinator/server/access.go",
		"		if !result.GetRepetition() {", "		if result.GetRepetition() || true {",
		[]string{server},
	},
	{
		16, "readers see the passwords of hooks", "coordinator/server/keyspaces.go",
		"	return withoutSecrets(k)\n", "	if withoutSecrets(k) != nil {\n		return k\n	}\n	return nil\n",
		[]string{server},
	},
	{
		16, "a name leads a hook to loopback", "coordinator/hook/allow.go",
		"if err == nil && !special(at.Addr()) ||", "if err == nil ||",
		[]string{"./coordinator/hook"},
	},
	{
		16, "a certificate of another cluster is believed", "mtls/credentials.go",
		"case who.Cluster != b.own.Cluster:", "case false:",
		[]string{certs},
	},
	{
		16, "a dialer believes any role", "mtls/credentials.go",
		"case of != nil && !slices.ContainsFunc(of, func(p Peer) bool { return p.is(who) }):", "case of != nil && len(of) > 9:",
		[]string{certs},
	},
	{
		16, "a dialer believes any name", "mtls/credentials.go",
		"return p.Role == who.Role && (p.Name == \"\" || p.Name == who.Name)", "return p.Role == who.Role",
		[]string{certs},
	},
	{
		16, "an HTTP member answers who shows no certificate", "mtls/http.go",
		"		if !who.Known() {", "		if false {",
		[]string{certs},
	},
	{
		16, "a proxy lends its authority", "proxy/proxy.go",
		"err = p.admit(x, r, rootv1.Verb_VERB_READ)", "_ = rootv1.Verb_VERB_READ",
		[]string{"./proxy"},
	},
	{
		16, "an own certificate that has ended is used", "mtls/credentials.go",
		"if now.Before(b.expires) {", "if now.Before(b.expires) || true {",
		[]string{certs},
	},
	{
		16, "a connection outlives the other side's certificate", "mtls/conn.go",
		"until := ends(chains)", "until := b.expires",
		[]string{certs},
	},
	{
		16, "a connection outlives our own certificate", "mtls/conn.go",
		"if b.expires.Before(until) {", "if false {",
		[]string{certs},
	},
	{
		16, "a connection outlives the belief in the other side's CA", "mtls/lifetime.go",
		"if b == l.judged {", "if true {",
		[]string{certs},
	},
	{
		16, "a connection outlives the revocation of the other side's certificate", "mtls/lifetime.go",
		"if err := b.revoked.judge(l.certs[0]); err != nil {", "if err := b.revoked.judge(l.certs[0]); err != nil && false {",
		[]string{certs},
	},
	{
		16, "a certificate that was revoked is believed", "mtls/credentials.go",
		"revoked := b.revoked.judge(c)", "revoked := error(nil)",
		[]string{certs},
	},
	{
		16, "one caller takes all places", "internal/places/places.go",
		"if own.taken >= p.limit-p.taken {", "if p.taken >= p.limit {",
		[]string{shares},
	},
	{
		16, "one caller takes a whole share of the memory", "internal/budget/budget.go",
		"if granted+need > h.limit-all-need {", "if need > h.limit-all {",
		[]string{budgets},
	},
	{
		16, "memory is given without a limit", "internal/budget/budget.go",
		"if granted+need > h.limit-all-need {", "if false && all < 0 {",
		[]string{budgets},
	},
	{
		16, "a connection that is not read is kept", "internal/gate/gate.go",
		"case past(c.writeSince.Load(), writeTimeout), past(c.unreadSince, unreadTimeout):", "case past(0, writeTimeout), past(0, unreadTimeout):",
		[]string{gates},
	},
	{
		16, "an unfinished message is waited for", "internal/gate/gate.go",
		"if s.unfinished() && s.receive > 0 &&", "if false &&",
		[]string{gates},
	},
	{
		16, "slow headers are waited for", "internal/gate/gate.go",
		"case past(c.since, HeaderTimeout):", "case false:",
		[]string{gates},
	},
	{
		16, "unfinished messages cost nothing", "internal/gate/conn.go",
		"if err := c.account.Take(more); err != nil {", "if err := error(nil); err != nil {",
		[]string{gates},
	},
	{
		16, "a watch that fell behind is not cut", "coordinator/server/deliver.go",
		"\t\t\tw.live.cut(w.tooSlow())\n", "",
		[]string{server},
	},
	{
		16, "a watch whose reader takes nothing is kept", "coordinator/server/deliver.go",
		"if w.out.stuck(w.server.cfg.Limits.SendTimeout) {", "if false {",
		[]string{server},
	},
	{
		16, "the witness believes whoever retires an era", "meta/root/witness/audit.go",
		"case len(a.digest) > 0 && !showsSecret(", "case false && !showsSecret(",
		[]string{judges},
	},
	{
		16, "the witness does not ask who asked an era to end", "meta/root/witness/audit.go",
		"GetEnd()); said != a.asked {", "GetEnd()); false && said != a.asked {",
		[]string{judges},
	},
}
