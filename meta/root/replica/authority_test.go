package replica_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const testTTL = 1000 * time.Millisecond

func claim(t testing.TB, id string, expected uint64, ttl time.Duration) *replica.Claim {
	t.Helper()
	c, err := replica.NewClaim(&rootv1.TenureClaimed{
		HolderId: id, HolderIncarnation: incarnation(id), HolderAddress: "127.0.0.1:9",
		ExpectedEra: expected, TtlMillis: uint64(ttl.Milliseconds()),
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func incarnation(id string) uint64 { return uint64(len(id))*1000 + uint64(id[len(id)-1]) }

func confirm(era uint64, id string) *replica.Confirm {
	return replica.NewConfirm(&rootv1.ConfirmTenureRequest{Era: era, HolderId: id, HolderIncarnation: incarnation(id)})
}

func (c *cluster) claim(l *peer, id string, expected uint64, ttl time.Duration) *rootv1.ClaimTenureResponse {
	c.t.Helper()
	r := claim(c.t, id, expected, ttl)
	l.turn(0, r)
	c.settle()
	if !l.answered(r) || r.Err != nil {
		c.t.Fatalf("claim of %s: answered %v, error %v", id, l.answered(r), r.Err)
	}
	return r.Response
}

func (c *cluster) confirm(l *peer, era uint64, id string) bool {
	c.t.Helper()
	r := confirm(era, id)
	l.turn(0, r)
	c.settle()
	if !l.answered(r) || r.Err != nil {
		c.t.Fatalf("confirm of era %d: answered %v, error %v", era, l.answered(r), r.Err)
	}
	return r.Response.GetActive()
}

func applied(r *rootv1.ClaimTenureResponse) bool {
	return r.GetResult().GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED
}

func TestA06A23A46ClaimConfirmExpire(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	if !applied(c.claim(l, "a", 0, testTTL)) {
		t.Fatal("the first claim was refused")
	}
	if !c.confirm(l, 1, "a") || c.confirm(l, 1, "b") || c.confirm(l, 2, "a") {
		t.Fatal("era 1 of a: only that is active")
	}
	for range 40 {
		c.tick(1)
		c.confirm(l, 1, "a")
	}
	r := c.claim(l, "b", 1, testTTL)
	if applied(r) || r.GetRetryAfterMillis() < 1000 || r.GetRetryAfterMillis() > 1011 {
		t.Fatalf("claim over a confirmed era: %v", r)
	}
	// 50 ticks are the ttl; the drift is 10 ms more.
	c.tick(50)
	if r := c.claim(l, "b", 1, testTTL); applied(r) || r.GetRetryAfterMillis() > 11 {
		t.Fatalf("claim within the drift: %v", r)
	}
	c.tick(1)
	if r := c.claim(l, "b", 1, testTTL); !applied(r) {
		t.Fatalf("claim over an expired era: %v", r)
	}
	if c.confirm(l, 1, "a") || !c.confirm(l, 2, "b") {
		t.Fatal("after the handover only era 2 of b is active")
	}
}

// A process that claims over its own era serves it no more: nothing is waited for. Another
// process of its name is somebody else.
func TestTheHolderClaimsOverItsOwnEraAtOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	if !c.confirm(l, 1, "a") {
		t.Fatal("era 1 is not confirmed")
	}
	other := claim(t, "a", 1, testTTL)
	other.Request.HolderIncarnation++
	l.turn(0, other)
	c.settle()
	if !l.answered(other) || other.Err != nil || applied(other.Response) {
		t.Fatalf("a process of the holder's name claimed over its era at once: %v, %v", other.Response, other.Err)
	}
	if r := c.claim(l, "a", 1, 4*testTTL); !applied(r) {
		t.Fatalf("the holder's own claim: %v", r)
	}
	if c.confirm(l, 1, "a") || !c.confirm(l, 2, "a") {
		t.Fatal("only era 2 is active")
	}
	c.tick(60) // more than what era 1 would have waited for
	if r := c.claim(l, "b", 2, testTTL); applied(r) {
		t.Fatal("era 2 expired by the ttl of era 1")
	}
}

// The claim itself starts the ttl, and so does each confirmation, by the time
// it was answered.
func TestUnconfirmedEraLastsOneTTL(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.tick(100)
	c.claim(l, "a", 0, testTTL)
	c.tick(50)
	if applied(c.claim(l, "b", 1, testTTL)) {
		t.Fatal("expired one ttl after the claim, within the drift")
	}
	c.tick(1)
	if !applied(c.claim(l, "b", 1, testTTL)) {
		t.Fatal("not expired after ttl and drift")
	}
}

// A claim that is repeated because its answer was lost is told the era again, so
// that the holder counts its ttl from when it sent the repetition.
func TestRepeatedClaimStartsTheTTL(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	c.tick(49)
	if r := c.claim(l, "a", 0, testTTL); r.GetResult().GetOutcome() != rootv1.Outcome_OUTCOME_ALREADY_APPLIED {
		t.Fatalf("the repeated claim: %v", r)
	}
	c.tick(50)
	if applied(c.claim(l, "b", 1, testTTL)) {
		t.Fatal("expired within the ttl of the repetition")
	}
	c.tick(1)
	if !applied(c.claim(l, "b", 1, testTTL)) {
		t.Fatal("not expired after ttl and drift")
	}
}

// A restarted coordinator is another holder: it waits like any other.
func TestRestartedHolderWaits(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	c.claim(l, "a", 0, testTTL)
	again := claim(t, "a", 1, testTTL)
	again.Request.HolderIncarnation++
	l.turn(0, again)
	if applied(again.Response) || again.Response.GetRetryAfterMillis() == 0 {
		t.Fatalf("claim of a restarted holder: %v", again.Response)
	}
}

func TestRetiredEraIsClaimedAtOnce(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	c.claim(l, "a", 0, testTTL)
	retire, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureRetired{
		TenureRetired: &rootv1.TenureRetired{Era: 1, HolderId: "a", HolderIncarnation: incarnation("a"), Consumed: &rootv1.Frontiers{}},
	}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l.turn(0, retire)
	if retire.Err != nil || retire.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Fatalf("retire: %v %v", retire.Err, retire.Results)
	}
	if c.confirm(l, 1, "a") {
		t.Fatal("a retired era was confirmed")
	}
	if !applied(c.claim(l, "b", 1, testTTL)) {
		t.Fatal("a retired era still stands in the way")
	}
}

// An era that was asked to end is confirmed no more, by any leader, and stands in
// the way of a claim as long as its holder may believe in its last confirmation, not
// shorter and not longer.
func TestEndedEraLastsOneTTL(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	c.tick(30)
	if !c.confirm(l, 1, "a") {
		t.Fatal("the active era was not confirmed")
	}
	c.propose(l, &rootv1.Event{Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: 1}}})
	for range 50 {
		c.tick(1)
		if c.confirm(l, 1, "a") {
			t.Fatal("an era that was asked to end was confirmed")
		}
	}
	if applied(c.claim(l, "b", 1, testTTL)) {
		t.Fatal("expired one ttl after the last confirmation, within the drift")
	}
	c.tick(1)
	if !applied(c.claim(l, "b", 1, testTTL)) {
		t.Fatal("not expired after ttl and drift")
	}
}

