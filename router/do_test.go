package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	nokvmember "github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type contextT = context.Context

// visits runs a request: what it finds at each try, and where it went.
type visits struct {
	says []error
	at   []router.Target
}

func (v *visits) run(_ context.Context, t router.Target) error {
	v.at = append(v.at, t)
	if n := len(v.at) - 1; n < len(v.says) {
		if v.says[n] == errDial {
			return notReached(t)
		}
		return v.says[n]
	}
	return nil
}

// dialled is a dial that failed.
func dialled(ip string, port int) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: port}, Err: errDial}
}

// notReached is what net.Dial says of a Target.
func notReached(t router.Target) error {
	to, err := net.ResolveTCPAddr("tcp", t.Address)
	if err != nil {
		panic(err)
	}
	return &net.OpError{Op: "dial", Net: "tcp", Addr: to, Err: errDial}
}

// ofStore is what a reference store says.
func ofStore(why rootv1.Reason, r *rootv1.Region) error {
	return older(&rootv1.ErrorDetail{Reason: why, Region: r})
}

// older is what is said without the mark of a member that speaks of itself.
func older(d *rootv1.ErrorDetail) error { return (&reason.Error{Detail: d}).GRPCStatus().Err() }

// errDial stands for that the Target was not reached.
var errDial = errors.New("connection refused")

