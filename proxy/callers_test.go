package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/mtls"
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

func (g *granted) Hide(h http.Header) { h.Del("As") }

func (g *granted) May(r *http.Request, verb rootv1.Verb, keyspace string) (principal.Principal, error) {
	var who principal.Principal
	if name := r.Header.Get("As"); name != "" {
		who = principal.Principal{Role: principal.Client, Name: name}
	}
	return who, g.judge(who, verb, keyspace)
}

func (g *granted) judge(who principal.Principal, verb rootv1.Verb, keyspace string) error {
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

// Callers are who their certificates say, who their tokens say, or nobody, as it is set, and members are told that. Tokens that count at
// the proxy do not reach members.
func TestCallersAreKnownBySetting(t *testing.T) {
	type seen struct{ caller, authorization string }
	var asked []seen
	var mu sync.Mutex // of asked
	w := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, seen{r.Header.Get(router.HeaderCaller), r.Header.Get("Authorization")})
	}))
	w.tokens = map[string]string{"of-op": "operator/op", "of-none": "client/none"}
	w.judges = func(r *coordinatorv1.CheckAccessRequest) bool { return r.GetPrincipal() != "client/none" }
	a := authority(t, "test")
	source, shows := certs(t, a, principal.Proxy, "p"), map[string]*tls.ConnectionState{}
	for name, role := range map[string]principal.Role{"web": principal.Client, "1": principal.Root, "c1": principal.Coordinator} {
		dir := certs(t, a, role, name).Dir()
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, mtls.CertFile), filepath.Join(dir, mtls.KeyFile))
		must(t, err)
		shows[name] = new(tls.ConnectionState)
		for _, der := range pair.Certificate {
			c, err := x509.ParseCertificate(der)
			must(t, err)
			shows[name].PeerCertificates = append(shows[name].PeerCertificates, c)
		}
	}
	certificate, token, none := proxy.NewCallers(w.client, source), proxy.NewTokenCallers(w.client, source), proxy.NewCallers(w.client, nil)
	for _, row := range []struct {
		by                  proxy.Callers
		cert, authorization string
		code                int
		seen
	}{
		{certificate, "web", "Bearer of-op", 200, seen{"client/web", "Bearer of-op"}}, // which is the member's own
		{certificate, "", "", 200, seen{"nobody", ""}},
		{certificate, "1", "", 403, seen{}},
		{certificate, "c1", "", 403, seen{}},
		{token, "", "Bearer of-op", 200, seen{"operator/op", ""}},
		{token, "web", "bearer  of-op", 200, seen{"operator/op", ""}},
		{token, "web", "", 200, seen{"client/web", ""}},
		{token, "web", "Basic eDp5", 200, seen{"client/web", ""}},
		{token, "", "", 200, seen{"nobody", ""}},
		{token, "", "Bearer of-none", 403, seen{}},
		{token, "web", "Bearer that-was-revoked", 401, seen{}},
		{token, "web", "Bearer", 401, seen{}},
		{token, "web", "Bearer " + strings.Repeat("x", 1000), 401, seen{}},
		{none, "web", "Bearer of-op", 200, seen{"nobody", "Bearer of-op"}},
	} {
		mu.Lock()
		asked = nil
		mu.Unlock()
		lookup := w.proxy(proxy.Config{Callers: row.by}).Lookup()
		front := serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			r.TLS = shows[row.cert]
			lookup.ServeHTTP(rw, r)
		}))
		code, h, body := ask(t, "POST", front.URL, "k", "", "Authorization", row.authorization)
		want := []seen{row.seen}
		if row.code != 200 {
			want = nil
		}
		mu.Lock()
		if code != row.code || !slices.Equal(asked, want) || (code == 401) != (h.Get("WWW-Authenticate") == "Bearer") || code != 200 && h.Get(proxy.HeaderReason) != "permission_denied" {
			t.Errorf("%q with the certificate %q: %d %s, and the member sees %v, want %d and %v", row.authorization, row.cert, code, body, asked, row.code, want)
		}
		mu.Unlock()
	}
}

