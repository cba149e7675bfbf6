package state

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Roles as principals name them. Operators, coordinators and roots need no grant.
const (
	roleClient      = "client"
	roleProxy       = "proxy"
	roleMember      = "member"
	roleOperator    = "operator"
	roleCoordinator = "coordinator"
	roleRoot        = "root"
)

// grants are what was granted. A keyspace is looked up by its name, and by those
// beginnings of it that are as long as some pattern.
type grants struct {
	exact, prefixes cow.Map[string, *grantGroup]
	// lengths has bit n set when there is a prefix of n bytes.
	lengths uint64
	count   int
}

// grantGroup is what one pattern of keyspaces was granted, by principal. It is
// immutable.
type grantGroup struct{ all []*grant }

// grant is a record with its principal taken apart.
type grant struct {
	record *rootv1.Grant
	role   string
	name   pattern
	verbs  uint32
}

// pattern is a name, or the beginning of some.
type pattern struct {
	text   string
	prefix bool
}

func patternOf(s string) pattern {
	text, prefix := strings.CutSuffix(s, "*")
	return pattern{text, prefix}
}

func (p pattern) matches(s string) bool {
	return s == p.text || p.prefix && strings.HasPrefix(s, p.text)
}

func newGrants() grants {
	return grants{exact: cow.New[string, *grantGroup](), prefixes: cow.New[string, *grantGroup]()}
}

func (g *grants) fork() grants {
	f := *g
	f.exact, f.prefixes = g.exact.Fork(), g.prefixes.Fork()
	return f
}

func (g *grants) branch() grants {
	b := *g
	b.exact, b.prefixes = g.exact.Branch(), g.prefixes.Branch()
	return b
}

// in is where the groups of a pattern of keyspaces are.
func (g *grants) in(p pattern) cow.Map[string, *grantGroup] {
	if p.prefix {
		return g.prefixes
	}
	return g.exact
}

func (g *grants) of(keyspace string) []*grant {
	p := patternOf(keyspace)
	if group, ok := g.in(p).Get(p.text); ok {
		return group.all
	}
	return nil
}

func (g *grants) find(principal, keyspace string) *rootv1.Grant {
	for _, x := range g.of(keyspace) {
		if x.record.GetPrincipal() == principal {
			return x.record
		}
	}
	return nil
}

// set adds or replaces a grant; one without verbs is removed.
func (g *grants) set(r *rootv1.Grant) {
	p, old := patternOf(r.GetKeyspace()), g.of(r.GetKeyspace())
	all := slices.DeleteFunc(slices.Clone(old), func(x *grant) bool { return x.record.GetPrincipal() == r.GetPrincipal() })
	if len(r.GetVerbs()) > 0 {
		all = append(all, newGrant(r))
		slices.SortFunc(all, func(a, b *grant) int { return strings.Compare(a.record.GetPrincipal(), b.record.GetPrincipal()) })
	}
	g.count += len(all) - len(old)
	if len(all) > 0 {
		g.in(p).Set(p.text, &grantGroup{all})
	} else {
		g.in(p).Delete(p.text)
	}
	if !p.prefix {
		return
	}
	g.lengths = 0
	g.prefixes.Scan(func(prefix string, _ *grantGroup) bool {
		g.lengths |= 1 << len(prefix)
		return true
	})
}

func newGrant(r *rootv1.Grant) *grant {
	role, name, _ := strings.Cut(r.GetPrincipal(), "/")
	g := &grant{record: r, role: role, name: patternOf(name)}
	for _, v := range r.GetVerbs() {
		g.verbs |= 1 << v
	}
	return g
}

// Access is why a principal may do something, or may not.
type Access struct {
	Allowed bool
	// Closed: the keyspace is named by some grant.
	Closed bool
	// Grant that allows it; nil: none is needed, or none does.
	Grant *rootv1.Grant
}

// Access judges whether the principal ROLE/NAME may do verb to a keyspace.
// Operators, coordinators and roots may everything. A keyspace that no grant names
// is open: clients, proxies and members may read and claim there, members own regions, and nothing
// else. One that is named by any is for those who are named, with the verbs that they were
// given; host, publish and admin imply read.
// What a member may do because it owns a region is not judged here. It allocates
// nothing.
func (s *State) Access(role, name string, verb rootv1.Verb, keyspace string) Access {
	switch role {
	case roleOperator, roleCoordinator, roleRoot:
		return Access{Allowed: true}
	case roleClient, roleProxy, roleMember:
	default:
		return Access{}
	}
	a := Access{}
	if group, ok := s.grants.exact.Get(keyspace); ok && a.judge(group, role, name, verb) {
		return a
	}
	for rest := s.grants.lengths; rest != 0; rest &= rest - 1 {
		n := bits.TrailingZeros64(rest)
		if n > len(keyspace) {
			break
		}
		if group, ok := s.grants.prefixes.Get(keyspace[:n]); ok && a.judge(group, role, name, verb) {
			return a
		}
	}
	a.Allowed = !a.Closed && (verb == rootv1.Verb_VERB_READ || verb == rootv1.Verb_VERB_CLAIM || verb == rootv1.Verb_VERB_HOST && role == roleMember)
	return a
}

