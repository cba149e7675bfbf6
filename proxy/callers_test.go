package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/router"
)

// granted are callers that a header of the test names, and what each of them may do.
type granted struct {
	mu  sync.Mutex
	may map[string]string // verbs by name; "?": that is not known
}

func (g *granted) Who(r *http.Request) principal.Principal {
	if name := r.Header.Get("As"); name != "" {
		return principal.Principal{Role: principal.Client, Name: name}
	}
	return principal.Principal{}
}

func (g *granted) May(_ context.Context, who principal.Principal, verb rootv1.Verb, keyspace string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch word := strings.ToLower(strings.TrimPrefix(verb.String(), "VERB_")); {
	case keyspace != "default":
		return fmt.Errorf("keyspace %q", keyspace)
	case g.may[who.Name] == "?":
		return &client.Error{Op: "CheckAccess", Cause: client.ErrUnreachable}
	case strings.Contains(g.may[who.Name], word+"?"):
		return &client.Error{Op: "CheckAccess", Cause: client.ErrUnreachable}
	case strings.Contains(g.may[who.Name], word):
		return nil
	default:
		return &proxy.Denied{Who: who.String(), Verb: word, Keyspace: keyspace, Why: "no"}
	}
}

// bound is a Registry that makes anything the key of m0.
type bound struct{ w *world }

func (b bound) Pick(context.Context, string) (router.Target, error) {
	return router.Target{Member: "m0", Address: b.w.address(0)}, nil
}
func (bound) Bind(context.Context, string, []byte, router.Target) error   { return nil }
func (bound) Unbind(context.Context, string, []byte, router.Target) error { return nil }

// A proxy does for a caller what that one may do itself, by each of its handlers, and tells the member who asks: not
// what the caller says of that.
func TestAProxyLendsNobodyItsAuthority(t *testing.T) {
	var asked []string
	var mu sync.Mutex
	w := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, strings.Join(append(r.Header[router.HeaderCaller], r.Header["Nokv_caller"]...), ","))
	}))
	g := &granted{may: map[string]string{"half": "read claim?", "reader": "read", "claimer": "read claim", "publisher": "read publish", "who": "?"}}
	p := w.proxy(proxy.Config{Callers: g, ClaimOnMiss: true, Registry: bound{w}, Hold: 50 * time.Millisecond})
	lookup, pick, end := serve(t, p.Lookup()), serve(t, p.PickAndRegister(proxy.Made{})), serve(t, p.LookupAndDeregister(0))
	for _, c := range []struct {
		url, as, key string
		code         int
		reason       string
	}{
		{lookup.URL, "", "k", 403, "permission_denied"},
		{lookup.URL, "stranger", "k", 403, "permission_denied"},
		{lookup.URL, "reader", "k", 200, ""},
		{lookup.URL, "reader", "~", 404, "not_found"},      // there is none, and it may have none made
		{lookup.URL, "half", "~", 503, "root_unavailable"}, // whether it may is not known
		{lookup.URL, "who", "k", 503, "root_unavailable"},
		{pick.URL, "claimer", "k", 403, "permission_denied"},
		{pick.URL, "publisher", "k", 200, ""},
		{end.URL, "reader", "k", 403, "permission_denied"},
		{end.URL, "publisher", "k", 200, ""},
	} {
		mu.Lock()
		asked = nil
		mu.Unlock()
		req, err := http.NewRequest(http.MethodPost, c.url, http.NoBody)
		must(t, err)
		req.Header = http.Header{"K": {c.key}, "Nokv-Caller": {"operator/o"}, "Nokv_caller": {"operator/o"}}
		if c.as != "" {
			req.Header.Set("As", c.as)
		}
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != c.code || resp.Header.Get(proxy.HeaderReason) != c.reason {
			t.Errorf("%q asks for %q: %d %q, want %d %q", c.as, c.key, resp.StatusCode, resp.Header.Get(proxy.HeaderReason), c.code, c.reason)
		}
		want := []string{"client/" + c.as}
		if c.code != 200 {
			want = nil
		}
		mu.Lock()
		if fmt.Sprint(asked) != fmt.Sprint(want) {
			t.Errorf("%q asks for %q: the member is told %q, want %q", c.as, c.key, asked, want)
		}
		mu.Unlock()
	}
}

