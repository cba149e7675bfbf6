package chaos

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// A history in which every promise is kept passes; each one that breaks a
// promise is found under the promise's name.

// small is a hand-made run: one region that two writers write, one that one makes.
type small struct {
	*evidence
	t  *testing.T
	st *state.State
}

func goodEvidence(t *testing.T) *small {
	s := &small{evidence: &evidence{staleness: time.Second}, t: t, st: state.New()}
	s.commit(nil)
	s.commit(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: 7, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "127.0.0.1:1"}}},
	}}})
	s.claim("c1", 11, 0)
	s.claim("c2", 22, 1)
	first := s.publish("a", "t1", 1)
	s.watched("w", s.snapshot(), 95)
	second := s.publish("a", "t2", 2)
	s.watched("w", &batch{to: second, regions: []regionChange{{s.st.RegionAt(1, "a"), false}}}, 105)
	third := s.publish("b", "t3", 1)
	s.watched("w", &batch{to: third, regions: []regionChange{{s.st.RegionAt(1, "b"), false}}}, 115)
	applied, rejected := rootv1.Outcome_OUTCOME_APPLIED, rootv1.Outcome_OUTCOME_REJECTED
	for _, w := range []*write{
		{client: "x", key: "a", tag: "t1", conf: 1, called: 80, lastTry: 80, returned: 90, outcome: applied, token: first},
		{client: "x", key: "a", tag: "t2", conf: 2, called: 92, lastTry: 94, returned: history.Never},
		{client: "y", key: "a", tag: "t4", conf: 2, called: 104, lastTry: 104, returned: 106, outcome: rejected, reason: rootv1.Reason_REASON_EPOCH_STALE, token: second},
		{client: "y", key: "b", tag: "t3", conf: 1, called: 107, lastTry: 107, returned: 112, outcome: rootv1.Outcome_OUTCOME_ALREADY_APPLIED, token: third},
		{client: "y", key: "b", tag: "t5", conf: 9, called: 110, lastTry: 110, returned: history.Never},
	} {
		s.wrote(w)
	}
	for _, r := range []*read{
		{client: "z", node: "c1", key: "a", kind: strong, called: 120, returned: 121, token: third, region: s.st.RegionAt(1, "a")},
		{client: "z", node: "c2", key: "b", kind: bounded, called: 122, returned: 123, token: third, lag: 1, maxLag: 1, region: s.st.RegionAt(1, "b")},
		{client: "z", node: "c1", key: "n", kind: session, called: 124, returned: 125, token: third, required: second},
		{client: "z", node: "c2", key: "n", kind: session, called: 126, returned: 127, token: third, required: third},
	} {
		s.answered(r)
	}
	s.calls = []history.Call{
		{Client: "i", Op: history.OpID, CallNS: 10, ReturnNS: 20, First: 1, Count: 3, Era: 1, Holder: "c1"},
		{Client: "t", Op: history.OpTSO, CallNS: 10, ReturnNS: 20, First: 50, Count: 2, Era: 1, Holder: "c1"},
		{Client: "i", Op: history.OpID, CallNS: 30, ReturnNS: 40, First: 11, Count: 1, Era: 2, Holder: "c2"},
		{Client: "t", Op: history.OpTSO, CallNS: 30, ReturnNS: 40, First: 101, Count: 1, Era: 2},
	}
	s.comeAndGo()
	for _, name := range []string{"root1", "root2", "root3"} {
		s.peers = append(s.peers, peerEnd{name, uint64(len(s.log)), s.st.Hash(), newest(s.st.Handovers())})
	}
	s.asked = 1000
	s.failed = []failStop{{name: "root1", fault: "fsync-error", lived: time.Millisecond, code: 1, said: true}}
	return s
}