// May is Access for who only needs to know whether.
func (s *State) May(role, name string, verb rootv1.Verb, keyspace string) bool {
	return s.Access(role, name, verb, keyspace).Allowed
}

// Hosts reports whether a member may own regions of a keyspace.
func (s *State) Hosts(id MemberID, keyspace string) bool {
	return s.grants.count == 0 || s.May(roleMember, string(id), rootv1.Verb_VERB_HOST, keyspace)
}

// HostsIn is Hosts for a keyspace by its id.
func (s *State) HostsIn(id MemberID, keyspace KeyspaceID) bool {
	return s.grants.count == 0 || s.Hosts(id, s.Keyspace(keyspace).GetName())
}

// HostedBy names those whom grants let own regions of a keyspace: the same for keyspaces that have the same
// hosts. Empty: no grant names the keyspace, and every member may.
func (s *State) HostedBy(keyspace string) string {
	var hosts []string
	closed := false
	read := func(group *grantGroup, is bool) {
		if !is {
			return
		}
		closed = true
		for _, g := range group.all {
			if g.role == roleMember && g.verbs&grantedBy(rootv1.Verb_VERB_HOST) != 0 {
				hosts = append(hosts, g.record.GetPrincipal())
			}
		}
	}
	read(s.grants.exact.Get(keyspace))
	for rest := s.grants.lengths; rest != 0 && bits.TrailingZeros64(rest) <= len(keyspace); rest &= rest - 1 {
		read(s.grants.prefixes.Get(keyspace[:bits.TrailingZeros64(rest)]))
	}
	if !closed {
		return ""
	}
	slices.Sort(hosts)
	return "by " + strings.Join(slices.Compact(hosts), "\x00")
}

// grantedBy are the verbs that grant a verb: who may own or change regions may read them.
func grantedBy(verb rootv1.Verb) uint32 {
	if verb == rootv1.Verb_VERB_READ {
		return 1<<rootv1.Verb_VERB_READ | 1<<rootv1.Verb_VERB_PUBLISH | 1<<rootv1.Verb_VERB_ADMIN | 1<<rootv1.Verb_VERB_HOST
	}
	return 1 << verb
}

// judge notes that a group names the keyspace, and reports whether it allows it.
func (a *Access) judge(group *grantGroup, role, name string, verb rootv1.Verb) bool {
	a.Closed = true
	for _, g := range group.all {
		if g.role == role && g.verbs&grantedBy(verb) != 0 && g.name.matches(name) {
			a.Allowed, a.Grant = true, g.record
			return true
		}
	}
	return false
}

// Grants calls fn for each grant behind that of a principal and keyspace, "" for
// all, until fn returns false: those of one keyspace first, then those of prefixes,
// each by keyspace and principal.
func (s *State) Grants(principal, keyspace string, fn func(*rootv1.Grant) bool) {
	after := patternOf(keyspace)
	more := true
	scan := func(from string) func(string, *grantGroup) bool {
		return func(text string, group *grantGroup) bool {
			for _, g := range group.all {
				if text == from && keyspace != "" && g.record.GetPrincipal() <= principal {
					continue
				}
				if more = fn(g.record); !more {
					return false
				}
			}
			return true
		}
	}
	if !after.prefix {
		s.grants.exact.Ascend(after.text, scan(after.text))
		after.text = ""
		keyspace = ""
	}
	if more {
		s.grants.prefixes.Ascend(after.text, scan(after.text))
	}
}

// accessGranted adds verbs to a grant, or makes it. Already applied: it has them.
func (t *turn) accessGranted(e *rootv1.AccessGranted, r *EventResult) verdict {
	asked := e.GetGrant()
	old := t.grants.find(asked.GetPrincipal(), asked.GetKeyspace())
	verbs := withVerbs(old.GetVerbs(), asked.GetVerbs())
	if r.Grant = old; old != nil && len(verbs) == len(old.GetVerbs()) {
		return already
	}
	limit, what := uint64(0), ""
	switch {
	case old != nil:
	case t.grants.count >= MaxGrants:
		limit, what = MaxGrants, "the cluster"
	case len(t.grants.of(asked.GetKeyspace())) >= MaxGrantsPerKeyspace:
		limit, what = MaxGrantsPerKeyspace, "keyspace "+asked.GetKeyspace()
	}
	if limit != 0 {
		d := refuse(rootv1.Reason_REASON_CAPACITY_EXCEEDED, "%s has %d grants, no more fit: take some back, or grant to names that end in *", what, limit)
		d.Limit = limit
		return verdict{reject: d}
	}
	t.setGrant(old, asked, verbs, r)
	return applied
}

