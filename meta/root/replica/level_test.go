package replica_test

import (
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// What is of a feature level above the rooted one does not enter the log, whichever
// way it comes: processes of older builds, which the level is for, stop at it for good.
func TestAboveTheLevelNothingIsLogged(t *testing.T) {
	propose := func(e *rootv1.Event) *replica.Proposal {
		p, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{e}}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for kind, request := range map[string]func() replica.Request{
		"tenure_claimed": func() replica.Request { return claim(t, "a", 0, testTTL) },
		"access_granted": func() replica.Request {
			return propose(&rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{
				Grant: &rootv1.Grant{Principal: "client/a", Keyspace: "default", Verbs: []rootv1.Verb{rootv1.Verb_VERB_PUBLISH}},
			}}})
		},
	} {
		end := state.Trial(kind)
		c := newCluster(t, 3, nil)
		l := c.lead(1)
		last, r := l.view.LastIndex, request()
		l.turn(0, r)
		c.settle()
		if l.view.LastIndex != last {
			t.Errorf("%s, new in the next level, is in the log of a cluster at level %d", kind, l.view.State.FeatureLevel())
		}
		if got := reason.Of(r.Refusal()); got != rootv1.Reason_REASON_FEATURE_LEVEL {
			t.Errorf("%s: %v, want a refusal that names the feature level", kind, r.Refusal())
		}
		c.propose(l, &rootv1.Event{Kind: &rootv1.Event_FeatureLevelRaised{FeatureLevelRaised: &rootv1.FeatureLevelRaised{From: 1, To: state.SupportedLevel()}}})
		last = l.view.LastIndex
		l.turn(0, request())
		c.settle()
		if l.view.LastIndex != last+1 {
			t.Errorf("%s is not logged at its level", kind)
		}
		end()
	}
}

// What only the leader says is not taken from who proposes a claim as a command.
func TestVerdictsAreTheLeadersAlone(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	e := &rootv1.TenureClaimed{HolderId: "a", HolderIncarnation: 1, HolderAddress: "a:1", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO}, UnlessConfirmed: true}
	p, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: e}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l.turn(0, p)
	c.settle()
	if p.Refusal() != nil || p.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("%v %v", p.Refusal(), p.Results)
	}
	if !e.UnlessConfirmed {
		t.Error("the caller's own command was changed")
	}
}

// An entry says when it was proposed, by its leader's clock; a step of a
// replacement too.
func TestEntriesAreDated(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	dates := func() (all []uint64) {
		t.Helper()
		entries, err := l.log.Entries(1, l.view.LastIndex+1, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			var entry rootv1.Entry
			_, data, err := storage.Payload(e)
			if err == nil {
				err = proto.Unmarshal(data, &entry)
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, entry.GetUnixMillis())
		}
		return all
	}
	before, began := len(dates()), c.clock.Wall()
	c.clock.WallMillis += 5
	l.turn(0, propose(t, "a"), propose(t, "b"), propose(t, "c"))
	c.settle()
	c.clock.WallMillis += 7
	c.join(4)
	c.tick(12)
	c.ask(force(t, addPeer(4)))
	got := dates()[before:]
	if len(got) != 2 || got[0] != began+5 || got[1] < began+12 || got[1] > c.clock.Wall() {
		t.Errorf("behind %d the times are %v, want those of one entry for three proposals and of a step, up to %d", began, got, c.clock.Wall())
	}
}