func (c *cluster) propose(l *peer, events ...*rootv1.Event) {
	c.t.Helper()
	p, err := replica.NewProposal([]*rootv1.Command{{Events: events}})
	if err != nil {
		c.t.Fatal(err)
	}
	l.turn(0, p)
	c.settle()
	if p.Err != nil || p.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		c.t.Fatalf("propose: %v %v", p.Err, p.Results)
	}
}

// While a claim over an era is under way, the era is confirmed to nobody; the
// confirm is answered by what became of the claim.
func TestConfirmWhileClaimInFlight(t *testing.T) {
	for _, ttl := range []time.Duration{0, testTTL} {
		c := newCluster(t, 3, nil)
		l := c.lead(1)
		c.claim(l, "a", 0, ttl)
		c.tick(60)
		takeover := claim(t, "b", 1, ttl)
		before, request, read := confirm(1, "a"), confirm(1, "a"), replica.NewRead()
		// The claim is in the log, but only what reads need gets through to the
		// others.
		c.drop = func(m *raftpb.Message) bool { return m.GetType() == raftpb.MsgApp }
		l.turn(0, before, takeover)
		l.turn(0, request, read)
		c.settle()
		if !l.answered(read) {
			t.Fatalf("ttl %v: reads do not get through", ttl)
		}
		if l.answered(before) || l.answered(request) {
			t.Fatalf("ttl %v: answered while a claim is in flight: %v %v", ttl, before.Response, request.Response)
		}
		c.drop = nil
		c.tick(10)
		if !l.answered(request) || request.Err != nil || request.Response.GetActive() {
			t.Fatalf("ttl %v: after the claim: answered %v error %v active %v", ttl, l.answered(request), request.Err, request.Response.GetActive())
		}
		if !applied(takeover.Response) {
			t.Fatalf("ttl %v: claim %v", ttl, takeover.Response)
		}
	}
}