// What an owner says leads to another try where that is safe, at the right place.
func TestP06P08DoRepairs(t *testing.T) {
	moved := &nokvmember.Moved{Region: 1, To: "m3", Address: address(3), Epoch: epoch(7)}
	for _, row := range []struct {
		name  string
		says  []error
		o     router.Options
		truth *rootv1.Region // as coordinators have it
		want  []string       // member@conf version
		fails bool
	}{
		{name: "nothing is wrong", want: []string{"m1@2"}},
		{name: "moved", says: []error{moved}, want: []string{"m1@2", "m3@7"}},
		{name: "moved, which nobody else knows", says: []error{moved, moved}, want: []string{"m1@2", "m3@7", "m1@2"}},
		{name: "moved, by gRPC", says: []error{router.RefusalOf(moved).GRPCStatus().Err()}, want: []string{"m1@2", "m3@7"}},
		{name: "moved, to an address that is not its own", says: []error{&nokvmember.Moved{Region: 1, To: "m3", Address: "10.0.0.66:1", Epoch: epoch(7)}}, want: []string{"m1@2", "m3@7"}},
		{name: "moved, without an address", says: []error{&router.Refusal{Kind: router.Moved, Member: "m3", Epoch: epoch(7)}}, want: []string{"m1@2", "m3@7"}},
		{name: "moved to nobody that is registered", says: []error{&nokvmember.Moved{Region: 1, To: "m9", Address: "10.0.0.66:1", Epoch: epoch(7)}}, truth: region(1, "", "m", 8, 2), want: []string{"m1@2", "m2@8"}},
		{name: "moved to nobody", says: []error{&router.Refusal{Kind: router.Moved, Address: "10.0.0.66:1", Epoch: epoch(7)}}, truth: region(1, "", "m", 8, 2), want: []string{"m1@2", "m2@8"}},
		{name: "moved long ago", says: []error{&nokvmember.Moved{To: "m3", Address: address(3), Epoch: epoch(1)}}, want: []string{"m1@2", "m1@2"}},
		{name: "stale", says: []error{&nokvmember.EpochStale{Region: 1, Current: epoch(5)}}, truth: region(1, "", "m", 5, 1), want: []string{"m1@2", "m1@5"}},
		{name: "not owned", says: []error{&nokvmember.NotOwned{Region: 1}}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m2@5"}},
		{name: "a store that does not lead", says: []error{ofStore(rootv1.Reason_REASON_NOT_LEADER, region(1, "", "m", 2, 1))}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m2@5"}},
		{name: "a store that does not host it", says: []error{ofStore(rootv1.Reason_REASON_NOT_FOUND, &rootv1.Region{Id: 1})}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m2@5"}},
		{name: "a store that changes it", says: []error{ofStore(rootv1.Reason_REASON_RANGE_CHANGE_PENDING, region(1, "", "m", 2, 1))}, want: []string{"m1@2", "m1@2"}},
		{name: "a store that another process is", says: []error{ofStore(rootv1.Reason_REASON_MEMBER_RETIRED, region(1, "", "m", 2, 1))}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m2@5"}},
		{name: "a coordinator, of a member", says: []error{ofStore(rootv1.Reason_REASON_MEMBER_RETIRED, nil)}, want: []string{"m1@2"}, fails: true},
		{name: "a store, of another region", says: []error{ofStore(rootv1.Reason_REASON_EPOCH_STALE, region(9, "", "m", 2, 1))}, want: []string{"m1@2"}, fails: true},
		{name: "a coordinator is busy", says: []error{ofStore(rootv1.Reason_REASON_OVERLOADED, nil)}, want: []string{"m1@2"}, fails: true},
		{name: "a coordinator has no owner that lives", says: []error{ofStore(rootv1.Reason_REASON_UNHEALTHY_MEMBER, nil)}, want: []string{"m1@2"}, fails: true},
		{name: "a coordinator does not know", says: []error{ofStore(rootv1.Reason_REASON_OUTCOME_UNKNOWN, nil)}, want: []string{"m1@2"}, fails: true},
		{name: "a coordinator, in this process", says: []error{fmt.Errorf("publish: %w", &client.Error{Op: "PublishEvent", Reason: rootv1.Reason_REASON_EPOCH_STALE, Cause: ofStore(rootv1.Reason_REASON_EPOCH_STALE, nil)})}, want: []string{"m1@2"}, fails: true},
		{name: "a busy member, by gRPC", says: []error{router.RefusalOf(nokvmember.ErrTooManyHeld).GRPCStatus().Err()}, want: []string{"m1@2", "m1@2"}},
		{name: "an older member that is not confirmed", says: []error{older(&rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_UNHEALTHY_MEMBER, Epoch: epoch(2).Proto()})}, want: []string{"m1@2", "m1@2"}},
		{name: "an older member that does not own it", says: []error{older(&rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_EPOCH_STALE})}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m2@5"}},
		{name: "an older member that was moved", says: []error{older(&rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_EPOCH_STALE, MemberId: "m3", MemberAddress: address(3), Epoch: epoch(7).Proto()})}, want: []string{"m1@2", "m3@7"}},
		{name: "a coordinator that does not lead", says: []error{ofStore(rootv1.Reason_REASON_NOT_LEADER, nil)}, want: []string{"m1@2"}, fails: true},
		{name: "not owned, wrapped", says: []error{fmt.Errorf("ask: %w", &nokvmember.NotOwned{Region: 1})}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m2@5"}},
		{name: "it is so", says: []error{&nokvmember.NotOwned{Region: 1}}, truth: region(1, "", "m", 2, 1), want: []string{"m1@2", "m1@2"}},
		{name: "unconfirmed", says: []error{&nokvmember.Unconfirmed{Region: 1, Epoch: epoch(2)}}, want: []string{"m1@2", "m1@2"}},
		{name: "busy", says: []error{nokvmember.ErrTooManyHeld}, want: []string{"m1@2", "m1@2"}},
		{name: "it ran", says: []error{&nokvmember.NotOwned{Region: 1, Ran: true}}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2"}, fails: true},
		{name: "it ran and may again", says: []error{&nokvmember.NotOwned{Region: 1, Ran: true}}, o: router.Options{Idempotent: true}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m2@5"}},
		{name: "its own error", says: []error{errors.New("no such user")}, o: router.Options{Idempotent: true}, want: []string{"m1@2"}, fails: true},
		{name: "the answer is lost", says: []error{io.ErrUnexpectedEOF}, want: []string{"m1@2"}, fails: true},
		{name: "the answer is lost, harmlessly", says: []error{io.ErrUnexpectedEOF, io.ErrUnexpectedEOF}, o: router.Options{Idempotent: true}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m1@2", "m2@5"}},
		{name: "lost by gRPC, harmlessly", says: []error{status.Error(codes.Unavailable, "gone"), status.Error(codes.Unavailable, "gone")}, o: router.Options{Idempotent: true}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m1@2", "m2@5"}},
		{name: "not reached", says: []error{errDial, errDial}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m1@2", "m2@5"}},
		{name: "not reached, by HTTP", says: []error{&url.Error{Op: "Get", URL: "http://10.0.0.1:1/", Err: dialled("10.0.0.1", 1)}}, want: []string{"m1@2", "m1@2"}},
		{name: "its handler reached nobody", says: []error{fmt.Errorf("fetch: %w", &url.Error{Op: "Get", URL: "http://10.0.0.9:80/", Err: dialled("10.0.0.9", 80)})}, want: []string{"m1@2"}, fails: true},
		{name: "its handler reached nobody on that machine", says: []error{dialled("10.0.0.1", 80)}, want: []string{"m1@2"}, fails: true},
		{name: "its handler knows no such host", says: []error{&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "db"}}}, want: []string{"m1@2"}, fails: true},
		{name: "its handler reached nobody, and may again", says: []error{dialled("10.0.0.9", 80)}, o: router.Options{Idempotent: true}, want: []string{"m1@2", "m1@2"}},
		{name: "not sent", says: []error{router.NotSent(errors.New("no connection")), router.NotSent(errors.New("no connection"))}, truth: region(1, "", "m", 5, 2), want: []string{"m1@2", "m1@2", "m2@5"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, end := start(t, router.Config{})
				defer end()
				b.snapshot(region(1, "", "m", 2, 1), region(2, "m", "", 2, 4))
				if row.truth == nil {
					row.truth = region(1, "", "m", 2, 1)
				}
				b.c.mu.Lock()
				b.c.index = 9
				b.c.mu.Unlock()
				b.c.answers(func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
					return answer(row.truth)
				})
				v := visits{says: row.says}
				err := b.Do(t.Context(), []byte("k"), row.o, v.run)
				var went []string
				for _, at := range v.at {
					went = append(went, fmt.Sprintf("%s@%d", at.Member, at.Epoch.ConfVersion))
					if at.Address != "10.0.0."+string(at.Member)[1:]+":1" {
						t.Errorf("the address is not the one that the root has: %+v", at)
					}
				}
				if fmt.Sprint(went) != fmt.Sprint(row.want) || (err != nil) != row.fails {
					t.Errorf("went to %v: %v; want %v", went, err, row.want)
				}
				if row.fails && !errors.Is(err, row.says[len(row.want)-1]) {
					t.Errorf("the error is %v", err)
				}
				// Nothing of it disturbs another region.
				before := b.c.questions()
				if got, err := b.Resolve(t.Context(), []byte("z"), router.Options{}); err != nil || got.Member != "m4" || b.c.questions() != before {
					t.Errorf("another region: %+v %v", got, err)
				}
			})
		})
	}
}

// Of several owners the next one is asked at once when one cannot be reached.
func TestP41DoGoesToAnotherOwner(t *testing.T) {
	picking(t, router.Config{}, func(b *bench) {
		begun := time.Now()
		v := visits{says: []error{errDial}}
		must(t, b.Do(context.Background(), []byte("a"), router.Options{}, v.run))
		if len(v.at) != 2 || v.at[0].Member == v.at[1].Member || time.Since(begun) != 0 || b.c.questions() != 0 {
			t.Errorf("%v after %v with %d questions", v.at, time.Since(begun), b.c.questions())
		}
	})
}

// The only owner cannot be reached: what becomes of the region is waited for.
func TestP37DoWaitsForTheNextOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{Hold: 10 * time.Second})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		dead := func(v *visits) func(context.Context, router.Target) error {
			return func(ctx context.Context, t router.Target) error {
				_ = v.run(ctx, t)
				if t.Epoch == epoch(2) || t.Member == "m2" && len(v.says) > 0 {
					return notReached(t)
				}
				return nil
			}
		}
		var v visits
		done := make(chan error, 1)
		go func() { done <- b.Do(context.Background(), []byte("a"), router.Options{}, dead(&v)) }()
		time.Sleep(200 * time.Millisecond)
		b.members(member(1, failed))
		b.regions(region(1, "", "", 3))
		b.regions(region(1, "", "", 4, 2))
		must(t, <-done)
		if last := v.at[len(v.at)-1]; len(v.at) > 8 || last.Member != "m2" || last.Epoch != epoch(4) {
			t.Errorf("%d tries, the last at %+v", len(v.at), last)
		}
		// Within the caller's time.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		v = visits{says: []error{errDial}}
		begun := time.Now()
		if err := b.Do(ctx, []byte("a"), router.Options{}, dead(&v)); !errors.Is(err, errDial) || time.Since(begun) != time.Second || len(v.at) < 3 || len(v.at) > 12 {
			t.Errorf("after %v and %d tries: %v", time.Since(begun), len(v.at), err)
		}
	})
}

