package roottest

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Operator does, again and again, what operators do beside everything else: it
// changes grants and the cluster's settings, and asks eras to end. What took effect
// counts as a fault.
type Operator struct {
	cluster *Cluster
	link    *Link
	// endAt is when the next era may be asked to end.
	endAt clock.Instant
}

// endEvery is longer than a holder that was asked to end leaves the Tenure to others:
// where all do so at once, nobody serves.
const endEvery = 6 * time.Second

// Operate begins, and goes on while active is true.
func (c *Cluster) Operate(active func() bool) {
	o := &Operator{cluster: c, link: c.NewLink("operator")}
	var act func()
	act = func() {
		if !active() {
			return
		}
		kind, e := o.event()
		o.link.Propose([]*rootv1.Command{{Events: []*rootv1.Event{e}, Actor: "operator/o", Why: "a simulation"}}, askTimeout, func(results []state.Result) {
			if results != nil && results[0].Outcome == rootv1.Outcome_OUTCOME_APPLIED {
				c.World.Fault(kind)
			}
			c.World.After(c.World.Between(30*time.Millisecond, 300*time.Millisecond), act)
		})
	}
	c.World.After(c.World.Between(30*time.Millisecond, 300*time.Millisecond), act)
}

// event is what it asks for next.
func (o *Operator) event() (string, *rootv1.Event) {
	w := o.cluster.World
	principal := fmt.Sprintf("client/%d", w.Rand.IntN(2))
	st := state.New()
	if l := o.cluster.Leader(); l != nil {
		st = l.View().State
	}
	if era := st.Tenure().GetEra(); era > 0 && w.Now() >= o.endAt && w.Chance(0.3) {
		o.endAt = w.Now().Add(endEvery)
		return "era asked to end", &rootv1.Event{Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: era}}}
	}
	switch w.Rand.IntN(3) {
	case 0:
		return "grant given", &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{
			Grant: &rootv1.Grant{Principal: principal, Keyspace: "k*", Verbs: []rootv1.Verb{rootv1.Verb(1 + w.Rand.IntN(4))}},
		}}}
	case 1:
		return "grant taken", &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{
			Principal: principal, Keyspace: "k*",
		}}}
	default:
		return "settings changed", &rootv1.Event{Kind: &rootv1.Event_ClusterSettingsChanged{ClusterSettingsChanged: &rootv1.ClusterSettingsChanged{
			ExpectedVersion: st.Settings().GetVersion(), Settings: &rootv1.ClusterSettings{MaxTenureTtlMillis: 1000 + w.Rand.Uint64N(1000)},
		}}}
	}
}