// accessRevoked takes verbs back. Already applied: there is no such grant, or it has
// none of them.
func (t *turn) accessRevoked(e *rootv1.AccessRevoked, r *EventResult) verdict {
	bare := &rootv1.Grant{Principal: e.GetPrincipal(), Keyspace: e.GetKeyspace()}
	old := t.grants.find(bare.GetPrincipal(), bare.GetKeyspace())
	var left []rootv1.Verb
	if len(e.GetVerbs()) > 0 {
		left = slices.DeleteFunc(slices.Clone(old.GetVerbs()), func(v rootv1.Verb) bool { return slices.Contains(e.GetVerbs(), v) })
	}
	if len(left) == len(old.GetVerbs()) {
		r.Grant = t.grantOr(bare.GetPrincipal(), bare.GetKeyspace())
		return already
	}
	t.setGrant(old, bare, left, r)
	return applied
}

// grantOr is a grant as it is; one that is gone has no verbs.
func (s *State) grantOr(principal, keyspace string) *rootv1.Grant {
	if g := s.grants.find(principal, keyspace); g != nil {
		return g
	}
	return &rootv1.Grant{Principal: principal, Keyspace: keyspace}
}

func (t *turn) setGrant(old, names *rootv1.Grant, verbs []rootv1.Verb, r *EventResult) {
	next := &rootv1.Grant{Principal: names.GetPrincipal(), Keyspace: names.GetKeyspace(), Verbs: verbs, Revision: t.token.Index}
	t.putGrant(old, next)
	r.Grant = next
	t.change(Change{Kind: ChangeGrant, Removed: len(verbs) == 0, Grant: next})
}

func (s *State) putGrant(old, next *rootv1.Grant) {
	if old != nil {
		s.sum -= hashRecord(tagGrant, old)
	}
	if len(next.GetVerbs()) > 0 {
		s.sum += hashRecord(tagGrant, next)
	}
	s.grants.set(next)
}

// withVerbs is a and b, each once, ascending.
func withVerbs(a, b []rootv1.Verb) []rootv1.Verb {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func (b *builder) grant(g *rootv1.Grant) error {
	if d := first(checkGrantNames(g.GetPrincipal(), g.GetKeyspace()), checkVerbs(g.GetPrincipal(), g.GetVerbs(), true)); d != nil {
		return fmt.Errorf("grant: %s", d.GetMessage())
	}
	if old := b.grants.find(g.GetPrincipal(), g.GetKeyspace()); old != nil || b.grants.count >= MaxGrants {
		return fmt.Errorf("grant: %s for %s is there twice, or one too many", g.GetKeyspace(), g.GetPrincipal())
	}
	b.putGrant(nil, g)
	return nil
}

// checkGrantNames checks whom a grant is for, and what it is about.
func checkGrantNames(principal, keyspace string) *rootv1.ErrorDetail {
	if d := CheckPrincipal(principal); d != nil {
		return d
	}
	if role, _, _ := strings.Cut(principal, "/"); role != roleClient && role != roleProxy && role != roleMember {
		return invalid("a grant is for client/NAME, proxy/NAME or member/NAME, not %q: the others need none", clip(principal))
	}
	if keyspace == "*" {
		return nil
	}
	p := patternOf(keyspace)
	if p.prefix && len(p.text) == MaxNameBytes {
		return invalid("no keyspace has a name longer than %q", p.text)
	}
	if d := checkName(p.text); d != nil && !(p.prefix && strings.Trim(p.text, ".") == "") {
		return d
	}
	return nil
}

// CheckPrincipal says what is wrong with ROLE/NAME; NAME may end in *.
func CheckPrincipal(s string) *rootv1.ErrorDetail {
	role, name, _ := strings.Cut(s, "/")
	p := patternOf(name)
	known := slices.Contains([]string{roleClient, roleProxy, roleMember, roleOperator, roleCoordinator, roleRoot}, role)
	if !known || len(p.text) > MaxPrincipalNameBytes || p.text == "" && !p.prefix {
		return invalid("%q is no ROLE/NAME: ROLE is client, proxy, member, coordinator, operator or root, NAME has 1 to %d bytes and may end in *", clip(s), MaxPrincipalNameBytes)
	}
	for i := range len(p.text) {
		c := p.text[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return invalid("%q is no ROLE/NAME: NAME has letters, digits and . _ -, and may end in *", clip(s))
		}
	}
	return nil
}

// checkVerbs wants each known and named once, and host for members alone.
func checkVerbs(principal string, verbs []rootv1.Verb, needed bool) *rootv1.ErrorDetail {
	if needed && len(verbs) == 0 {
		return invalid("the verbs are missing: read, claim, host, publish or admin")
	}
	for i, v := range verbs {
		if v == rootv1.Verb_VERB_UNSPECIFIED || slices.Contains(verbs[:i], v) {
			return invalid("verb %s is none, or named twice", v)
		}
		if v == rootv1.Verb_VERB_HOST && needed && !strings.HasPrefix(principal, roleMember+"/") {
			return invalid("host is for members: regions are owned by member/NAME, not by %q", clip(principal))
		}
	}
	return nil
}