// With a ttl of 0 a successor never waits.
func TestZeroTTLIsClaimedAtOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, 0)
	if !c.confirm(l, 1, "a") {
		t.Fatal("not confirmed")
	}
	if !applied(c.claim(l, "b", 1, 0)) {
		t.Fatal("waited")
	}
}

// Who has no proof that the holder is gone waits while it is confirmed, and not
// longer; who has proof does not.
func TestUnlessConfirmed(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, 0)
	for range 5 {
		c.tick(5)
		if !c.confirm(l, 1, "a") {
			t.Fatal("not confirmed")
		}
		c.tick(2)
		r := claim(t, "b", 1, 0)
		r.Request.UnlessConfirmed = true
		l.turn(0, r)
		c.settle()
		if r.Err != nil || applied(r.Response) || r.Response.GetRetryAfterMillis() == 0 || r.Response.GetRetryAfterMillis() > 150 {
			t.Fatalf("over a holder that is confirmed: %v, %v", r.Response, r.Err)
		}
	}
	c.tick(6)
	r := claim(t, "b", 1, 0)
	r.Request.UnlessConfirmed = true
	l.turn(0, r)
	c.settle()
	if r.Err != nil || !applied(r.Response) {
		t.Fatalf("over a holder that has been silent: %v, %v", r.Response, r.Err)
	}
	if c.claim(l, "c", 2, 0); l.view.State.Tenure().GetHolderId() != "c" {
		t.Error("with proof it waited")
	}
}

// A new leader counts from its own election, whatever the old one knew.
func TestNewLeaderWaitsItsOwnTTL(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	c.tick(45)
	l.turn(0, replica.NewTransfer(2))
	c.settle()
	l = c.peers[2]
	if l.view.Role != rootv1.RaftRole_RAFT_ROLE_LEADER {
		t.Fatal("peer 2 does not lead")
	}
	c.tick(50)
	if r := c.claim(l, "b", 1, testTTL); applied(r) {
		t.Fatal("the new leader did not wait")
	}
	c.tick(1)
	if r := c.claim(l, "b", 1, testTTL); !applied(r) {
		t.Fatalf("after the new leader's own wait: %v", r)
	}
}

// A claim that comes before the new leader has applied an entry of its own
// waits for that.
func TestClaimWaitsForTheLeadersOwnEntry(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	l := c.peers[2]
	c.peers[1].turn(0, replica.NewTransfer(2))
	for range 100 {
		for _, id := range c.order {
			if id != 2 {
				c.peers[id].turn(0)
			}
		}
		if l.turn(0); l.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER {
			break
		}
	}
	last := l.view.LastIndex
	r := claim(t, "a", 0, testTTL)
	l.turn(0, r)
	if l.answered(r) || l.view.LastIndex != last {
		t.Fatalf("judged at once: answered %v, log from %d to %d", l.answered(r), last, l.view.LastIndex)
	}
	c.tick(3)
	if !l.answered(r) || !applied(r.Response) {
		t.Fatalf("answered %v: %v %v", l.answered(r), r.Response, r.Err)
	}
}

// What the old leader was asked is answered, and not by what it believed.
func TestDeposedLeaderConfirmsNothing(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	c.isolate(1)
	request, waiting := confirm(1, "a"), claim(t, "b", 1, 0)
	l.turn(0, request, waiting)
	c.tick(100)
	next := c.elect()
	if r := c.claim(next, "b", 1, testTTL); !applied(r) {
		t.Fatalf("takeover: %v", r)
	}
	c.heal()
	c.tick(10)
	if !l.answered(request) {
		t.Fatal("never answered")
	}
	wantReason(t, request.Err, rootv1.Reason_REASON_NOT_LEADER)
	if applied(waiting.Response) {
		t.Fatal("a deposed leader found an era expired")
	}
}

// The verdict "expired" is the leader's alone.
func TestPredecessorExpiredIsCleared(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	c.claim(l, "a", 0, testTTL)
	request := &rootv1.TenureClaimed{
		HolderId: "b", HolderIncarnation: 5, HolderAddress: "127.0.0.1:9", ExpectedEra: 1, TtlMillis: 1000,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO}, PredecessorExpired: true,
	}
	p, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: request}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l.turn(0, p)
	if p.Results[0].Outcome != rootv1.Outcome_OUTCOME_REJECTED || !request.PredecessorExpired {
		t.Fatalf("outcome %v, the caller's message %v", p.Results[0].Outcome, request)
	}
	r, err := replica.NewClaim(request)
	if err != nil {
		t.Fatal(err)
	}
	l.turn(0, r)
	if applied(r.Response) {
		t.Fatal("a claim carried the caller's verdict")
	}
}