// comeAndGo has a region made and removed, and somebody follow that.
func (s *small) comeAndGo() {
	made := s.publish("c", "t6", 1)
	region := s.st.RegionAt(1, "c")
	s.watched("w", &batch{to: made, regions: []regionChange{{region, false}}}, 200)
	s.wrote(&write{client: "v", key: "c", tag: "t6", conf: 1, called: 190, lastTry: 190, returned: 195, outcome: rootv1.Outcome_OUTCOME_APPLIED, token: made})
	id := &rootv1.CommandIdentity{Origin: 9, Sequence: 1, KnownIndex: made.Index}
	gone := s.commitAs(id, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1003}}})
	s.watched("w", &batch{to: gone, regions: []regionChange{{region, true}}}, 210)
	s.changed(&change{client: "v", what: "remove c", id: ofIdentity(id), tries: 1, answered: true, changed: true, token: gone}, 205)
	s.wrote(&write{client: "v", key: "c", removes: true, id: ofIdentity(id), conf: 1, called: 201, lastTry: 201, returned: 205, outcome: rootv1.Outcome_OUTCOME_ALREADY_APPLIED, token: gone})
	s.wrote(&write{client: "v", key: "c", removes: true, id: identityOf{9, 2}, called: 206, lastTry: 206, returned: 207, absent: true})
	s.changed(&change{client: "v", what: "remove c", id: identityOf{9, 3}, tries: 1, answered: true, rejected: true}, 208)
	s.shown(shown{made, &region.Region}, 209)
	s.copied(copied{
		name: "cache", at: client.Position{Token: gone}, keyspace: "default",
		regions: map[state.RegionID]*rooted.Region{1001: &s.st.RegionAt(1, "a").Region, 1002: &s.st.RegionAt(1, "b").Region},
	})
	s.copied(copied{
		name: "mirror", at: client.Position{Token: made}, keyspaces: []*rootv1.Keyspace{s.st.Keyspace(1)},
		regions: map[state.RegionID]*rooted.Region{1001: &s.st.RegionAt(1, "a").Region, 1002: &s.st.RegionAt(1, "b").Region, 1003: &region.Region},
	})
}

// commit appends one entry with one command; its events must apply.
func (s *small) commit(events ...*rootv1.Event) state.Token {
	s.t.Helper()
	return s.commitAs(nil, events...)
}

// commitAs is commit of a command with an identity.
func (s *small) commitAs(id *rootv1.CommandIdentity, events ...*rootv1.Event) state.Token {
	s.t.Helper()
	var data []byte
	if events[0] != nil {
		var err error
		if data, err = proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Identity: id, Events: events}}}); err != nil {
			s.t.Fatal(err)
		}
	}
	var out state.Applied
	if err := s.st.ApplyEntry(1, uint64(len(s.log)+1), data, &out); err != nil {
		s.t.Fatal(err)
	}
	for _, r := range out.Results {
		if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			s.t.Fatalf("entry %d: %v", len(s.log)+1, r)
		}
	}
	s.committed("root1", uint64(len(s.log)+1), 1, data)
	return s.st.Token()
}

// claim begins an era with fences 10 ids and 100 timestamps higher.
func (s *small) claim(holder string, incarnation, from uint64) {
	s.t.Helper()
	era := from + 1
	s.commit(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: holder, HolderIncarnation: incarnation, HolderAddress: "127.0.0.1:1", ExpectedEra: from, PredecessorExpired: from > 0,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	s.advance(era, rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED)
	for m, step := range map[rootv1.Mandate]uint64{rootv1.Mandate_MANDATE_ALLOC_ID: 10, rootv1.Mandate_MANDATE_TSO: 100} {
		s.commit(&rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{Mandate: m, Era: era, Floor: from * step, Size: step}}})
	}
	s.advance(era, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED)
}

func (s *small) advance(era uint64, stage rootv1.HandoverStage) {
	s.t.Helper()
	by := s.st.Tenure()
	s.commit(&rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{
		Era: era, Stage: stage, HolderId: by.GetHolderId(), HolderIncarnation: by.GetHolderIncarnation(),
	}}})
}

func (s *small) publish(key, tag string, conf uint64) state.Token {
	s.t.Helper()
	return s.commit(published(key, tag, conf))
}

