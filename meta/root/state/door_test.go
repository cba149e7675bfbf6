package state_test

import (
	"math"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What nobody can mean is refused before it is in the log, with a sentence; what is in the log
// of older versions is judged as it was.
func TestRefusedAtTheDoor(t *testing.T) {
	join := func(capacity uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: "m1", StartNonce: 1, Capacity: capacity}}}}
	}
	probed := func(probe, address string) *rootv1.Event {
		e := join(1)
		e.GetMemberJoined().Member.ProbeAddress, e.GetMemberJoined().Member.Address = probe, address
		return e
	}
	hook := func(url string) *rootv1.Event {
		s := state.DefaultSettings()
		s.Policy = &rootv1.Policy{HookUrl: url}
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "k", Settings: s}}}
	}
	fenced := func(ttl, interval uint64) *rootv1.Event {
		s, _ := state.Preset("actors")
		s.Ownership.TtlMillis, s.Liveness.IntervalMillis = ttl, interval
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: 2, ExpectedVersion: 1, Settings: s}}}
	}
	dead := func(after uint64) *rootv1.Event {
		s, _ := state.Preset("actors")
		s.Liveness.DeadAfterMillis, s.Liveness.SuspectAfterMillis = after, 1000
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: 2, ExpectedVersion: 1, Settings: s}}}
	}
	named := func(change func(m *rootv1.Member)) *rootv1.Event {
		e := join(1)
		change(e.GetMemberJoined().GetMember())
		return e
	}
	coordinator := func(id, address string) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: id, Address: address, Incarnation: 1}}}
	}
	holder := func(id, address string) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: id, HolderAddress: address, HolderIncarnation: 1, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO},
		}}}
	}
	const unseen = "has a character that is not seen"
	for _, c := range []struct {
		event *rootv1.Event
		want  string
	}{
		{join(0), ""},
		{named(func(m *rootv1.Member) { m.Id = "m1\u202e" }), "the member id \"m1\\u202e\" " + unseen},
		{named(func(m *rootv1.Member) { m.Id = "../m1" }), "the member id \"../m1\" has the part \"..\""},
		{named(func(m *rootv1.Member) { m.Address = "h\u200b:1" }), "the address \"h\\u200b:1\" " + unseen},
		{named(func(m *rootv1.Member) { m.Kind = "a\u00a0b" }), "the kind \"a\\u00a0b\" " + unseen},
		{named(func(m *rootv1.Member) { m.Labels = map[string]string{"zone": "a b", "r\u2067ack": "1"} }), "the label name \"r\\u2067ack\" " + unseen},
		{named(func(m *rootv1.Member) { m.Labels = map[string]string{"zone": "a\ufeff"} }), "the label \"a\\ufeff\" " + unseen},
		{named(func(m *rootv1.Member) { m.Labels = map[string]string{"zone": "two words"} }), ""},
		{coordinator("c1", "h:1"), ""},
		{coordinator("c\u00ad1", "h:1"), "the coordinator id \"c\\u00ad1\" " + unseen},
		{coordinator("..", "h:1"), "the coordinator id \"..\" has the part \"..\""},
		{coordinator("c1", "h\u202e:1"), "the address \"h\\u202e:1\" " + unseen},
		{holder("c1", "h:1"), ""},
		{holder("c\u200d1", "h:1"), "the holder id \"c\\u200d1\" " + unseen},
		{holder("c1", "h\u3164:1"), "the holder address \"h\\u3164:1\" " + unseen},
		{join(state.MaxCapacity), ""},
		{join(state.MaxCapacity + 1), "capacity is 1000001, at most 1000000 are allowed"},
		{join(math.MaxUint64), "at most 1000000 are allowed"},
		{probed("10.0.0.7:7001", "m1:7000"), ""},
		{probed("127.0.0.1:7001", "127.0.0.1:7000"), ""},
		{probed("m1:7001", "m1:7000"), "the probe address \"m1:7001\" is not an IP address and a port: register the IP address and port"},
		{probed("0.0.0.0:7001", "10.0.0.7:7000"), "is not the address of one socket: register"},
		{probed("[::]:7001", "10.0.0.7:7000"), "is not the address of one socket: register"},
		{probed("127.0.0.1:7001", "10.0.0.7:7000"), "is each machine's own, but callers reach the member at \"10.0.0.7:7000\": register"},
		{fenced(90_000, 30_000), ""},
		{fenced(20_000, 30_000), ""},
		{fenced(8000, 30_000), "ownership-ttl is 8000 ms, and liveness-interval 10000 ms"},
		{fenced(1000, 200), ""},
		{fenced(399, 200), "make ownership-ttl 400 ms or more, or liveness-interval 199 ms or less"},
		{dead(30_000), ""},
		{dead(9000), "liveness-dead-after is 9000 ms, and liveness-interval 10000 ms"},
		{hook(""), ""},
		{hook("http://127.0.0.1:8080"), ""},
		{hook("https://place.example/a?b"), ""},
		{hook("::::"), "want one such as https://"},
		{hook("place.example"), "want one such as https://"},
		{hook("http://"), "want one such as https://"},
		{hook("http:///a"), "want one such as https://"},
		{hook("ftp://a"), "want one such as https://"},
		{hook("http://a b"), "want one such as https://"},
	} {
		for _, check := range []func(*rootv1.Command) *rootv1.ErrorDetail{state.CheckCommand, state.CheckSmall} {
			d := check(&rootv1.Command{Events: []*rootv1.Event{c.event}})
			if (d == nil) != (c.want == "") || d != nil && (d.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST || !strings.Contains(d.GetMessage(), c.want)) {
				t.Errorf("%v: %v, want %q", c.event, d, c.want)
			}
		}
	}
	for what, old := range map[string]*rootv1.Event{"capacity": join(math.MaxUint64), "not seen": named(func(m *rootv1.Member) { m.Id = "m1\u202e" })} {
		var out state.Applied
		if err := state.New().ApplyEntry(1, 1, encode(t, &rootv1.Command{Events: []*rootv1.Event{old}}), &out); err != nil || strings.Contains(out.Results[0].Reject.GetMessage(), what) {
			t.Errorf("an entry of an older version is judged anew: %v, %v", out.Results, err)
		}
	}
}