// A claim brings the era's first windows along, whatever else raises the fences
// meanwhile; not where a limit is in the way: a window that is refused would take
// the claim with it.
func TestFirstWindows(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	window := func(m rootv1.Mandate, floor, size uint64) *rootv1.FirstWindow {
		return &rootv1.FirstWindow{Mandate: m, Floor: floor, Size: size}
	}
	ids, stamps := rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO
	era := uint64(0)
	take := func(beside replica.Request, windows ...*rootv1.FirstWindow) []*rootv1.EventResult {
		t.Helper()
		r := claim(t, "a", era, 0)
		r.Windows = windows
		if beside != nil {
			l.turn(0, beside, r)
		} else {
			l.turn(0, r)
		}
		c.settle()
		if r.Err != nil || !applied(r.Response) {
			t.Fatalf("claim over era %d: %v, %v", era, r.Response, r.Err)
		}
		era++
		return r.Response.GetResult().GetEvents()
	}

	got := take(nil, window(ids, 0, 10), window(stamps, 500, 7))
	if len(got) != 3 || got[0].GetTenure().GetEra() != 1 {
		t.Fatalf("events %v", got)
	}
	for i, want := range []*rootv1.Window{{Era: 1, From: 0, To: 10}, {Era: 1, From: 500, To: 507}} {
		if w := got[i+1].GetWindow(); !proto.Equal(w, want) {
			t.Errorf("window %d is %v, want %v", i, w, want)
		}
	}
	got = take(nil, window(ids, 3, 5), window(stamps, 9, 1))
	if in := got[0].GetTenure().GetInherited(); in.GetAllocId() != 10 || in.GetTso() != 507 {
		t.Errorf("the successor inherits %v", in)
	}
	if w := got[1].GetWindow(); w.GetFrom() != 10 || w.GetTo() != 15 {
		t.Errorf("a floor below the fence gives %v", w)
	}

	fence, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{
		FenceExtended: &rootv1.FenceExtended{Mandate: ids, Era: 2, Size: 5},
	}}}}})
	if err != nil {
		t.Fatal(err)
	}
	got = take(fence, window(ids, 0, 1))
	if in := got[0].GetTenure().GetInherited().GetAllocId(); len(got) != 2 || in != 20 || got[1].GetWindow().GetFrom() != 20 {
		t.Errorf("beside a command that raises the fence: %v", got)
	}
	for what, windows := range map[string][]*rootv1.FirstWindow{
		"empty":                 {window(ids, 0, 0)},
		"beyond the last id":    {window(ids, 0, state.MaxID)},
		"beyond the clock":      {window(stamps, state.MaxTSO-1, 1)},
		"of no mandate":         {window(rootv1.Mandate_MANDATE_SCHEDULE, 0, 1)},
		"one good, one without": {window(ids, 0, 1), window(ids, 0, 0)},
	} {
		if got := take(nil, windows...); len(got) != 1 {
			t.Errorf("%s: a window came along: %v", what, got)
		}
	}

	for what, windows := range map[string][]*rootv1.FirstWindow{
		"too large":                 {window(ids, 0, state.MaxIDWindow+1)},
		"too large together":        {window(ids, 0, state.MaxIDWindow), window(ids, 0, 1)},
		"too far ahead":             {window(ids, 22+state.MaxIDSkip, 1)},
		"too far ahead, the second": {window(ids, 0, 1), window(ids, 23+state.MaxIDSkip, 1)},
	} {
		if got := take(nil, windows...); len(got) != 1 {
			t.Errorf("%s: a window came along: %v", what, got)
		}
	}

	// Asked again, the era is the same one and the windows are others: nobody
	// heard of the first.
	r := claim(t, "a", era-1, 0)
	r.Windows = []*rootv1.FirstWindow{window(ids, 0, 1)}
	l.turn(0, r)
	c.settle()
	if e := r.Response.GetResult().GetEvents(); len(e) != 2 || e[0].GetTenure().GetEra() != era || e[1].GetWindow().GetFrom() != 21 {
		t.Errorf("a repeated claim: %v", r.Response)
	}

	// Where ids were never given, they may begin anywhere, and only the first do.
	for _, windows := range [][]*rootv1.FirstWindow{
		{window(ids, 1<<60, 1)}, {window(ids, 0, 1), window(ids, 1<<60, 1)}, {window(ids, 0, state.MaxIDWindow+1)},
	} {
		c = newCluster(t, 3, nil)
		l, era = c.lead(1), 0
		if got := take(nil, windows...); len(got) == 2 != (windows[0].Floor > 0) {
			t.Errorf("%v for the first era: %v", windows, got)
		}
	}
	if _, err := replica.NewClaim(r.Request, make([]*rootv1.FirstWindow, 17)...); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
		t.Errorf("17 windows: %v", err)
	}
}