func published(key, tag string, conf uint64) *rootv1.Event {
	id := map[string]uint64{"a": 1001, "b": 1002, "c": 1003}[key]
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		Id: id, KeyspaceId: 1, StartKey: []byte(key), EndKey: []byte(key + "~"), Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: conf}, Frontier: []byte(tag),
	}}}}
}

func (s *small) snapshot() *batch {
	return &batch{to: s.st.Token(), snapshot: true, snapshotBegin: true, snapshotEnd: true, regions: []regionChange{{s.st.RegionAt(1, "a"), false}}}
}

// again puts another entry at the end of the log, as if it had always been there.
func (s *small) again(e *rootv1.Event) {
	s.commit(e)
	for i := range s.peers {
		s.peers[i].applied, s.peers[i].hash = uint64(len(s.log)), s.st.Hash()
	}
}

func TestGoodHistoryPasses(t *testing.T) {
	if errs := goodEvidence(t).judge(); len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
}

// What is written while peers at rest are asked, and told to somebody behind that,
// the peers need not have had.
func TestAnIdleClusterWrites(t *testing.T) {
	s := goodEvidence(t)
	at := s.publish("d", "t7", 1)
	s.watched("w", &batch{to: at, regions: []regionChange{{s.st.RegionAt(1, "d"), false}}}, s.asked)
	if errs := s.judge(); len(errs) > 0 {
		t.Error(errors.Join(errs...))
	}
	s.asked++
	if errs := s.judge(); len(errs) != 1 {
		t.Errorf("told before the peers were asked: %v", errs)
	}
}

// So is an era that begins behind it, whose handover is open yet.
func TestAnEraBeginsBehindTheEnd(t *testing.T) {
	s := goodEvidence(t)
	s.commit(openClaim())
	if errs := s.judge(); len(errs) > 0 {
		t.Error(errors.Join(errs...))
	}
}

func TestBrokenPromisesAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		promise string
		spoil   func(*small)
	}{
		"another holder served":         {"Primacy", func(s *small) { s.calls[2].Holder = "c1" }},
		"an era nobody began":           {"Primacy", func(s *small) { s.calls[2].Era = 3 }},
		"at the predecessor's frontier": {"Inheritance", func(s *small) { s.calls[2].First = 10 }},
		"a reply of an ended era":       {"Silence", func(s *small) { s.calls[0].CallNS, s.calls[0].ReturnNS = 50, 60 }},
		"an id twice":                   {"AllocID", func(s *small) { s.calls = append(s.calls, s.calls[0]) }},
		"an id of a region":             {"AllocID", func(s *small) { s.calls[2].First = 1001 }},
		"an older timestamp later":      {"Tso order", func(s *small) { s.calls[1].CallNS, s.calls[1].ReturnNS = 50, 60 }},
		"a timestamp far ahead":         {"Tso order", func(s *small) { s.calls[3].First, s.calls[3].WallMS = 100_000<<18, 1 }},
		"a handover left open":          {"Finality", func(s *small) { s.again(openClaim()) }},
		"one that peers say is closed": {"Finality", func(s *small) {
			s.again(openClaim())
			for i := range s.peers {
				said := proto.CloneOf(s.st.Handovers()[2])
				said.Stage = rootv1.HandoverStage_HANDOVER_STAGE_CLOSED
				s.peers[i].handover = said
			}
		}},
		"one that a peer says is open": {"Finality", func(s *small) {
			s.peers[1].handover = proto.CloneOf(s.peers[1].handover)
			s.peers[1].handover.Stage = rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED
		}},
		"no handover": {"Finality", func(s *small) {
			for i := range s.peers {
				s.peers[i].applied, s.peers[i].hash = 1, s.hashAt(1)
			}
		}},
		"an answer that nobody logged":  {"Durability", func(s *small) { s.writes[0].tag = "t0" }},
		"an answer at another position": {"Durability", func(s *small) { s.writes[0].token.Index-- }},
		"an answer behind the log":      {"Durability", func(s *small) { s.writes[0].token.Index = 99 }},
		"an answer of another term":     {"Durability", func(s *small) { s.writes[0].token.Term = 9 }},
		"applied twice":                 {"Durability", func(s *small) { s.again(published("b", "t3", 2)) }},
		"a peer behind":                 {"Durability", func(s *small) { s.peers[1].applied-- }},
		"all peers behind": {"Durability", func(s *small) {
			for i := range s.peers {
				s.peers[i].applied, s.peers[i].hash = s.writes[2].token.Index, s.hashAt(s.writes[2].token.Index)
			}
		}},
		"a peer with another state":     {"Durability", func(s *small) { s.peers[2].hash++ }},
		"a peer away":                   {"Durability", func(s *small) { s.peers = s.peers[:2] }},
		"an entry that cannot be":       {"Durability", func(s *small) { s.log[4].data = []byte{0xff} }},
		"an older value after a newer":  {"Root writes", func(s *small) { s.writes[0].called, s.writes[0].returned = 118, 119 }},
		"refused without cause":         {"Root writes", func(s *small) { s.writes[2].conf = 7 }},
		"refused for another cause":     {"Root writes", func(s *small) { s.writes[2].reason = rootv1.Reason_REASON_RANGE_OVERLAP }},
		"a strong read of an old value": {"Root writes", func(s *small) { s.reads[0].region = s.writtenFirst() }},
		"another value than the log's":  {"Freshness", func(s *small) { s.reads[1].region = nil }},
		"a value from nowhere":          {"Freshness", func(s *small) { s.reads[2].region = s.writtenFirst() }},
		"a strong read that is behind":  {"Freshness", func(s *small) { s.reads[0].token, s.reads[0].region = s.watches["w"][0].to, s.writtenFirst() }},
		"older than the bound":          {"Freshness", func(s *small) { s.late() }},
		"more lag than the bound":       {"Freshness", func(s *small) { s.reads[1].lag = 2 }},
		"before the required token":     {"Freshness", func(s *small) { s.reads[2].required.Index += 9 }},
		"a session that went back":      {"Freshness", func(s *small) { s.reads[3].required, s.reads[3].token = state.Token{}, s.writes[2].token }},
		"an answer before everything":   {"Freshness", func(s *small) { s.reads[3].required, s.reads[3].token = state.Token{}, state.Token{} }},
		"peers with different logs":     {"Tail", func(s *small) { s.committed("root2", 3, 1, []byte("other")) }},
		"a gap in a peer's log":         {"Tail", func(s *small) { s.committed("root2", 99, 1, nil) }},
		"a change that a watch missed":  {"Tail", func(s *small) { s.watches["w"][1].regions = nil }},
		"a change that never was": {"Tail", func(s *small) {
			s.watches["w"][2].regions = append(s.watches["w"][2].regions, regionChange{s.writtenFirst(), false})
		}},
		"half an entry in a watch":            {"Tail", func(s *small) { s.watches["w"] = append(s.watches["w"][:1:1], s.watches["w"][2]) }},
		"a watch that went back":              {"Tail", func(s *small) { s.watches["w"] = append(s.watches["w"], s.watches["w"][1]) }},
		"a snapshot without a region":         {"Tail", func(s *small) { s.watches["w"][0].regions = nil }},
		"a watch ahead of the log":            {"Tail", func(s *small) { s.watches["w"][2].to.Index = 99 }},
		"a removal that a watch missed":       {"Tail", func(s *small) { s.watches["w"][4].regions = nil }},
		"a removal that is none":              {"Tail", func(s *small) { s.watches["w"][4].regions[0].removed = false }},
		"a copy that kept what is gone":       {"Tail", func(s *small) { s.copies[0].regions[1003] = s.copies[1].regions[1003] }},
		"a copy without a region":             {"Tail", func(s *small) { delete(s.copies[1].regions, 1003) }},
		"a copy without a keyspace":           {"Tail", func(s *small) { s.copies[1].keyspaces[0] = &rootv1.Keyspace{Id: 7, Name: "other"} }},
		"a copy with a member":                {"Tail", func(s *small) { s.copies[1].members = []*rootv1.Member{{Id: "m1"}} }},
		"a copy ahead of the log":             {"Tail", func(s *small) { s.copies[0].at.Token.Index = 99 }},
		"a route of what is gone":             {"Freshness", func(s *small) { s.routes[0].at = s.copies[0].at.Token }},
		"a change that nobody logged":         {"Root writes", func(s *small) { s.typed[0].id.sequence = 8 }},
		"a change that is later than told":    {"Root writes", func(s *small) { s.typed[0].token = s.copies[1].at.Token }},
		"a change told of behind the log":     {"Root writes", func(s *small) { s.typed[0].token.Index = 99 }},
		"rejected and carried out":            {"Root writes", func(s *small) { s.typed[1].id = s.typed[0].id }},
		"removed before it was there":         {"Root writes", func(s *small) { s.move(removal, 150, 151) }},
		"absent while it was there":           {"Root writes", func(s *small) { s.move(absence, 196, 197) }},
		"refused as stale with its epoch":     {"Root writes", func(s *small) { s.stale(196) }},
		"removed at an epoch that it had not": {"Root writes", func(s *small) { s.writes[removal].conf = 7 }},
		"alive with a failed disk":            {"Fail-stop", func(s *small) { s.failed[0].lived = time.Minute }},
		"an end without an error":             {"Fail-stop", func(s *small) { s.failed[0].code = 0 }},
		"an end without a reason":             {"Fail-stop", func(s *small) { s.failed[0].said = false }},
		"a violation that a process knew":     {"counted by a process", func(s *small) { s.violations = append(s.violations, errNoRole) }},
		"no log":                              {"Durability", func(s *small) { s.log = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := goodEvidence(t)
			c.spoil(s)
			found := s.judge()
			for _, err := range found {
				if strings.HasPrefix(err.Error(), c.promise+": ") {
					return
				}
			}
			t.Errorf("found %v, want %s", errors.Join(found...), c.promise)
		})
	}
}