// A WebSocket ends when its caller may not read any more, and when that is not known: as requests do.
func TestAWebSocketEndsWithTheVerdict(t *testing.T) {
	for may, code := range map[string]string{"": "\x03\xf0", "?": "\x03\xf4"} { // 1008 and 1012
		synctest.Test(t, func(t *testing.T) {
			w := startInMemory(t, webSocket(nil))
			g := &granted{may: map[string]string{"web": "read"}}
			front := serveAt(t, w.lan, w.proxy(proxy.Config{Callers: g}).Lookup())
			c := upgraded(t, w.lan.connect(t, front), "As: web")
			time.Sleep(time.Minute)
			g.mu.Lock()
			g.may["web"] = may
			g.mu.Unlock()
			begun := time.Now()
			rest, _ := io.ReadAll(c)
			if took := time.Since(begun); len(rest) < 4 || rest[0] != 0x88 || string(rest[2:4]) != code || took > 3*time.Second {
				t.Errorf("with %q: the end is %q after %v, want a close frame with code %q", may, rest, took, code)
			}
		})
	}
}

// A verdict is asked for once in half a second, however many wait for it, and holds for 10 s while no coordinator knows.
// What was taken back is taken back within that.
func TestVerdictsOfCallersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startInMemory(t, says("first"))
		judges := func(fn func(*coordinatorv1.CheckAccessRequest) bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.judges = fn
		}
		k := proxy.NewCallers(w.client, nil)
		web := principal.Principal{Role: principal.Client, Name: "web"}
		may := func(who principal.Principal) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return k.May(ctx, who, rootv1.Verb_VERB_READ, "games")
		}
		judges(func(r *coordinatorv1.CheckAccessRequest) bool {
			return r.GetPrincipal() == "client/web" && r.GetVerb() == rootv1.Verb_VERB_READ && r.GetKeyspace() == "games"
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := may(web); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		w.mu.Lock()
		if w.judged != 1 {
			t.Errorf("100 requests at once asked %d times", w.judged)
		}
		w.mu.Unlock()
		if _, denied := errors.AsType[*proxy.Denied](may(principal.Principal{})); !denied {
			t.Error("nobody may what client/web may")
		}
		judges(func(*coordinatorv1.CheckAccessRequest) bool { return false })
		begun := time.Now()
		for may(web) == nil {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("what was taken back was had for %v", took)
		}
		judges(func(*coordinatorv1.CheckAccessRequest) bool { return true })
		time.Sleep(time.Second)
		must(t, may(web))
		judges(func(*coordinatorv1.CheckAccessRequest) bool {
			time.Sleep(100 * time.Millisecond)
			return false
		})
		time.Sleep(5 * time.Second)
		for range 10 { // none of them goes by what was so 5 s ago
			all.Go(func() {
				if may(web) == nil {
					t.Error("what was taken back 5 s ago is had by one of several at once")
				}
			})
		}
		all.Wait()
		w.mu.Lock()
		if w.lag == 0 {
			t.Error("a coordinator that the root cannot reach may say what was so before")
		}
		w.mu.Unlock()
		for _, role := range []principal.Role{principal.Root, principal.Coordinator} {
			if _, denied := errors.AsType[*proxy.Denied](may(principal.Principal{Role: role, Name: "1"})); !denied {
				t.Errorf("a process of the role %v is a caller of members", role)
			}
		}
		judges(func(*coordinatorv1.CheckAccessRequest) bool { return true })
		time.Sleep(time.Second)
		must(t, may(web))
		judges(nil)
		begun = time.Now()
		for may(web) == nil {
			time.Sleep(100 * time.Millisecond)
		}
		took := time.Since(begun)
		if _, denied := errors.AsType[*proxy.Denied](may(web)); denied || took < 9*time.Second || took > 13*time.Second {
			t.Errorf("while no coordinator knew, it was had for %v, and then: %v", took, may(web))
		}
	})
}