// What the watch says counts while a coordinator that was asked does not answer: many ask at once when an owner has died.
func TestP37WhoAsksHearsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		b.c.mu.Lock()
		b.c.hangs = true
		b.c.mu.Unlock()
		done, begun := make(chan error, 1), time.Now()
		go func() {
			done <- b.Do(context.Background(), []byte("a"), router.Options{}, func(_ context.Context, t router.Target) error {
				if t.Member == "m1" {
					return notReached(t)
				}
				return nil
			})
		}()
		time.Sleep(100 * time.Millisecond)
		b.regions(region(1, "", "", 3, 2))
		must(t, <-done)
		if took := time.Since(begun); took != 100*time.Millisecond {
			t.Errorf("it went on after %v, and was told of the next owner after 100 ms", took)
		}
	})
}

// An owner that is well lost one connection: it is asked again soon, not when a wait for
// another owner is over. Who never is well is asked until Hold is over.
func TestP37DoAsksAHealthyOwnerAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		for _, o := range []router.Options{{Idempotent: true}, {Idempotent: true, Hold: time.Minute}} {
			begun, v := time.Now(), visits{says: []error{io.ErrUnexpectedEOF}}
			must(t, b.Do(t.Context(), []byte("a"), o, v.run))
			if took := time.Since(begun); len(v.at) != 2 || took > 20*time.Millisecond {
				t.Errorf("%d tries in %v, want the second within 20 ms", len(v.at), took)
			}
		}
		for _, hold := range []time.Duration{300 * time.Millisecond, -1} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			begun, tries, want := time.Now(), 0, hold
			if hold < 0 {
				want = 20 * time.Second
			}
			err := b.Do(ctx, []byte("a"), router.Options{Hold: hold}, func(context.Context, router.Target) error { tries++; return nokvmember.ErrTooManyHeld })
			cancel()
			if took := time.Since(begun); !errors.Is(err, nokvmember.ErrTooManyHeld) || took != want || tries < 4 || tries > int(took/(100*time.Millisecond))+6 {
				t.Errorf("hold %v: %d tries in %v: %v", hold, tries, took, err)
			}
		}
	})
}

