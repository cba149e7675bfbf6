package takeover_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/takeover"
)

var update = flag.Bool("update", false, "rewrite testdata")

const at = time.Second

// reply is a timestamp that a client got.
func reply(client string, returned time.Duration, era uint64) history.Call {
	return history.Call{
		Client: client, Op: history.OpTSO, CallNS: int64(returned - 500*time.Microsecond), ReturnNS: int64(returned), First: uint64(returned), Count: 1, Era: era,
	}
}

// killed is a holder's kill: two clients with a reply each two milliseconds,
// c1 dead at one second, c2 serving 170 ms later.
func killed() *takeover.Round {
	const msec = time.Millisecond
	r := &takeover.Round{
		Victim: takeover.Holder, Victims: []string{"coordinator-c1"}, Roots: []string{"meta-root-1", "meta-root-2"},
		Members: []string{"meta-root-1", "meta-root-2", "coordinator-c1", "coordinator-c2"}, At: at, Until: at + 400*msec,
		Events: []takeover.Event{
			{At: 0, Who: "meta-root-2", Kind: takeover.Leads, Number: 1},
			{At: 10 * msec, Who: "coordinator-c1", Kind: takeover.Begins, Number: 1},
			{At: 20 * msec, Who: "coordinator-c1", Kind: takeover.Serves, Number: 1},
			{At: 900 * msec, Who: "coordinator-c2", Kind: takeover.Claims, Number: 2},
			{At: 901 * msec, Who: "coordinator-c2", Kind: takeover.Refused, Number: 2},
			{At: at + 12*msec, Who: "coordinator-c2", Kind: takeover.Suspect, Number: 1},
			{At: at + 12*msec, Who: "coordinator-c2", Kind: takeover.Claims, Number: 2},
			{At: at + 14*msec, Who: "coordinator-c2", Kind: takeover.Refused, Number: 2},
			{At: at + 160*msec, Who: "coordinator-c2", Kind: takeover.Claims, Number: 2},
			{At: at + 165*msec, Who: "coordinator-c2", Kind: takeover.Begins, Number: 2},
			{At: at + 170*msec, Who: "coordinator-c2", Kind: takeover.Serves, Number: 2},
			{At: at + 300*msec, Who: "coordinator-c1", Kind: takeover.Starts},
		},
	}
	for i, client := range []string{"client-1", "client-2"} {
		shift := time.Duration(i) * msec
		for t := at - 50*msec; t < at; t += 2 * msec {
			r.Calls = append(r.Calls, reply(client, t+shift, 1))
		}
		for t := at + 174*msec; t < r.Until+10*msec; t += 2 * msec {
			r.Calls = append(r.Calls, reply(client, t+4*shift, 2))
		}
	}
	return r
}

// hung is the same round with a holder that goes on when it was replaced.
func hung() *takeover.Round {
	r := killed()
	r.Action = takeover.Hang
	r.Events = append(r.Events[:len(r.Events)-1], takeover.Event{At: at + 180*time.Millisecond, Who: "coordinator-c1", Kind: takeover.Resumes},
		takeover.Event{At: at + 181*time.Millisecond, Who: "coordinator-c1", Kind: takeover.Ends, Number: 1})
	return r
}

func TestGapIsTheLongestOfAnyClient(t *testing.T) {
	r := killed()
	g, err := r.Gap(history.OpTSO)
	if err != nil || g.Client != "client-2" || g.From != at-time.Millisecond || g.To != at+178*time.Millisecond {
		t.Fatalf("%+v, %v", g, err)
	}
	// What fails, or is of another kind, is no reply.
	failed := reply("client-2", at+50*time.Millisecond, 1)
	failed.Err, failed.Count = "no answer", 0
	other := reply("client-2", at+60*time.Millisecond, 1)
	other.Op = history.OpID
	r.Calls = append(r.Calls, failed, other)
	if again, err := r.Gap(history.OpTSO); err != nil || again != g {
		t.Errorf("%+v, %v, want %+v", again, err, g)
	}
	// A longer one after the takeover counts as well, one after the round does not.
	r.Until = at + 500*time.Millisecond
	r.Calls = append(r.Calls, reply("client-1", at+700*time.Millisecond, 2), reply("client-1", at+2*time.Second, 2))
	if again, _ := r.Gap(history.OpTSO); again.Client != "client-1" || again.To != at+700*time.Millisecond {
		t.Errorf("%+v", again)
	}
}

