package state_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func restricted(t *testing.T) *machine {
	m := newMachine(t)
	e := clusterEvent()
	e.GetClusterBootstrapped().Cluster.FeatureLevel = state.FeatureLevel
	m.must(e)
	return m
}

func granted(principal, keyspace string, verbs ...rootv1.Verb) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{
		Grant: &rootv1.Grant{Principal: principal, Keyspace: keyspace, Verbs: verbs},
	}}}
}

// TestAccessIsTheSumOfGrants: the judgement by index is that of looking at every
// grant, whatever was granted and taken back, and it allocates nothing.
func TestAccessIsTheSumOfGrants(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := restricted(t)
		for range rapid.IntRange(0, 12).Draw(r, "events") {
			e := granted(drawPrincipal(r), drawPattern(r), drawVerbs(r)...)
			if rapid.IntRange(0, 2).Draw(r, "back") == 0 {
				g := e.GetAccessGranted().GetGrant()
				e = &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: g.Principal, Keyspace: g.Keyspace, Verbs: g.Verbs}}}
			}
			m.apply(&rootv1.Command{Events: []*rootv1.Event{e}})
		}
		m.checkHash()
		matches := func(pattern, s string) bool {
			text, prefix := strings.CutSuffix(pattern, "*")
			return s == text || prefix && strings.HasPrefix(s, text)
		}
		for _, who := range []string{"client/a", "client/ab", "client/b", "member/a", "member/b"} {
			for _, keyspace := range []string{"k", "k1", "k12", "j"} {
				for verb := rootv1.Verb_VERB_READ; verb <= rootv1.Verb_VERB_ADMIN; verb++ {
					closed, want := false, false
					m.s.Grants("", "", func(g *rootv1.Grant) bool {
						if matches(g.GetKeyspace(), keyspace) {
							closed = true
							for _, v := range g.GetVerbs() {
								implied := verb == rootv1.Verb_VERB_READ && (v == rootv1.Verb_VERB_PUBLISH || v == rootv1.Verb_VERB_ADMIN)
								want = want || (v == verb || implied) && matches(g.GetPrincipal(), who)
							}
						}
						return true
					})
					want = want || !closed && verb <= rootv1.Verb_VERB_CLAIM
					role, name, _ := strings.Cut(who, "/")
					if got := m.s.May(role, name, verb, keyspace); got != want {
						r.Fatalf("%s %s %s: %v, want %v", who, verb, keyspace, got, want)
					}
				}
			}
		}
		if n := testing.AllocsPerRun(10, func() { m.s.May("client", "ab", rootv1.Verb_VERB_READ, "k12") }); n != 0 {
			r.Fatalf("%v allocations", n)
		}
	})
}

// TestGrantsPages: whoever goes on behind any grant sees the rest, once and in order.
func TestGrantsPages(t *testing.T) {
	m := restricted(t)
	for i := range 3 {
		for _, keyspace := range []string{"a", "b", "*", "a*", "b*"} {
			m.must(granted(fmt.Sprintf("client/%d", i), keyspace, rootv1.Verb_VERB_READ))
		}
	}
	list := func(g *rootv1.Grant, limit int) (all []string) {
		m.s.Grants(g.GetPrincipal(), g.GetKeyspace(), func(g *rootv1.Grant) bool {
			all = append(all, g.GetKeyspace()+" "+g.GetPrincipal())
			return len(all) < limit
		})
		return all
	}
	all := list(nil, 99)
	if len(all) != 15 {
		t.Fatalf("%d grants: %q", len(all), all)
	}
	var paged []string
	for page := list(nil, 1); len(page) > 0; {
		paged = append(paged, page...)
		keyspace, principal, _ := strings.Cut(page[0], " ")
		page = list(&rootv1.Grant{Keyspace: keyspace, Principal: principal}, 1)
	}
	if fmt.Sprint(paged) != fmt.Sprint(all) {
		t.Errorf("page by page: %q, at once: %q", paged, all)
	}
}

// BenchmarkMay has as many grants as fit, each keyspace with its own prefix.
func BenchmarkMay(b *testing.B) {
	s := state.New()
	e := clusterEvent()
	e.GetClusterBootstrapped().Cluster.FeatureLevel = state.FeatureLevel
	events := []*rootv1.Event{e}
	for i := range state.MaxGrants {
		events = append(events, granted(fmt.Sprintf("client/%d", i%64), fmt.Sprintf("k%d*", i/64), rootv1.Verb_VERB_READ))
	}
	for _, e := range events {
		if err := s.ApplyEntry(1, s.Token().Index+1, encode(b, &rootv1.Command{Events: []*rootv1.Event{e}}), nil); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if !s.May("client", "63", rootv1.Verb_VERB_READ, "k63-and-more") {
			b.Fatal("no")
		}
	}
}
