package pin_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/pin"
	"github.com/nokv/nokv/rooted"
)

const cluster, keyspace = 7, 3

func key(t testing.TB, cluster uint64, keyspace rooted.KeyspaceID, id uint32) pin.Key {
	t.Helper()
	k, err := pin.Derive(bytes.Repeat([]byte{byte(id)}, 32), cluster, keyspace, id)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func ring(t testing.TB, cluster uint64, keyspace rooted.KeyspaceID, ids ...uint32) *pin.Ring {
	t.Helper()
	r := pin.NewRing(cluster, keyspace)
	for _, id := range ids {
		if err := r.Learn(time.Now(), key(t, cluster, keyspace, id)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func seal(t testing.TB, r *pin.Ring, life time.Duration) (pin.Pin, string) {
	t.Helper()
	p := pin.Pin{Region: 42, Member: "worker-1", Incarnation: 9, Expires: time.Now().Add(life)}
	text, err := r.Seal(&p)
	if err != nil {
		t.Fatal(err)
	}
	return p, text
}

func kind(err error) pin.Kind {
	no, ok := errors.AsType[*pin.Error](err)
	if !ok {
		return pin.Kind(fmt.Sprint(err))
	}
	return no.Kind
}

// Lock invariant 1 (P-27): a pin is opaque, and nobody without the key makes one: each that
// differs in a bit, or in length, is refused, and what it says is not in it.
func TestP27LockInvariant1APinIsOpaque(t *testing.T) {
	r := ring(t, cluster, keyspace, 1)
	made, text := seal(t, r, time.Minute)
	got, err := r.Open(text, time.Now())
	if err != nil || got != made || got.Keyspace != keyspace {
		t.Fatalf("%+v, %v: want %+v", got, err, made)
	}
	if strings.Contains(text, "worker") {
		t.Error("it can be read")
	}
	for i := range text {
		for _, c := range []byte{text[i] ^ 1, 'A', '_', '\n', 0, 0xff} {
			other := text[:i] + string([]byte{c}) + text[i+1:]
			if p, err := r.Open(other, time.Now()); other != text && err == nil {
				t.Fatalf("%q was opened: %+v", other, p)
			}
		}
	}
	for n := range text {
		if _, err := r.Open(text[:n], time.Now()); err == nil {
			t.Errorf("%d bytes of it were opened", n)
		}
	}
	if _, err := r.Open(text+"A", time.Now()); kind(err) != pin.Malformed && kind(err) != pin.Forged {
		t.Errorf("a longer one: %v", err)
	}
	if again, text2 := seal(t, r, time.Minute); again.Nonce == made.Nonce || text2 == text {
		t.Error("two pins are the same")
	}
}

// Each pin that is not taken says why, and shows nothing.
func TestRefusedPinsSayWhy(t *testing.T) {
	r := ring(t, cluster, keyspace, 1)
	_, good := seal(t, r, time.Minute)
	_, late := seal(t, r, -pin.Leeway-time.Second)
	_, almost := seal(t, r, -pin.Leeway/2)
	_, next := seal(t, ring(t, cluster, keyspace, 1, 2), time.Minute)
	_, elsewhere := seal(t, ring(t, cluster, keyspace+1, 1), time.Minute)
	_, other := seal(t, ring(t, cluster+1, keyspace, 1), time.Minute)
	forger := pin.NewRing(cluster, keyspace)
	if err := forger.Learn(time.Now(), pin.Key{ID: 1}); err != nil {
		t.Fatal(err)
	}
	_, forged := seal(t, forger, time.Minute)
	for text, want := range map[string]pin.Kind{
		late: pin.Expired, next: pin.KeyUnknown, elsewhere: pin.OtherKeyspace, other: pin.OtherCluster, forged: pin.Forged,
		"": pin.Malformed, "nokvpin_": pin.Malformed, "nokv_AAAA": pin.Malformed, good + "\n": pin.Malformed, "nokvpin_" + strings.Repeat("A", 1<<20): pin.Malformed,
		"nokvpin_" + strings.Repeat("A", 200): pin.Malformed, "nokvpin_" + strings.Repeat("_", 450): pin.Malformed, strings.Repeat("\xff", 300): pin.Malformed,
	} {
		_, err := r.Open(text, time.Now())
		if kind(err) != want {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
		if len(text) > 60 && strings.Contains(fmt.Sprint(err), text[20:60]) {
			t.Errorf("%v shows the pin", err)
		}
	}
	if _, err := r.Open(almost, time.Now()); err != nil {
		t.Errorf("clocks differ by less than the leeway: %v", err)
	}
	k := key(t, cluster, keyspace, 1)
	if s := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(s, fmt.Sprint(k.Secret[0], k.Secret[1])) || strings.Contains(s, fmt.Sprintf("%x", k.Secret[:4])) || strings.Contains(s, fmt.Sprintf("%#x", k.Secret[0])) {
		t.Errorf("a key shows itself: %s", s)
	}
}

// A replaced key opens until the longest pin has ended, and then nothing, also where it is
// told again.
func TestReplacedKeysOpenUntilTheLongestPinHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := ring(t, cluster, keyspace, 1)
		time.Sleep(time.Hour) // replaced late: the hour does not count
		_, text := seal(t, r, pin.MaxLife)
		learn := func(ids ...uint32) {
			var keys []pin.Key
			for _, id := range ids {
				keys = append(keys, key(t, cluster, keyspace, id))
			}
			if err := r.Learn(time.Now(), keys...); err != nil {
				t.Fatal(err)
			}
		}
		learn(1, 2)
		learn(2, 3) // the root has forgotten the first, and this process has not
		if _, err := r.Open(text, time.Now()); err != nil || r.Newest() != 3 {
			t.Fatalf("newest %d: %v", r.Newest(), err)
		}
		time.Sleep(pin.MaxLife)
		learn(2, 3)
		if _, err := r.Open(text, time.Now()); err != nil {
			t.Errorf("at its end: %v", err)
		}
		time.Sleep(pin.Leeway)
		if _, err := r.Open(text, time.Now()); kind(err) != pin.Expired {
			t.Errorf("behind its end: %v", err)
		}
		learn(1, 2, 3)
		if _, err := r.Open(text, time.Now()); kind(err) != pin.Expired || !strings.Contains(err.Error(), "key 1") {
			t.Errorf("told again: %v", err)
		}
		for id := uint32(4); id < 40; id++ {
			_, text = seal(t, r, time.Minute)
			learn(id)
			if _, err := r.Open(text, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Keys are rotated while others seal and open: none fails.
func TestRingsAreOpenedWhileTheyLearn(t *testing.T) {
	r := ring(t, cluster, keyspace, 1)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 300 {
				made, text := seal(t, r, time.Minute)
				if got, err := r.Open(text, time.Now()); err != nil || got != made {
					t.Error(got, err)
				}
			}
		})
	}
	for id := uint32(2); id < 10; id++ {
		if err := r.Learn(time.Now(), key(t, cluster, keyspace, id)); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
}

func FuzzOpen(f *testing.F) {
	r := ring(f, cluster, keyspace, 1)
	_, text := seal(f, r, time.Hour)
	f.Add(text)
	f.Add("nokvpin_AQAAAAAAAAAHAAAAAwAAAAE")
	now := time.Now()
	f.Fuzz(func(t *testing.T, other string) {
		if _, err := r.Open(other, now); err == nil && other != text {
			t.Errorf("%q was opened", other)
		} else if err != nil && kind(err) == pin.Kind(err.Error()) {
			t.Errorf("%v is no *pin.Error", err)
		}
		_, _ = pin.Peek(other)
	})
}

// BenchmarkOpen is P-34: every call of a pin opens it.
func BenchmarkOpen(b *testing.B) {
	r := ring(b, cluster, keyspace, 1, 2)
	texts := make([]string, 1000)
	for i := range texts {
		_, texts[i] = seal(b, r, time.Hour)
	}
	now := time.Now()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.IntN(1000); pb.Next(); i++ {
			if _, err := r.Open(texts[i%1000], now); err != nil {
				b.Error(err)
			}
		}
	})
}

// Opening costs one allocation, of the member's id.
func TestP34OpenAllocatesTheMembersID(t *testing.T) {
	r := ring(t, cluster, keyspace, 1)
	_, text := seal(t, r, time.Hour)
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		if _, err := r.Open(text, now); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

func ExampleRing() {
	// The secret is the root's: members and routers are told keys, not it.
	k, _ := pin.Derive(make([]byte, 32), 7, 3, 1)
	r := pin.NewRing(7, 3)
	_ = r.Learn(time.Now(), k)
	text, _ := r.Seal(&pin.Pin{Region: 42, Member: "worker-1", Incarnation: 9, Expires: time.Now().Add(time.Minute)})
	p, err := r.Open(text, time.Now())
	fmt.Println(p.Member, p.Incarnation, p.Region, err)
	_, err = r.Open(text[:len(text)-1]+"?", time.Now())
	fmt.Println(err)
	// Output:
	// worker-1 9 42 <nil>
	// that is no pin of NoKV: it is the text that the beginning of the work answered with, whole
}