func TestGapRefusesSilentClients(t *testing.T) {
	for name, c := range map[string]struct{ keep func(history.Call) bool }{
		"before the kill": {func(c history.Call) bool { return c.Client == "client-1" || c.ReturnNS > int64(at) }},
		"after the kill":  {func(c history.Call) bool { return c.Client == "client-1" || c.ReturnNS < int64(at) }},
		"no call of":      {func(history.Call) bool { return false }},
	} {
		r := killed()
		var kept []history.Call
		for _, call := range r.Calls {
			if c.keep(call) {
				kept = append(kept, call)
			}
		}
		r.Calls = kept
		if _, err := r.Gap(history.OpTSO); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadBeforeTheKill(t *testing.T) {
	r := killed()
	if least, longest := r.Load(history.OpTSO, at-40*time.Millisecond, at); least != 20 || longest != 2*time.Millisecond {
		t.Errorf("%d replies, longest gap %v", least, longest)
	}
	if least, _ := r.Load(history.OpRoute, 0, at); least != 0 {
		t.Errorf("%d replies of a kind that nobody asked for", least)
	}
}

func lengths(parts []takeover.Part) string {
	var words []string
	for _, p := range parts {
		words = append(words, fmt.Sprintf("%s %d", p.Name, p.Length().Milliseconds()))
	}
	return strings.Join(words, ", ")
}

func TestPartsOfEachVictim(t *testing.T) {
	msec := func(n int) time.Duration { return at + time.Duration(n)*time.Millisecond }
	gap := takeover.Gap{Client: "client-1", From: msec(-1), To: msec(180)}
	root := []takeover.Event{
		{At: msec(3), Who: "meta-root-1", Kind: takeover.PeerGone, Number: 2},
		{At: msec(4), Who: "meta-root-3", Kind: takeover.PeerGone, Number: 2},
		{At: msec(13), Who: "meta-root-1", Kind: takeover.Leads, Number: 2},
		{At: msec(15), Who: "coordinator-c1", Kind: takeover.LeaderFound, Number: 1},
	}
	claims := killed().Events
	retirement := []takeover.Event{
		{At: msec(2), Who: "coordinator-c1", Kind: takeover.Ends, Number: 1},
		{At: msec(5), Who: "coordinator-c1", Kind: takeover.Retired, Number: 1},
		{At: msec(6), Who: "coordinator-c2", Kind: takeover.Claims, Number: 2},
		{At: msec(9), Who: "coordinator-c2", Kind: takeover.Begins, Number: 2},
		{At: msec(14), Who: "coordinator-c2", Kind: takeover.Serves, Number: 2},
	}
	for _, c := range []struct {
		victim  takeover.Victim
		action  takeover.Action
		victims []string
		events  []takeover.Event
		want    string
	}{
		{takeover.Holder, takeover.Kill, []string{"coordinator-c1"}, claims, "before 1, detection 12, wait 148, commit 5, confirm 5, client 10"},
		{takeover.Leader, takeover.Kill, []string{"meta-root-2"}, root, "before 1, detection 3, election 10, reach 2, client 165"},
		{takeover.Both, takeover.Kill, []string{"coordinator-c1", "meta-root-2"}, append(root, claims...), "before 1, detection 3, election 10, wait 147, commit 5, confirm 5, client 10"},
		{takeover.Holder, takeover.Restart, []string{"coordinator-c1"}, retirement, "before 1, drain 2, retire 3, detection 1, commit 3, confirm 5, client 166"},
		{takeover.Leader, takeover.Restart, []string{"meta-root-2"}, root, "before 1, election 13, reach 2, client 165"},
		{takeover.Leader, takeover.Hang, []string{"meta-root-2"}, root[2:], "before 1, election 13, reach 2, client 165"},
		{takeover.Holder, takeover.Hang, []string{"coordinator-c1"}, hung().Events, "before 1, detection 12, wait 148, commit 5, confirm 5, client 10"},
		{takeover.Holder, takeover.Kill, []string{"coordinator-c1"}, nil, "before 1, client 180"},
	} {
		r := &takeover.Round{Victim: c.victim, Action: c.action, Victims: c.victims, At: at, Until: msec(400), Events: c.events}
		if got := lengths(r.Parts(gap)); got != c.want {
			t.Errorf("%s of %s:\n%s, want\n%s", c.action, c.victim, got, c.want)
		}
	}
}

// A process that takes its time to die is not detected late.
func TestDeathIsNotDetection(t *testing.T) {
	for gone, want := range map[time.Duration]string{5: "before 1, death 5, detection 7, wait 148", 12: "before 1, death 12, detection 0, wait 148", 90: "before 1, death 12, detection 0, wait 148"} {
		r := killed()
		r.Gone = at + gone*time.Millisecond
		if got := lengths(r.Parts(takeover.Gap{From: at - time.Millisecond, To: at + 180*time.Millisecond})); !strings.HasPrefix(got, want) {
			t.Errorf("gone after %d ms: %s, want %s", gone, got, want)
		}
	}
}

// Promise 2, for any events and any gap.
func TestPartsAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	kinds := []takeover.Kind{
		takeover.Suspect, takeover.Claims, takeover.Refused, takeover.Begins, takeover.Serves, takeover.Ends, takeover.Retired,
		takeover.PeerGone, takeover.Leads, takeover.LeaderFound,
	}
	for range 2000 {
		r := &takeover.Round{
			Victim: []takeover.Victim{takeover.Holder, takeover.Leader, takeover.Both}[rng.IntN(3)],
			Action: []takeover.Action{takeover.Kill, takeover.Hang, takeover.Restart}[rng.IntN(3)], Victims: []string{"a"}, At: 100, Until: 300,
		}
		for range rng.IntN(20) {
			r.Events = append(r.Events, takeover.Event{At: time.Duration(rng.IntN(400)), Who: string(rune('a' + rng.IntN(3))), Kind: kinds[rng.IntN(len(kinds))], Number: uint64(rng.IntN(3))})
		}
		g := takeover.Gap{From: time.Duration(50 + rng.IntN(100))}
		g.To = max(g.From, 100) + time.Duration(rng.IntN(150))
		at := g.From
		for _, p := range r.Parts(g) {
			if p.From != at || p.To < p.From {
				t.Fatalf("%+v of %+v: %s is [%d, %d), the part before it ended at %d", r, g, p.Name, p.From, p.To, at)
			}
			at = p.To
		}
		if at != g.To {
			t.Fatalf("%+v: the parts end at %d, the gap at %d", r, at, g.To)
		}
	}
}

func TestSummaryIsByNearestRank(t *testing.T) {
	var all []time.Duration
	for i := 200; i > 0; i-- {
		all = append(all, time.Duration(i))
	}
	if q := takeover.Summary(all); q != (takeover.Quantiles{P50: 100, P99: 198, Max: 200}) {
		t.Errorf("%+v", q)
	}
	if q := takeover.Summary(all[:1]); q != (takeover.Quantiles{P50: 200, P99: 200, Max: 200}) {
		t.Errorf("%+v", q)
	}
	if q := takeover.Summary(nil); q != (takeover.Quantiles{}) {
		t.Errorf("%+v", q)
	}
}

func TestDrawing(t *testing.T) {
	r := killed()
	g, err := r.Gap(history.OpTSO)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Draw(g)
	if again := killed().Draw(g); !bytes.Equal(got, again) {
		t.Error("the same round gives two pictures")
	}
	for d := xml.NewDecoder(bytes.NewReader(got)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
	}
	const golden = "testdata/holder.svg"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the picture differs from %s; look at it, then go test ./internal/takeover -update", golden)
	}
}

