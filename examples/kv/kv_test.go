package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/examples/internal/demo"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
	"github.com/nokv/nokv/test/size"
)

var (
	quietly = size.Int("transfers", 40, 100, "how many transfers the quiet figures are of")
	onward  = size.Int("onward", 20, 50, "how many transfers have to end well behind each fault and each change of regions")
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "bank" { // this program, as a process of the test
		main()
	}
	os.Exit(proctest.Main(m))
}

// A bank over three stores, whose sum is the same in every snapshot while stores and tellers are
// killed, regions are split and merged and leads go elsewhere; stale routes are repaired in one
// retry, and what a dead teller left is ended, or brought to its end.
func TestN01N05N07N15N65TheSumNeverChanges(t *testing.T) {
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOKV", path)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := demo.Start(ctx, testWriter{t})
	must(err)
	defer d.Stop()
	running := make([]*demo.Process, stores+1)
	for i := 1; i <= stores; i++ {
		running[i], err = serve(ctx, d, i)
		must(err)
	}
	must(ready(ctx, d))
	k, err := openKV(ctx, strings.Split(d.Coordinators, ","))
	must(err)
	defer k.close()
	must(open(ctx, d, k))
	staleRoute(t, ctx, k)
	k.lockLife = time.Millisecond // whose clients are known to be dead
	abandoned(t, ctx, k)

	k, err = openKV(ctx, strings.Split(d.Coordinators, ",")) // whose figures are those of the bank
	must(err)
	defer k.close()
	banking, stop := context.WithCancel(ctx)
	defer stop()
	k.lockLife = 500 * time.Millisecond // of the teller who will be dead; who lives and is slower begins again
	b := &bank{kv: k, begun: time.Now()}
	ended := make(chan error, 1)
	go func() { ended <- b.run(banking) }()
	// goesOn waits until transfers and snapshots that began behind what was done have ended well.
	goesOnFor := func(transfers int, what string) {
		t.Helper()
		begun, done, audits := time.Now(), b.done.Load(), b.audits.Load()
		proctest.Eventually(t, proctest.Patience, func() error {
			select {
			case err := <-ended:
				t.Fatalf("%s: the bank ended: %v", what, err)
			default:
			}
			if b.done.Load() < done+int64(transfers) || b.audits.Load() < audits+5 {
				return fmt.Errorf("%s: %s", what, b)
			}
			return nil
		})
		t.Logf("%s: %d transfers and 5 snapshots later after %v", what, transfers, time.Since(begun).Round(time.Millisecond))
	}
	goesOn := func(what string) { t.Helper(); goesOnFor(*onward, what) }
	succeeds := func(what string, do func() error) {
		t.Helper()
		proctest.Eventually(t, proctest.Patience, do) // another change of the region may be under way
		goesOn(what)
	}
	goesOnFor(*quietly, "nothing is wrong")
	quiet := b.String()
	other, err := d.Self(ctx, "bank", "bank")
	must(err)
	succeeds("a split", func() error { return k.split(ctx, account(10)) })
	succeeds("a leader transfer", func() error { return k.lead(ctx, account(10), "store-3") })
	succeeds("another one", func() error { return k.lead(ctx, account(30), "store-2") })
	target, err := k.routes.Resolve(ctx, []byte(account(30)), router.Options{Strong: true})
	must(err)
	victim := 1 + slices.IndexFunc(running[1:], func(p *demo.Process) bool { return p.Name == string(target.Member) })
	begun := time.Now()
	running[victim].Kill()
	running[victim], err = serve(ctx, d, victim)
	must(err)
	must(leadsAgain(ctx, k))
	away := time.Since(begun)
	goesOn("a store was killed, and is back")
	other.Kill()
	goesOn("a teller was killed")
	succeeds("a merge", func() error { return k.merge(ctx, account(0)) })

	stop()
	must(<-ended)
	sum, count, _, err := audit(ctx, k)
	if err != nil || sum != accounts*opening || count != accounts {
		t.Fatalf("%d accounts with %d, %v", count, sum, err)
	}
	testreport.Linef(t, "kv: quiet: %s", quiet)
	testreport.Linef(t, "kv: with a killed store (away %v), a killed teller, a split, a merge, a transfer: %s", away.Round(time.Millisecond), b)
}

