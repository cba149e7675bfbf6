package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// callers are the examples of callers, by what has to be installed for them.
var callers = map[string]string{"python3": "examples/languages/caller.py", "node": "examples/languages/caller.mjs"}

// Callers of each language, of its standard library alone: a request by the proxy, a route and a watch
// by REST, which goes on at another coordinator when its own is killed.
func TestCallersInOtherLanguages(t *testing.T) {
	t.Parallel()
	c := startCounters(t, "python3") // whom they call
	rest := make([]string, 0, 2)
	for _, addr := range c.MetricsAddrs[c.Roots():] {
		rest = append(rest, "http://"+addr)
	}
	for language, file := range callers {
		t.Run(language, func(t *testing.T) {
			needProgram(t, language)
			say := func(args ...string) proctest.Options {
				return proctest.Options{Name: language, Path: language, Args: append([]string{repositoryFile(t, file)}, args...)}
			}
			var got counted
			for want := 1; want <= 2; want++ {
				r := proctest.Run(t, say("call", c.url, "öf-"+language))
				if err := json.Unmarshal([]byte(r.Stdout), &got); err != nil || got.Count != want {
					t.Fatalf("call %d says %s %s", want, r.Stdout, r.Stderr)
				}
			}
			var to struct {
				Owners  []struct{ Member, Address string }
				Headers map[string]string
			}
			away := nobody(t)
			c.eventually(func() error { // the view of who is asked may be behind
				r := proctest.Run(t, say("route", "http://"+away+","+rest[0], "games", "öf-"+language))
				if err := json.Unmarshal([]byte(r.Stdout), &to); err != nil || len(to.Owners) != 1 || to.Owners[0].Member != got.Member ||
					to.Owners[0].Address != c.address[got.Member] || to.Headers["Nokv-Epoch"] == "" || to.Headers["Nokv-Region"] == "" || !strings.Contains(r.Stderr, "unreachable: again in") {
					return fmt.Errorf("the route of a key of %s: %s %s", got.Member, r.Stdout, r.Stderr)
				}
				return nil
			})
			r := proctest.Run(t, say("route", strings.Join(rest, ","), "nothing", "x"))
			if r.Code != 1 || !strings.Contains(r.Stderr, `not_found`) || !strings.Contains(r.Stderr, "way_out") {
				t.Errorf("the route of a keyspace that is not there: exit status %d, %s", r.Code, r.Stderr)
			}

			w := proctest.Start(t, say("watch", strings.Join(rest, ","), "games"))
			key := func(name string) string {
				return `"start_key":"` + base64.StdEncoding.EncodeToString([]byte(name)) + `"`
			}
			sees := func(name string) {
				t.Helper()
				c.eventually(func() error { _, err := c.ask("POST", name, name); return err })
				proctest.Eventually(t, hostedWithin, func() error {
					if !strings.Contains(strings.ReplaceAll(w.Log(), ": ", ":"), key(name)) {
						return fmt.Errorf("the watch has not shown %s", name)
					}
					return nil
				})
			}
			sees("öf-" + language) // in the snapshot
			sees("new-" + language)
			c.Kill(c.Roots())
			sees("behind-" + language)
			c.Start(c.Roots())
			proctest.Eventually(t, hostedWithin, func() error { return c.Healthy(c.Roots()) })
		})
	}
}

// A caller that is told to wait waits, says so, and sends the same request again; one that is refused for good
// does not.
func TestCallersDoAsProblemsSay(t *testing.T) {
	t.Parallel()
	for language, file := range callers {
		t.Run(language, func(t *testing.T) {
			needProgram(t, language)
			var mu sync.Mutex
			var names []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				names = append(names, r.Header.Get("Idempotency-Key"))
				w.Header().Set("Content-Type", "application/problem+json")
				switch {
				case r.Header.Get("X-Game") == "bad":
					w.WriteHeader(http.StatusBadRequest)
					_, _ = w.Write([]byte(`{"status":400,"reason":"invalid_request","detail":"no"}`))
				case len(names) == 1:
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = w.Write([]byte(`{"status":503,"reason":"overloaded"}`))
				case len(names) == 2:
					w.WriteHeader(http.StatusBadGateway)
					_, _ = w.Write([]byte(`{"status":502,"reason":"outcome_unknown"}`))
				default:
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(`{"count": 7}`))
				}
			}))
			defer server.Close()
			run := func(key string) proctest.Result {
				return proctest.Run(t, proctest.Options{Name: language, Path: language, Args: []string{repositoryFile(t, file), "call", server.URL, key}})
			}
			r := run("good")
			if r.Code != 0 || !strings.Contains(r.Stdout, "7") || !strings.Contains(r.Stderr, "overloaded: again in 1.00 s") || !strings.Contains(r.Stderr, "outcome_unknown: again in 0.") {
				t.Errorf("exit status %d, %s %s", r.Code, r.Stdout, r.Stderr)
			}
			mu.Lock()
			sent := names
			mu.Unlock()
			if len(sent) != 3 || sent[0] == "" || len(slices.Compact(sent)) != 1 {
				t.Errorf("it sent requests named %q, want one name, three times", sent)
			}
			if r := run("bad"); r.Code != 1 || !strings.Contains(r.Stderr, "invalid_request") || strings.Contains(r.Stderr, "again") {
				t.Errorf("refused for good: exit status %d, %s", r.Code, r.Stderr)
			}
		})
	}
}

// What docs/other-languages.md shows of the examples is what they have.
func TestDocsShowTheCallers(t *testing.T) {
	page, shown := readDoc(t, "other-languages.md"), 0
	for _, file := range callers {
		raw, err := os.ReadFile(repositoryFile(t, file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page, "(../"+file+")") {
			t.Errorf("docs/other-languages.md does not link to %s", file)
		}
		_, part, _ := strings.Cut(page, "## Without a library")
		part, _, _ = strings.Cut(part, "\n## ")
		ending := strings.TrimPrefix(filepath.Ext(file), ".")
		for _, block := range regexp.MustCompile("(?s)```"+map[string]string{"py": "python", "mjs": "js"}[ending]+"\n(.*?)```").FindAllStringSubmatch(part, -1) {
			shown++
			if !strings.Contains(string(raw), block[1]) {
				t.Errorf("%s does not have what docs/other-languages.md shows:\n%s", file, block[1])
			}
		}
	}
	if shown < 3 {
		t.Errorf("docs/other-languages.md shows %d parts of the examples, want 3 or more", shown)
	}
}