// What a failed run leaves is a history that package history reads.
func TestHistoryIsReadBack(t *testing.T) {
	s := goodEvidence(t)
	var file bytes.Buffer
	if err := s.write(&file); err != nil {
		t.Fatal(err)
	}
	calls, err := history.Read(&file)
	if err != nil || len(calls) != len(s.calls)+len(s.writes)+len(s.reads) || len(history.FromCalls(calls).Grants) != len(s.calls) {
		t.Fatalf("%d calls, %v", len(calls), err)
	}
}

// hashAt is the state hash of the log replayed to an index.
func (s *small) hashAt(index uint64) uint64 {
	st, out := state.New(), state.Applied{}
	for i, e := range s.log[:index] {
		if err := st.ApplyEntry(e.term, uint64(i+1), e.data, &out); err != nil {
			s.t.Fatal(err)
		}
	}
	return st.Hash()
}

// openClaim begins an era and nothing more.
func openClaim() *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 12, HolderAddress: "127.0.0.1:1", ExpectedEra: 2, PredecessorExpired: true,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}}
}

// writtenFirst is the region of "a" as it was first.
func (s *small) writtenFirst() *state.Region { return s.watches["w"][0].regions[0].Region }

// late has the bounded read asked long after what it shows was over.
func (s *small) late() {
	r := s.reads[1]
	r.token, r.region = s.watches["w"][0].to, nil
	r.called, r.returned = 2*time.Second, 2*time.Second+1
}

// Places of the two removals among the writes.
const (
	removal = 6
	absence = 7
)

// move has a write called and answered at other times.
func (s *small) move(n int, called, returned time.Duration) {
	w := s.writes[n]
	w.called, w.lastTry, w.returned = called, called, returned
}

// stale has the second removal refused for the epoch that was there.
func (s *small) stale(at time.Duration) {
	w := s.writes[absence]
	w.absent, w.conf, w.outcome, w.reason = false, 1, rootv1.Outcome_OUTCOME_REJECTED, rootv1.Reason_REASON_EPOCH_STALE
	s.move(absence, at, at+1)
}
