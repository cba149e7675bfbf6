package freshness_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/nokv/nokv/meta/root/freshness"
)

func starts(n int) (h freshness.History) {
	for i := range n {
		h = h.Next(uint64(i) + 1)
	}
	return h
}

func claim(h freshness.History) freshness.Claim { return freshness.Claim{History: h} }

// TestRules4And5 is who is admitted behind start 5, and who is refused and how.
func TestRules4And5(t *testing.T) {
	forked := starts(4).Next(99)
	for name, c := range map[string]struct {
		claim          freshness.History
		stale, unknown bool
	}{
		"the same start":              {claim: starts(5)},
		"the next start":              {claim: starts(6)},
		"starts that were not seen":   {claim: starts(5 + freshness.MaxNonces - 1)},
		"more than can be followed":   {claim: starts(5 + freshness.MaxNonces), unknown: true},
		"an earlier start":            {claim: starts(4), stale: true},
		"a clone of the start before": {claim: forked, stale: true},
		"that clone, later":           {claim: forked.Next(6).Next(7), stale: true},
		"no start":                    {claim: freshness.History{}, unknown: true},
		"a count without nonces":      {claim: freshness.History{Count: 9}, unknown: true},
		"a nonce of nothing":          {claim: starts(5).Next(0), unknown: true},
		"more nonces than starts":     {claim: freshness.History{Count: 1, Nonces: []uint64{1, 2}}, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := freshness.NewMemory(nil, nil, nil)
			if _, err := m.Admit(1, claim(starts(5))); err != nil {
				t.Fatal(err)
			}
			_, err := m.Admit(1, claim(c.claim))
			stale, unknown := new(freshness.StaleError), new(freshness.UnknownError)
			if errors.As(err, &stale) != c.stale || errors.As(err, &unknown) != c.unknown {
				t.Errorf("answered %v", err)
			}
			if k, _ := m.Of(1); err != nil && k.Start != starts(5).Newest() {
				t.Errorf("who was refused is remembered: %+v", k)
			}
		})
	}
}

// A start is answered when it is durable, also when another connection of it asks while
// the first is being saved; when it cannot be saved it is not.
func TestAdmittedIsDurable(t *testing.T) {
	broken := errors.New("no disk")
	saves := 0
	m := freshness.NewMemory(nil, func() error { saves++; return broken }, nil)
	for range 2 {
		if _, err := m.Admit(1, claim(starts(1))); !errors.Is(err, broken) {
			t.Errorf("answered %v", err)
		}
	}
	if saves != 2 {
		t.Errorf("saved %d times", saves)
	}
}

// TestPromisesGrow: whatever order they are heard in, of promises of one peer the same is
// remembered; and a folder that keeps all of them lacks nothing.
func TestPromisesGrow(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		// A peer's life: terms grow, a vote is given once a term, acknowledgements grow in a
		// term, and a later term may take entries back.
		var life []freshness.Promise
		var f freshness.Footing
		for term := uint64(1); term < 6; term++ {
			p := freshness.Promise{Term: term}
			if rng.IntN(2) == 0 {
				p.Vote = 1 + rng.Uint64N(3)
			}
			life = append(life, p)
			last := rng.Uint64N(20)
			for p.Index < last {
				p.Index += 1 + rng.Uint64N(3)
				p.IndexTerm = term
				life = append(life, p, freshness.Promise{Term: term, Index: p.Index})
			}
			f = freshness.Footing{Term: term, Vote: p.Vote}
			for i := uint64(1); i <= p.Index; i++ {
				f.Add(i, term)
			}
		}
		var in, out freshness.Promise
		for _, p := range life {
			in = in.Merge(p)
			if why := f.Lacks(p); why != "" {
				t.Fatalf("seed %d: a folder that was never put back: %s", seed, why)
			}
		}
		rng.Shuffle(len(life), func(i, j int) { life[i], life[j] = life[j], life[i] })
		for _, p := range life {
			out = out.Merge(p)
		}
		if in != out {
			t.Fatalf("seed %d: %+v in order, %+v in another", seed, in, out)
		}
	}
}

// What others tell of a peer counts as what was seen; a promise of an earlier start counts
// as one before the newest.
func TestHearsayIsRemembered(t *testing.T) {
	m := freshness.NewMemory(nil, nil, nil)
	if _, err := m.Admit(1, claim(starts(2))); err != nil {
		t.Fatal(err)
	}
	m.Note(1, starts(1).Newest(), freshness.Promise{Term: 2, Index: 4})
	m.Hear(3, map[uint64]freshness.Known{
		1: {Start: starts(3).Newest(), Before: freshness.Promise{Term: 3, Vote: 2}},
		3: {Start: starts(9).Newest()},
	})
	if k, _ := m.Of(1); k.Start != starts(3).Newest() || k.Before != (freshness.Promise{Term: 3, Vote: 2}) {
		t.Errorf("remembered %+v", k)
	}
	if _, known := m.Of(3); known {
		t.Error("a peer remembers itself")
	}
	m.Hear(3, map[uint64]freshness.Known{1: {Start: starts(2).Newest(), Now: freshness.Promise{Term: 3, Index: 9}}})
	if k, _ := m.Of(1); k.Before.Index != 9 {
		t.Errorf("a promise of an earlier start is not remembered: %+v", k)
	}
	if _, err := m.Admit(1, claim(starts(2))); err == nil {
		t.Error("a start is admitted behind a newer one that another peer has seen")
	}
}
