package debugvars_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/debugvars"
)

// A page whose name leads to loopback reads nothing of a port without certificates; who asks by
// an address, or by a name of this machine, does.
func TestPlainLoopbackIsForThisMachinesNames(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- debugvars.Serve(ctx, lis, debugvars.Source{
			Vars: func() any { return 1 }, Healthy: func(context.Context) error { return nil }, Hosts: []string{"c1.games"}, Paths: []string{"/v1/"},
			API: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the api") }),
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	get := func(host, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+lis.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	for host, want := range map[string]int{
		"": 200, "127.0.0.1:7": 200, "127.0.0.1": 200, "[::1]:7": 200, "localhost:7": 200, "LocalHost.": 200, "c1.localhost": 200, "192.0.2.1:7": 200, "c1.games:7": 200,
		"evil.example": 403, "evil.example:7": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "games": 403,
	} {
		for _, path := range []string{"/debug/vars", "/v1/keyspaces", "/debug/pprof/goroutine?debug=1"} {
			code, body := get(host, path)
			if code != want {
				t.Errorf("%s for host %q: %d %s, want %d", path, host, code, body, want)
			}
			var problem struct {
				Reason string `json:"reason"`
				WayOut string `json:"way_out"`
			}
			if want == 403 && (json.Unmarshal([]byte(body), &problem) != nil || problem.Reason != "permission_denied" || !strings.Contains(problem.WayOut, "127.0.0.1")) {
				t.Errorf("%s for host %q says %s", path, host, body)
			}
		}
		if code, body := get(host, "/healthz"); code != 200 {
			t.Errorf("/healthz for host %q: %d %s", host, code, body)
		}
	}
}

// A page of somebody else's that is open in a browser on this machine starts no profile and reads no
// numbers; who opens the address, asks from a page of the port itself or without a browser does.
func TestPagesOfOthersStartNoProfiles(t *testing.T) {
	h := debugvars.Handler(debugvars.Source{Vars: func() any { return 1 }, Healthy: func(context.Context) error { return nil }})
	for name, c := range map[string]struct {
		headers map[string]string
		want    int
	}{
		"no browser":                 {nil, 200},
		"an address that was typed":  {map[string]string{"Sec-Fetch-Site": "none"}, 200},
		"a page of this port":        {map[string]string{"Sec-Fetch-Site": "same-origin", "Referer": "http://127.0.0.1:9379/"}, 200},
		"an image":                   {map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"another port of localhost":  {map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"an older browser":           {map[string]string{"Referer": "https://evil.example/a"}, 403},
		"its page, no browser tells": {map[string]string{"Referer": "http://127.0.0.1:9379/debug/vars"}, 200},
		"a script":                   {map[string]string{"Origin": "https://evil.example"}, 403},
		"a page from a file":         {map[string]string{"Origin": "null"}, 403},
	} {
		for _, path := range []string{"/debug/vars", "/debug/pprof/heap", "/debug/pprof/trace?seconds=0.01", "/debug/pprof/goroutine?debug=1", "/healthz"} {
			r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9379"+path, nil)
			r.RemoteAddr = "127.0.0.1:7"
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
			want := c.want
			if path == "/healthz" {
				want = 200
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != want || want == 403 && !strings.Contains(w.Body.String(), "permission_denied") {
				t.Errorf("%s asks for %s: %d %.200s, want %d", name, path, w.Code, w.Body, want)
			}
		}
	}
}
