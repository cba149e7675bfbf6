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
		NoKV     map[string]int `json:"nokv"`
		Memstats map[string]any `json:"memstats"`
	}
	if err := json.Unmarshal(get("/debug/vars").Body.Bytes(), &vars); err != nil || vars.NoKV["term"] != 7 || vars.Memstats == nil {
		t.Errorf("vars = %v, %v", vars.NoKV, err)
	}
	if w := get("/healthz"); w.Code != 200 || w.Body.String() != "ok\n" {
		t.Errorf("healthy: %d %q", w.Code, w.Body)
	}
	health = errors.New("no quorum")
	if w := get("/healthz"); w.Code != 503 || !strings.Contains(w.Body.String(), "no quorum") {
		t.Errorf("unhealthy: %d %q", w.Code, w.Body)
	}
}