// Anybody can make up tokens: those that do not count are asked about a few at a time, and who is known by one that does goes on.
func TestTokensThatAreMadeUpKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startInMemory(t, says("first"))
		w.tokens = map[string]string{"web": "client/web"}
		w.judges = func(*coordinatorv1.CheckAccessRequest) bool { return true }
		k := proxy.NewTokenCallers(w.client, nil)
		may := func(token string) error {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			must(t, err)
			r.Header.Set("Authorization", "Bearer "+token)
			_, err = k.May(r, rootv1.Verb_VERB_READ, "games")
			return err
		}
		must(t, may("web"))
		w.mu.Lock()
		w.slow = time.Second
		w.mu.Unlock()
		var all sync.WaitGroup
		for i := range 10_000 {
			all.Go(func() {
				if may(fmt.Sprint(i)) == nil {
					t.Error("a token that is made up counts")
				}
			})
		}
		for range 10 {
			time.Sleep(time.Second)
			must(t, may("web"))
		}
		all.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.most > 10 {
			t.Errorf("%d tokens were asked about at once", w.most)
		}
	})
}

// A WebSocket ends with the token that it began with.
func TestAWebSocketEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startInMemory(t, webSocket(nil))
		w.tokens = map[string]string{"of-web": "client/web"}
		w.judges = func(*coordinatorv1.CheckAccessRequest) bool { return true }
		front := serveAt(t, w.lan, w.proxy(proxy.Config{Callers: proxy.NewTokenCallers(w.client, nil)}).Lookup())
		conn := w.lan.connect(t, front)
		c := upgraded(t, conn, "Authorization: Bearer of-web")
		time.Sleep(time.Minute)
		must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		w.mu.Lock()
		w.tokens = nil
		w.mu.Unlock()
		begun := time.Now()
		rest, _ := io.ReadAll(c)
		if took := time.Since(begun); len(rest) < 4 || string(rest[2:4]) != "\x03\xf0" || took > 3*time.Second {
			t.Errorf("the end is %q after %v, want a close frame with code 1008", rest, took)
		}
	})
}

// A WebSocket ends when its caller may not read any more, and when that is not known: as requests do.
func TestAWebSocketEndsWithTheVerdict(t *testing.T) {
	for may, code := range map[string]string{"": "\x03\xf0", "?": "\x03\xf4"} { // 1008 and 1012
		synctest.Test(t, func(t *testing.T) {
			w := startInMemory(t, webSocket(nil))
			g := &granted{may: map[string]string{"web": "read"}}
			front := serveAt(t, w.lan, w.proxy(proxy.Config{Callers: g}).Lookup())
			conn := w.lan.connect(t, front)
			c := upgraded(t, conn, "As: web")
			time.Sleep(time.Minute)
			must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
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
		k := proxy.NewTokenCallers(w.client, nil)
		web, nobody := principal.Principal{Role: principal.Client, Name: "web"}, principal.Principal{}
		w.tokens = map[string]string{"web": "client/web"}
		may := func(who principal.Principal) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			must(t, err)
			if who != nobody {
				r.Header.Set("Authorization", "bearer "+who.Name)
			}
			is, err := k.May(r, rootv1.Verb_VERB_READ, "games")
			if is != who && err == nil {
				t.Errorf("%v is taken for %v", who, is)
			}
			return err
		}
		judges(func(r *coordinatorv1.CheckAccessRequest) bool {
			return r.GetPrincipal() == "client/web" && r.GetVerb() == rootv1.Verb_VERB_READ && r.GetKeyspace() == "games"
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if _, denied := errors.AsType[*proxy.Denied](may(nobody)); !denied {
					t.Error("nobody may what client/web may")
				}
			})
		}
		all.Wait()
		w.mu.Lock()
		if w.judged != 1 {
			t.Errorf("100 requests at once asked %d times", w.judged)
		}
		w.mu.Unlock()
		must(t, may(web))
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