// leadsAgain reads every account, now.
func leadsAgain(ctx context.Context, k *kv) error {
	for i := range accounts {
		if _, err := k.get(ctx, account(i)); err != nil {
			return err
		}
	}
	return nil
}

// staleRoute calls with a route from before a split: the store refuses its epoch, and the one
// retry lands.
func staleRoute(t *testing.T, ctx context.Context, k *kv) {
	t.Helper()
	key := account(accounts - 1)
	ask := func(at router.Target) error {
		s, err := k.store(at.Address)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, proctest.Patience)
		defer cancel()
		_, err = s.Get(ctx, &storev1.GetRequest{Region: regionAt(at), Key: []byte(key)})
		return err
	}
	old, err := k.routes.Resolve(ctx, []byte(key), router.Options{Strong: true})
	if err == nil {
		err = ask(old)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := k.split(ctx, account(accounts-5)); err != nil {
		t.Fatal(err)
	}
	refused := ask(old)
	if reasonOf(refused) != rootv1.Reason_REASON_EPOCH_STALE && reasonOf(refused) != rootv1.Reason_REASON_RANGE_CHANGE_PENDING {
		t.Fatalf("a call at the old epoch: %v", refused)
	}
	repaired, again := k.routes.Tries([]byte(key), router.Options{}).Next(ctx, old, refused)
	if !again {
		t.Fatalf("no retry behind %v", refused)
	}
	if err := ask(repaired); err != nil || !repaired.Epoch.NewerThan(rooted.Epoch{}) || repaired.Region.ID == old.Region.ID && repaired.Epoch == old.Epoch {
		t.Fatalf("at %v behind %v: %v", repaired.Epoch, old.Epoch, err)
	}
}

// abandoned leaves transactions as a client does that dies at each step, and has others find them.
func abandoned(t *testing.T, ctx context.Context, k *kv) {
	t.Helper()
	from, to := account(0), account(accounts-1) // of two regions
	for _, row := range []struct {
		dies string
		want string // what both accounts have
	}{
		{"behind the first lock", "1000 1000"},
		{"behind all locks", "1000 1000"},
		{"behind the commit", "900 1100"},
	} {
		tx, err := k.begin(ctx)
		for _, key := range []string{from, to} {
			if err == nil {
				_, err = tx.get(ctx, key)
			}
		}
		if err == nil {
			err = tx.lock(ctx, from, &lock{Start: tx.start, Primary: from, Value: []byte("900"), Others: []string{to}})
		}
		if err == nil && row.dies != "behind the first lock" {
			err = tx.lock(ctx, to, &lock{Start: tx.start, Primary: from, Value: []byte("1100")})
		}
		if err == nil && row.dies == "behind the commit" {
			at, e := k.now(ctx)
			if err = e; err == nil {
				err = tx.decide(ctx, []string{from, to}, at)
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", row.dies, err)
		}
		sum, count, _, err := audit(ctx, k)
		if err != nil || sum != accounts*opening || count != accounts {
			t.Fatalf("dies %s: %d accounts with %d, %v", row.dies, count, sum, err)
		}
		if row.dies != "behind the commit" { // who was thought to be dead cannot commit any more
			at, err := k.now(ctx)
			if err == nil {
				err = tx.decide(ctx, []string{from, to}, at)
			}
			if !errors.Is(err, ErrConflict) {
				t.Fatalf("dies %s, and is back: %v", row.dies, err)
			}
		}
		seen, err := k.begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		a, err := seen.get(ctx, from)
		b, err2 := seen.get(ctx, to)
		if got := fmt.Sprintf("%s %s", a, b); got != row.want || err != nil || err2 != nil {
			t.Fatalf("dies %s: %s, want %s; %v, %v", row.dies, got, row.want, err, err2)
		}
	}
}

// testWriter puts what the processes print into the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
