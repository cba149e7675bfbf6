package debugvars_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/debugvars"
	"github.com/nokv/nokv/mtls/principal"
)

func TestHandler(t *testing.T) {
	var health error
	h := debugvars.Handler(debugvars.Source{
		Vars:    func() any { return map[string]int{"term": 7} },
		Healthy: func(context.Context) error { return health },
	})
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	var vars struct {
		NoKV    map[string]int `json:"nokv"`
		Process struct {
			Goroutines    int   `json:"goroutines"`
			HeapBytes     int64 `json:"heap_bytes"`
			ResidentBytes int64 `json:"resident_bytes"`
			OpenFiles     int   `json:"open_files"`
			OpenFileLimit int   `json:"open_file_limit"`
		} `json:"process"`
		Memstats map[string]any `json:"memstats"`
	}
	if err := json.Unmarshal(get("/debug/vars").Body.Bytes(), &vars); err != nil || vars.NoKV["term"] != 7 || vars.Memstats == nil {
		t.Errorf("vars = %v, %v", vars.NoKV, err)
	}
	if p := vars.Process; p.Goroutines < 1 || p.HeapBytes < 1 || p.ResidentBytes < p.HeapBytes || p.OpenFiles < 3 || p.OpenFileLimit < p.OpenFiles {
		t.Errorf("process = %+v", p)
	}
	if w := get("/healthz"); w.Code != 200 || w.Body.String() != "ok\n" {
		t.Errorf("healthy: %d %q", w.Code, w.Body)
	}
	health = errors.New("no quorum")
	if w := get("/healthz"); w.Code != 503 || !strings.Contains(w.Body.String(), "no quorum") {
		t.Errorf("unhealthy: %d %q", w.Code, w.Body)
	}
}

// Without certificates a token would be read on the way: nobody is asked for one.
func TestPlainPortsTakeNoTokens(t *testing.T) {
	h := debugvars.Handler(debugvars.Source{Vars: func() any { return 1 }, Verify: func(string) (principal.Principal, error) {
		t.Error("a token is verified")
		return principal.Principal{}, errors.New("no")
	}})
	for _, path := range []string{"/debug/vars", "/debug/pprof/goroutine?debug=1"} {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		r.RemoteAddr = "127.0.0.1:9"
		r.Header.Set("Authorization", "Bearer nokv_x")
		if h.ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// Without certificates profiles are for callers on this machine.
func TestProfilesAreForThisMachine(t *testing.T) {
	h := debugvars.Handler(debugvars.Source{})
	for from, want := range map[string]int{"127.0.0.1:9": http.StatusOK, "[::1]:9": http.StatusOK, "192.0.2.1:9": http.StatusForbidden, "?": http.StatusForbidden} {
		r, w := httptest.NewRequest(http.MethodGet, "/debug/pprof/goroutine?debug=1", nil), httptest.NewRecorder()
		r.RemoteAddr = from
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("from %s: %d, want %d", from, w.Code, want)
		}
	}
}