// A refusal arrives as it was sent, by HTTP and by gRPC.
func TestRefusalsThroughTheWire(t *testing.T) {
	for _, e := range []error{
		&nokvmember.Moved{Region: 1, To: "m3", Address: "10.0.0.3:1", Epoch: epoch(7)},
		&nokvmember.EpochStale{Region: 1, Current: epoch(7)},
		&nokvmember.NotOwned{Region: 1},
		&nokvmember.NotOwned{Region: 1, Held: epoch(3), Ran: true},
		&nokvmember.Unconfirmed{Region: 1, Epoch: epoch(7)},
		nokvmember.ErrTooManyHeld,
	} {
		want := *router.RefusalOf(e)
		rec := httptest.NewRecorder()
		want.WriteHTTP(rec)
		resp := rec.Result()
		got := router.FromHTTP(resp)
		if got == nil || *got != want {
			t.Errorf("%T by HTTP %d: %+v, want %+v", e, resp.StatusCode, got, want)
		}
		if ran := resp.StatusCode != http.StatusMisdirectedRequest; want.Ran && !ran {
			t.Errorf("%T, which ran, is answered %d", e, resp.StatusCode)
		}
		got = router.RefusalOf(want.GRPCStatus().Err())
		if got == nil || *got != want {
			t.Errorf("%T by gRPC: %+v, want %+v", e, got, want)
		}
	}
	if router.FromHTTP(&http.Response{StatusCode: 503}) != nil || router.FromHTTP(&http.Response{StatusCode: 200}) != nil || router.RefusalOf(errors.New("x")) != nil {
		t.Error("a refusal where there is none")
	}
}

