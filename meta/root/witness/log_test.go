package witness_test

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	idMandate  = rootv1.Mandate_MANDATE_ALLOC_ID
	tsoMandate = rootv1.Mandate_MANDATE_TSO
	isOpen     = rootv1.HandoverStage_HANDOVER_STAGE_OPEN
	confirmed  = rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED
	closed     = rootv1.HandoverStage_HANDOVER_STAGE_CLOSED
)

var both = []rootv1.Mandate{idMandate, tsoMandate}

// step is one event that took effect, with the record that it made.
type step struct {
	at     state.Token
	event  *rootv1.Event
	handed *rootv1.Handover
	window *rootv1.Window
}

// book is a log as the state machine took it.
type book struct {
	t     *testing.T
	state *state.State
	steps []step
}

func newBook(t *testing.T) *book {
	b := &book{t: t, state: state.New()}
	b.must(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: 0xc1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{
			{NodeId: 1, Incarnation: 11, TransportAddress: "127.0.0.1:3380"},
		}},
	}}})
	return b
}

// apply gives one command to the state machine.
func (b *book) apply(e *rootv1.Event) (*rootv1.Entry, *state.Applied) {
	b.t.Helper()
	return b.applyAll(&rootv1.Command{Events: []*rootv1.Event{e}})
}

func (b *book) applyAll(c *rootv1.Command) (*rootv1.Entry, *state.Applied) {
	b.t.Helper()
	entry := &rootv1.Entry{Commands: []*rootv1.Command{c}}
	data, err := proto.Marshal(entry)
	if err != nil {
		b.t.Fatal(err)
	}
	var out state.Applied
	if err := b.state.ApplyEntry(1, b.state.Token().Index+1, data, &out); err != nil {
		b.t.Fatal(err)
	}
	return entry, &out
}

// must notes an event that has to apply.
func (b *book) must(e *rootv1.Event) {
	b.t.Helper()
	_, out := b.apply(e)
	if out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		b.t.Fatalf("%v: %v", e, out.Results[0].Reject)
	}
	b.steps = append(b.steps, step{out.Token, e, out.Results[0].Events[0].Handover, out.Results[0].Events[0].Window})
}

func claim(holder string, process, expected uint64, expired bool) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: holder, HolderIncarnation: process, HolderAddress: holder + ":2379", ExpectedEra: expected,
		Mandates: both, PredecessorExpired: expired,
	}}}
}

func extend(m rootv1.Mandate, era, from, to uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{Mandate: m, Era: era, Floor: from, Size: to - from}}}
}

func retire(holder string, process, era, id, tso uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
		Era: era, HolderId: holder, HolderIncarnation: process, Consumed: &rootv1.Frontiers{AllocId: id, Tso: tso},
	}}}
}

func askToEnd(era uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: era}}}
}

// secretOf is what a process retires its eras with.
func secretOf(process uint64) []byte {
	return bytes.Repeat([]byte{byte(process)}, state.RetireSecretBytes)
}

func digestOf(secret []byte) []byte {
	d := sha256.Sum256(secret)
	return d[:]
}

func advance(era uint64, to rootv1.HandoverStage) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{Era: era, Stage: to}}}
}

// by names who advances a handover.
func by(holder string, process uint64, e *rootv1.Event) *rootv1.Event {
	e.GetHandoverAdvanced().HolderId, e.GetHandoverAdvanced().HolderIncarnation = holder, process
	return e
}

// at is a timestamp at so many milliseconds after a certain moment.
func at(millis uint64) uint64 { return (1_700_000_000_000 + millis) << state.TSOLogicalBits }

// Steps of the good log, by name.
const (
	bootstrap = iota
	claim1
	ids1
	tso1
	confirm1
	close1
	tso1Later
	retire1
	claim2
	ids2
	tso2
	confirm2
	close2
	ask2
	claim3
	ids3
	tso3
	confirm3
	close3
	tso3Later
)

// good is a log of three eras: the first retires, the second is asked to and dies, the third
// is active. The first and the third run for 20 seconds.
func good(t *testing.T) *book {
	b := newBook(t)
	first, last := claim("c1", 11, 0, false), retire("c1", 11, 1, 57, at(20_000))
	first.GetTenureClaimed().RetireDigest, last.GetTenureRetired().RetireSecret = digestOf(secretOf(11)), secretOf(11)
	for _, e := range []*rootv1.Event{
		first,
		extend(idMandate, 1, 0, 100),
		extend(tsoMandate, 1, 0, at(3000)),
		by("c1", 11, advance(1, confirmed)),
		by("c1", 11, advance(1, closed)),
		extend(tsoMandate, 1, at(3000), at(23_000)),
		last,
		claim("c2", 22, 1, false),
		extend(idMandate, 2, 57, 157),
		extend(tsoMandate, 2, at(20_000), at(24_000)),
		by("c2", 22, advance(2, confirmed)),
		by("c2", 22, advance(2, closed)),
		askToEnd(2),
		claim("c1", 33, 2, true),
		extend(idMandate, 3, 157, 257),
		extend(tsoMandate, 3, at(24_000), at(28_000)),
		by("c1", 33, advance(3, confirmed)),
		by("c1", 33, advance(3, closed)),
		extend(tsoMandate, 3, at(28_000), at(50_000)),
	} {
		b.must(e)
	}
	return b
}

// copySteps copies steps deeply.
func copySteps(steps []step) []step {
	out := make([]step, len(steps))
	for i, s := range steps {
		out[i] = step{s.at, proto.CloneOf(s.event), proto.CloneOf(s.handed), proto.CloneOf(s.window)}
	}
	return out
}

// audit judges steps as a whole log that ends with end.
func audit(steps []step, end witness.Truth) *witness.Report {
	a := witness.NewAudit(witness.Of(state.New()))
	for _, s := range steps {
		a.Event(s.at, s.event, &state.EventResult{Handover: s.handed, Window: s.window})
	}
	return a.Report(end)
}

func find(r *witness.Report, kind witness.Kind) *witness.Anomaly {
	for i := range r.Anomalies {
		if r.Anomalies[i].Kind == kind {
			return &r.Anomalies[i]
		}
	}
	return nil
}