// A process that hangs is not there, and then it is, as a standby.
func TestDrawingOfAHang(t *testing.T) {
	r := hung()
	got := string(r.Draw(takeover.Gap{Client: "client-1", From: at, To: at + 200*time.Millisecond}))
	for _, want := range []string{"SIGSTOP coordinator-c1", "goes on", "from the signal"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in the picture", want)
		}
	}
}

// Whatever a run leaves behind can be drawn.
func TestDrawingOfLittle(t *testing.T) {
	for _, r := range []*takeover.Round{{}, {Victim: takeover.Both, Victims: []string{"<a>"}, Members: []string{"<a>"}, Action: takeover.Restart, At: at, Until: at}, hung()} {
		got := r.Draw(takeover.Gap{Client: "c", From: at, To: at + 30*time.Second})
		if err := xml.Unmarshal(got, new(struct{})); err != nil {
			t.Errorf("not well formed: %v\n%s", err, got)
		}
	}
}

func TestParseLog(t *testing.T) {
	epoch := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const head = `{"@level":"info","@module":"m","@timestamp":"2026-11-21T12:00:01.000250Z",`
	log := strings.Join([]string{
		head + `"@message":"holder is suspect","era":1,"holder":"c2"}`,
		head + `"@message":"claiming","era":2}`,
		head + `"@message":"claim answered","era":2,"outcome":2,"retry_after_millis":101}`,
		head + `"@message":"claim answered","era":2,"outcome":1,"retry_after_millis":0}`,
		head + `"@message":"root peer is gone","peer":3,"address":"a"}`,
		head + `"@message":"leading","peer":1,"term":7}`,
		head + `"@message":"leader changed","peer":1,"leader":2,"term":7}`,
		head + `"@message":"anything else","peer":"x"}`,
		"goroutine 1 [running]:", "{half", head + `"@message":"era begins","era":-1}`, head + `"@message":"era begi`,
	}, "\n")
	got, err := takeover.ParseLog(strings.NewReader(log), "c1", epoch)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range got {
		if e.At != time.Second+250*time.Microsecond || e.Who != "c1" {
			t.Errorf("%+v", e)
		}
		kinds = append(kinds, fmt.Sprint(e.Kind, " ", e.Number))
	}
	if want := "suspect 1, claims 2, refused 2, peer gone 3, leads 7, leader changed 2"; strings.Join(kinds, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(kinds, ", "), want)
	}
	if _, err := takeover.ParseLog(strings.NewReader(strings.Repeat("x", 2<<20)), "c1", epoch); err == nil {
		t.Error("a line without an end was read")
	}
}