// What a member makes up is left out.
func TestRefusalsOfAStranger(t *testing.T) {
	resp := &http.Response{StatusCode: 421, Header: http.Header{}, Body: io.NopCloser(zeros{})}
	resp.Header.Set(router.HeaderRefused, "surprise")
	resp.Header.Set(router.HeaderEpoch, "-1.x")
	resp.Header.Set(router.HeaderAddress, string(make([]byte, 1<<20)))
	got := router.FromHTTP(resp)
	if got.Kind != router.NotOwned || got.Epoch != (rooted.Epoch{}) || got.Address != "" || len(got.Said) > 1<<10 {
		t.Errorf("%+v", got)
	}
}

// An application may answer 421 itself, about a request that it has run: only the header makes that a refusal.
func TestA421OfTheApplicationIsAnAnswer(t *testing.T) {
	for name, h := range map[string]http.Header{
		"bare":                   {},
		"with an address":        {router.HeaderMember: {"m3"}, router.HeaderAddress: {address(3)}, router.HeaderEpoch: {"1.7"}},
		"a header of no word":    {router.HeaderRefused: {""}},
		"a header that is twice": {router.HeaderRefused: {"not_owned", "busy"}},
	} {
		for _, status := range []int{http.StatusMisdirectedRequest, http.StatusServiceUnavailable, http.StatusNotFound} {
			resp := &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("all of it"))}
			no := router.FromHTTP(resp)
			if body, err := io.ReadAll(resp.Body); no != nil || string(body) != "all of it" || err != nil {
				t.Errorf("%d, %s: a refusal %+v, and %q is left of the body", status, name, no, body)
			}
		}
	}
}

// zeros is a body without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A key that is not held, while no coordinator answers: its caller is told why when Hold is over, not later.
func TestP76DoEndsByHoldWhenItKnowsNoOwner(t *testing.T) {
	for _, silent := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, end := start(t, router.Config{Hold: 5 * time.Second})
			defer end()
			b.snapshot()
			if b.c.mu.Lock(); silent {
				b.c.hangs = true
			} else {
				b.c.server.Stop()
			}
			b.c.mu.Unlock()
			for _, row := range []struct{ hold, want time.Duration }{{0, 5 * time.Second}, {300 * time.Millisecond, 300 * time.Millisecond}, {-1, 7 * time.Second}} {
				ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
				begun := time.Now()
				err := b.Do(ctx, []byte("a"), router.Options{ClaimOnMiss: true, ReassignOrphans: true, Hold: row.hold}, func(context.Context, router.Target) error {
					t.Error("it was run")
					return nil
				})
				cancel()
				said, ok := errors.AsType[*client.Error](err)
				if took := time.Since(begun); !ok || !errors.Is(err, client.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) || took != row.want {
					t.Errorf("no coordinator (silent: %v), hold %v: %v after %v, want an error of the client after %v", silent, row.hold, err, took, row.want)
				} else {
					t.Log(said)
				}
			}
		})
	}
}
