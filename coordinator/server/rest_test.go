package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/rest"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/docs"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// rest is a world's REST for a caller.
func (w *world) rest(t testing.TB, caller func(*http.Request) (principal.Principal, error), change ...func(*rest.Config)) *rest.Handler {
	t.Helper()
	cfg := rest.Config{
		As: w.server.As, Caller: caller, Cluster: func() uint64 { return clusterID }, Healthy: func(context.Context) error { return nil },
		Budget: budget.New(budget.Default()), Logger: hclog.NewNullLogger(),
	}
	for _, f := range change {
		f(&cfg)
	}
	return rest.New(cfg)
}

// by is a caller who is always the same.
func by(p principal.Principal) func(*http.Request) (principal.Principal, error) {
	return func(*http.Request) (principal.Principal, error) { return p, nil }
}

// answer is what came back over HTTP.
type answer struct {
	*httptest.ResponseRecorder
	fields map[string]any
}

func (a *answer) reason() string { s, _ := a.fields["reason"].(string); return s }

// jsonRequest is a request of this cluster's; an empty body: a GET's.
func jsonRequest(verb, path, body string) *http.Request {
	r := httptest.NewRequest(verb, path, strings.NewReader(body))
	if verb == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(rest.HeaderCluster, clusterid.String(clusterID))
	}
	return r
}

func over(t testing.TB, h http.Handler, r *http.Request) *answer {
	t.Helper()
	a := &answer{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(a, r)
	if strings.Contains(a.Header().Get("Content-Type"), "json") {
		if err := json.Unmarshal(a.Body.Bytes(), &a.fields); err != nil {
			t.Fatalf("%s %s: %v in %s", r.Method, r.URL, err, a.Body)
		}
	}
	return a
}

// documented are the operations of the OpenAPI document.
func documented(t testing.TB) (all []documentedCall) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			Method string `json:"x-nokv-method"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(docs.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	for path, verbs := range doc.Paths {
		for verb, op := range verbs {
			if path != "/health" {
				all = append(all, documentedCall{strings.ToUpper(verb), path, op.Method})
			}
		}
	}
	if len(all) < 45 {
		t.Fatalf("the document has %d operations", len(all))
	}
	return all
}

type documentedCall struct{ verb, path, method string }

// request is the call about what is m1's, or m2's.
func (c documentedCall) request(t testing.TB, own bool) *http.Request {
	t.Helper()
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(c.method, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		t.Fatal(err)
	}
	msg := asked(impersonate.Request(t, d.(protoreflect.MethodDescriptor)), own)
	m, path := msg.ProtoReflect(), c.path
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if hole := "{" + string(f.Name()) + "}"; strings.Contains(path, hole) {
			text := "default"
			if m.Has(f) {
				text = m.Get(f).String()
			} else if f.Kind() == protoreflect.Uint64Kind {
				text = "1"
			}
			path = strings.ReplaceAll(path, hole, text)
		}
	}
	raw, err := protojson.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	if c.verb == http.MethodGet {
		raw = nil
	}
	return jsonRequest(c.verb, path, string(raw))
}

// leaver is a caller who hangs up at the first bytes of an answer that has no end.
type leaver struct {
	http.Handler
	hangUp func()
}

func (l leaver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.Handler.ServeHTTP(&leaving{w.(*answer), l.hangUp}, r)
}

type leaving struct {
	*answer
	hangUp func()
}

func (l *leaving) Write(b []byte) (int, error) {
	defer l.hangUp()
	return l.answer.Write(b)
}

// TestEveryCallByEveryRoleOverHTTP: who may not do something by gRPC may not do it by
// REST, whatever it is, and nothing has changed then.
func TestEveryCallByEveryRoleOverHTTP(t *testing.T) {
	for _, role := range principal.Roles {
		w, p := start(t, func(c *server.Config) { c.Access = access.New() }), owner(role)
		w.populate(t)
		w.must(t, publish(11, 1, "", "m", 1, "m1"), publish(12, 1, "m", "", 1, "m2")) // which they report
		h := w.rest(t, by(p), func(c *rest.Config) { c.Secure = true })
		for _, c := range documented(t) {
			for _, own := range []bool{false, true} {
				want, r := true, (*http.Request)(nil)
				if c.method == "" { // an operation of several calls: those are judged
					want = role != principal.Operator
					if c.verb == http.MethodGet {
						want = role == principal.Root || role == principal.Coordinator
					}
					if strings.HasSuffix(c.path, "scale-down") {
						want = role != principal.Operator && (role != principal.Member || !own)
					}
					id := map[bool]string{true: "m1", false: "m2"}[own]
					bodies := map[string]string{
						"scale-up": `{"keyspace":"t","members":3}`, "scale-down": `{"member_id":"` + id + `"}`, "rebalance": `{}`, "{instanceId}": `{"incarnation":9}`, "metrics": "",
					}
					r = jsonRequest(c.verb, strings.ReplaceAll(c.path, "{instanceId}", id), bodies[c.path[strings.LastIndexByte(c.path, '/')+1:]])
				} else {
					rule := access.Of(c.method, role)
					want = rule == access.No || rule == access.Granted || rule == access.Own && !own
					r = c.request(t, own)
				}
				switch { // some may look, and find that nothing plans here, or that it is not enabled
				case strings.HasSuffix(c.path, "rebalance"):
					want = role != principal.Operator && role != principal.Client && role != principal.Proxy
				case strings.HasSuffix(c.path, "scale-up"):
					want = role == principal.Root || role == principal.Coordinator
				}
				hash, asks := w.rootHash()
				ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
				asked := http.Handler(h)
				if strings.HasSuffix(c.path, "/watch") {
					asked = leaver{h, cancel}
				}
				a := over(t, asked, r.WithContext(ctx))
				cancel()
				got := a.Code == http.StatusForbidden && a.reason() == "permission_denied" || // and of one command of several
					strings.Contains(a.Body.String(), rootv1.Reason_REASON_PERMISSION_DENIED.String())
				if got != want {
					t.Errorf("%v asks %s %s (own: %t): %d %s", p, c.verb, c.path, own, a.Code, a.Body)
				}
				after, again := w.rootHash()
				if want && (after != hash || again != asks) {
					t.Errorf("%v asks %s %s: refused, and the root was changed or asked", p, c.verb, c.path)
				}
				if c.verb == http.MethodGet && after != hash {
					t.Errorf("GET %s changed something", c.path)
				}
			}
		}
		if nobody := w.rest(t, by(principal.Principal{}), func(c *rest.Config) { c.Secure = true }); over(t, nobody, jsonRequest("GET", "/v1/status", "")).Code != http.StatusUnauthorized {
			t.Error("somebody without a name is answered")
		}
		a := over(t, w.rest(t, by(principal.Principal{})), jsonRequest("GET", "/v1/status", "")) // and if REST took no care of it
		if a.Code != http.StatusForbidden {
			t.Errorf("somebody without a name: %d %s", a.Code, a.Body)
		}
		w.end(t)
	}
}

// populate roots what secureWorld does.
func (w *world) populate(t testing.TB) {
	t.Helper()
	w.must(t, join("m1"), join("m2"), create("t", state.DefaultSettings()))
	ks := w.root.state.KeyspaceByName("t").GetId()
	w.must(t, publish(1, ks, "", "m", 1, "m1"))
	w.must(t, publish(2, ks, "m", "", 1, "m2"))
}

// plain is a world with what secureWorld has, and its REST for everybody.
func plain(t testing.TB) (*world, *rest.Handler) {
	t.Helper()
	w := start(t)
	w.populate(t)
	return w, w.rest(t, by(principal.Principal{}))
}

// Bad input is refused as a problem with a reason and a way out, and changes nothing.
func TestRESTRefusals(t *testing.T) {
	w, h := plain(t)
	with := func(r *http.Request, pairs ...string) *http.Request {
		for i := 0; i < len(pairs); i += 2 {
			if r.Header.Del(pairs[i]); pairs[i+1] != "" {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
		return r
	}
	create := func(body string, pairs ...string) *http.Request {
		return with(jsonRequest("POST", "/v1/keyspaces", body), pairs...)
	}
	long := jsonRequest("POST", "/v1/keyspaces", "{}")
	long.ContentLength = rest.MaxBodyBytes + 1
	unsaid := jsonRequest("POST", "/v1/keyspaces", "{}")
	unsaid.ContentLength = -1
	hash, _ := w.rootHash()
	for what, c := range map[string]struct {
		r      *http.Request
		status int
		reason string
		text   string
	}{
		"an unknown field":         {create(`{"name":"x","nmae":1}`), 400, "invalid_request", `unknown field \"nmae\"`},
		"no JSON":                  {create(`{"name":`), 400, "invalid_request", "body: "},
		"a form":                   {create(`name=x`, "Content-Type", "application/x-www-form-urlencoded"), 415, "invalid_request", "application/json"},
		"text, as a page may send": {create(`{"name":"x"}`, "Content-Type", "text/plain"), 415, "invalid_request", "application/json"},
		"no cluster":               {create(`{"name":"x"}`, rest.HeaderCluster, ""), 400, "cluster_required", "add the header Nokv-Cluster: 0000000000001234"},
		"another cluster":          {create(`{"name":"x"}`, rest.HeaderCluster, "00000000000000aa"), 409, "cluster_mismatch", "check the address"},
		"no cluster id":            {create(`{"name":"x"}`, rest.HeaderCluster, "aa"), 400, "invalid_request", "16 hexadecimal digits"},
		"a page of others":         {create(`{"name":"x"}`, "Origin", "https://evil.example"), 403, "permission_denied", "evil.example"},
		"a page without origin":    {create(`{"name":"x"}`, "Sec-Fetch-Site", "cross-site"), 403, "permission_denied", "pages of"},
		"a page of nobody":         {create(`{"name":"x"}`, "Origin", "null"), 403, "permission_denied", "pages of"},
		"a body that is too long":  {long, 413, "body_too_large", "8388608"},
		"a body of no length":      {unsaid, 411, "invalid_request", "Content-Length"},
		"a body of a GET":          {jsonRequest("GET", "/v1/status", "{}"), 400, "invalid_request", "no body"},
		"a time that is none":      {create(`{"name":"x"}`, rest.HeaderTimeout, "1h"), 400, "invalid_request", "30s at most"},
		"parameters of a POST":     {jsonRequest("POST", "/v1/keyspaces?name=x", ""), 400, "invalid_request", `parameter \"name\"`},
		"an unknown parameter":     {jsonRequest("GET", "/v1/keyspaces?limt=3", ""), 400, "invalid_request", `no field \"limt\"`},
		"a parameter twice":        {jsonRequest("GET", "/v1/keyspaces?limit=3&limit=4", ""), 400, "invalid_request", "2 times"},
		"no number":                {jsonRequest("GET", "/v1/keyspaces?limit=-3", ""), 400, "invalid_request", "0 to 2^32"},
		"a freshness that is none": {jsonRequest("GET", "/v1/keyspaces?read.freshness=new", ""), 400, "invalid_request", "strong, bounded"},
		"a token that is none":     {jsonRequest("GET", "/v1/keyspaces?read.required_root_token=5", ""), 400, "invalid_request", "incarnation.term.index"},
		"a message as a parameter": {jsonRequest("GET", "/v1/keyspaces?read=5", ""), 400, "invalid_request", "cannot be said"},
		"a key that is none":       {jsonRequest("GET", `/v1/keyspaces/t/keys/a%5Cxg1`, ""), 400, "invalid_request", "hex digits"},
		"two names":                {jsonRequest("POST", "/v1/members/m1/drain", `{"member_id":"m2"}`), 400, "invalid_request", "another one than the path"},
		"a name twice":             {jsonRequest("GET", "/v1/keyspaces/t?name=t", ""), 400, "invalid_request", "in the path"},
		"nothing there":            {jsonRequest("GET", "/v1/nothing", ""), 404, "not_found", "/openapi.json"},
		"another verb":             {jsonRequest("DELETE", "/v1/keyspaces/t", ""), 405, "invalid_request", "use GET"},
		"a GET of a change":        {jsonRequest("GET", "/v1/ids", ""), 405, "invalid_request", "use POST"},
		"a keyspace that is not":   {jsonRequest("GET", "/v1/keyspaces/none", ""), 404, "not_found", "none"},
		"a limit":                  {jsonRequest("GET", "/v1/keyspaces?limit=5000", ""), 400, "invalid_request", `"limit":"1024"`},
		"a position of the future": {with(jsonRequest("GET", "/v1/watch", ""), "Last-Event-ID", "1.1.999999@0000000000001234"), 409, "cluster_mismatch", "another cluster"},
		"a position of others":     {with(jsonRequest("GET", "/v1/watch", ""), "Last-Event-ID", "1.1.1@00000000000000aa"), 409, "cluster_mismatch", "check the address"},
		"no position":              {with(jsonRequest("GET", "/v1/watch", ""), "Last-Event-ID", "x"), 400, "invalid_request", "Last-Event-ID"},
		"no process":               {jsonRequest("POST", "/api/coordinator/failover/m1", `{}`), 400, "invalid_request", "that of \\\"m1\\\" is "},
		"no scaling":               {jsonRequest("POST", "/api/coordinator/scale-up", `{"keyspace":"t","members":3}`), 409, "invalid_request", "not enabled"},
		"a field of nobody's":      {jsonRequest("POST", "/api/coordinator/rebalance", `{"keyspaces":"t"}`), 400, "invalid_request", "unknown field"},
		"a field in capitals":      {jsonRequest("POST", "/api/coordinator/rebalance", `{"Keyspace":"t"}`), 400, "invalid_request", "unknown field"},
		"a field twice":            {jsonRequest("POST", "/api/coordinator/failover/m1", `{"incarnation":1,"incarnation":2}`), 400, "invalid_request", "duplicate field"},
		"half a number":            {jsonRequest("POST", "/api/coordinator/failover/m1", `{"incarnation":1.5}`), 400, "invalid_request", "2^64 - 1"},
		"a number below 0":         {jsonRequest("POST", "/api/coordinator/failover/m1", `{"incarnation":"-1"}`), 400, "invalid_request", "2^64 - 1"},
		"a text that is a number":  {jsonRequest("POST", "/api/coordinator/failover/m1", `{"incarnation":1,"reason":5}`), 400, "invalid_request", "reason"},
		"no incarnation":           {jsonRequest("POST", "/api/coordinator/failover/m1", `{"incarnation":null}`), 400, "invalid_request", "that of \\\"m1\\\" is "},
		"no name":                  {jsonRequest("POST", "/api/coordinator/rebalance", `{5:1}`), 400, "invalid_request", "body"},
		"an object in an object":   {jsonRequest("POST", "/api/coordinator/rebalance", `{{}}`), 400, "invalid_request", "body"},
		"an object as text":        {jsonRequest("POST", "/api/coordinator/rebalance", `{"keyspace":{"keyspace":"t"}}`), 400, "invalid_request", "not text"},
		"no object":                {jsonRequest("POST", "/api/coordinator/rebalance", `[]`), 400, "invalid_request", "an object"},
		"half an object":           {jsonRequest("POST", "/api/coordinator/rebalance", `{"keyspace":"t"`), 400, "invalid_request", "body"},
		"nothing":                  {jsonRequest("POST", "/api/coordinator/rebalance", `null`), 400, "invalid_request", "an object"},
		"more behind a body":       {jsonRequest("POST", "/api/coordinator/rebalance", `{}{}`), 400, "invalid_request", "more behind"},
		"an end behind a body":     {jsonRequest("POST", "/api/coordinator/rebalance", `{}}`), 400, "invalid_request", "more behind"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
		a := over(t, h, c.r.WithContext(ctx))
		cancel()
		if a.Code != c.status || a.reason() != c.reason || !strings.Contains(a.Body.String(), c.text) || a.fields["way_out"] == "" || a.fields["status"] != float64(c.status) ||
			a.Header().Get("Content-Type") != "application/problem+json" || a.Header().Get(rest.HeaderCluster) != clusterid.String(clusterID) {
			t.Errorf("%s: %d %s, want %d %s with %s", what, a.Code, a.Body, c.status, c.reason, c.text)
		}
	}
	if after, _ := w.rootHash(); after != hash {
		t.Error("something changed")
	}
	w.authority.err = reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "held elsewhere")
	w.authority.err.(*reason.Error).Detail.HolderId, w.authority.err.(*reason.Error).Detail.HolderAddress = "c2", "c2:1"
	if a := over(t, h, jsonRequest("POST", "/v1/ids", `{"count":1}`)); a.Code != http.StatusMisdirectedRequest || a.fields["holder_id"] != "c2" || a.fields["holder_address"] != "c2:1" {
		t.Errorf("who does not hold the Tenure: %d %s", a.Code, a.Body)
	}
	w.root.setDown(true)
	if a := over(t, h, create(`{"name":"x"}`)); a.Code != http.StatusServiceUnavailable || a.reason() != "root_unavailable" || a.Header().Get("Retry-After") == "" {
		t.Errorf("without a root: %d %v %s", a.Code, a.Header(), a.Body)
	}
}

// Only pages of origins that were allowed may ask in a browser.
func TestRESTOrigins(t *testing.T) {
	w, closed := plain(t)
	open := w.rest(t, by(principal.Principal{}), func(c *rest.Config) { c.Origins = []string{"https://console.example"} })
	ask := func(h http.Handler, verb, origin string) *answer {
		r := jsonRequest(verb, "/v1/keyspaces", `{"name":"x"}`)
		if verb != http.MethodPost {
			r = jsonRequest(verb, "/v1/keyspaces", "")
		}
		r.Header.Set("Origin", origin)
		return over(t, h, r)
	}
	for _, origin := range []string{"https://console.example", "https://evil.example"} {
		for _, h := range []http.Handler{closed, open} {
			may := h == http.Handler(open) && origin == "https://console.example"
			for verb, code := range map[string]int{http.MethodGet: 200, http.MethodOptions: 204, http.MethodPost: 200} {
				a := ask(h, verb, origin)
				if ok := a.Code == code; ok != (may || verb == http.MethodGet) || (a.Header().Get("Access-Control-Allow-Origin") == origin) != may {
					t.Errorf("%s of a page of %s, which may: %t: %d %v", verb, origin, may, a.Code, a.Header())
				}
			}
		}
	}
}

// TestC46C47C68R24RESTAnswers: what is asked for is what gRPC would answer, and the names
// that the requirements have are there.
func TestC46C47C68R24RESTAnswers(t *testing.T) {
	w, h := plain(t)
	ks := w.root.state.KeyspaceByName("t").GetId()
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 2, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}}}})
	w.must(t, publish(3, ks, "m\x00/", "n", 2, "m2"))
	for path, want := range map[string]string{
		"/v1/keyspaces/t/keys/a":                              `"id":"1"`,
		`/v1/keyspaces/t/keys/m%5Cx00%2Fx`:                    `"id":"3"`,
		"/v1/keyspaces/t/keys/m%00%2Fx?read.freshness=strong": `"serving_class":"SERVING_CLASS_LINEARIZABLE"`,
		`/v1/keyspaces/t/regions?start_key=m%5Cx00&limit=1`:   `"id":"3"`,
		"/v1/regions/1":   `"start_key":""`,
		"/v1/members/":    "",
		"/v1/keyspaces/t": `"regions":"2"`,
		"/v1/status":      `"coordinator_id":"c1"`,
		"/v1/keyspaces?read.required_root_token=" + w.root.token().String(): `"name":"t"`,
		"/v1/witness?read.freshness=strong":                                 `"guarantees":[`,
		"/api/coordinator/instances":                                        `"health":"MEMBER_HEALTH_`,
		"/api/coordinator/metrics":                                          `"owned_regions":"1"`,
		"/health":                                                           `"partitions":2`,
		"/openapi.json":                                                     `"openapi"`,
	} {
		a := over(t, h, jsonRequest("GET", path, ""))
		body := strings.ReplaceAll(a.Body.String(), " ", "")
		if ok := a.Code == http.StatusOK; ok != (want != "") || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d %.600s, want %s", path, a.Code, a.Body, want)
		}
	}
	for _, field := range []string{"members_active", "members", "partitions", "epoch", "cluster", "holder", "status"} {
		if a := over(t, h, jsonRequest("GET", "/health", "")); a.fields[field] == nil {
			t.Errorf("/health has no %s: %s", field, a.Body)
		}
	}
	sick := w.rest(t, by(principal.Principal{}), func(c *rest.Config) { c.Healthy = func(context.Context) error { return errors.New("no quorum") } })
	if a := over(t, sick, jsonRequest("GET", "/health", "")); a.Code != http.StatusServiceUnavailable || a.fields["detail"] != "no quorum" {
		t.Errorf("/health of one that does not serve: %d %s", a.Code, a.Body)
	}
	r := jsonRequest("POST", "/v1/keyspaces", `{"name":"x","preset":"games","identity":{"origin":"7","sequence":"1"}}`)
	r.Header.Set(rest.HeaderWhy, "f%C3%BCr%20alle")
	for range 2 { // the second one is the first one again
		if a := over(t, h, r.Clone(t.Context())); a.Code != http.StatusOK && a.Code != http.StatusBadRequest {
			t.Errorf("create: %d %s", a.Code, a.Body)
		}
		r.Body = io.NopCloser(strings.NewReader(`{"name":"x","preset":"games","identity":{"origin":"7","sequence":"1"}}`))
	}
	if last := w.root.asked[len(w.root.asked)-1]; last.GetWhy() != "für alle" || last.GetIdentity().GetOrigin() != 7 {
		t.Errorf("proposed %v", last)
	}
}

// TestC49C50RESTOperations: a verdict is about one process, a number of members is set and
// not raised: whoever asks again changes nothing.
func TestC49C50RESTOperations(t *testing.T) {
	w, h := plain(t)
	settings, _ := state.Preset("games")
	settings = proto.CloneOf(settings)
	settings.Scaling = &rootv1.Scaling{Enabled: true}
	w.must(t, create("g", settings))
	post := func(path, body string) *answer {
		a := over(t, h, jsonRequest("POST", "/api/coordinator/"+path, body))
		w.catchUp(t)
		return a
	}
	off := proto.CloneOf(settings)
	off.Scaling = &rootv1.Scaling{MinMembers: 2}
	w.must(t, create("off", off))
	if a := post("scale-up", `{"keyspace":"off","members":12}`); a.Code != http.StatusConflict {
		t.Errorf("scale-up where nobody hears of it: %d %s", a.Code, a.Body)
	}
	for i, want := range []bool{true, false} {
		if a := post("scale-up", `{"keyspace":"g","members":12}`); a.Code != 200 || a.fields["changed"] != want {
			t.Fatalf("scale-up %d: %d %s", i, a.Code, a.Body)
		}
	}
	scaling := func() *rootv1.Scaling { return w.root.state.KeyspaceByName("g").GetSettings().GetScaling() }
	if s := scaling(); s.GetMinMembers() != 12 || s.GetMaxMembers() != 12 {
		t.Errorf("scaled up: %v", s)
	}
	// What was done before a refusal is said with it, and is not done twice.
	if a := post("scale-down", `{"keyspace":"g","members":4,"member_id":"m9"}`); a.Code != 404 || a.reason() != "member_not_found" ||
		!strings.Contains(fmt.Sprint(a.fields["detail"]), `keyspace "g" wants 4 members at most from now on, but member "m9" was not drained`) || scaling().GetMaxMembers() != 4 {
		t.Errorf("scale-down of nobody: %d %s, %v", a.Code, a.Body, scaling())
	}
	if a := post("scale-down", `{"keyspace":"g","members":4,"member_id":"m9"}`); a.Code != 404 || strings.Contains(fmt.Sprint(a.fields["detail"]), "from now on") {
		t.Errorf("scale-down of nobody, again: %d %s", a.Code, a.Body)
	}
	if a := post("scale-down", `{"keyspace":"g","members":3,"member_id":"m2"}`); a.Code != 200 {
		t.Fatalf("scale-down: %d %s", a.Code, a.Body)
	}
	if s := scaling(); s.GetMinMembers() != 3 || s.GetMaxMembers() != 3 || w.root.state.Member("m2").GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING {
		t.Errorf("scaled down: %v, %v", s, w.root.state.Member("m2"))
	}
	if a := post("failover/m1", `{"incarnation":77}`); a.Code == 200 {
		t.Errorf("a verdict on a process that is not: %s", a.Body)
	}
	if a := post("failover/m1", fmt.Sprintf(`{"incarnation":"%d"}`, w.root.state.Member("m1").GetIncarnation())); a.Code != 200 || w.root.state.Member("m1").GetState() != rootv1.MemberState_MEMBER_STATE_FAILED {
		t.Errorf("failover: %d %s", a.Code, a.Body)
	}
}

// event is a server-sent event.
type event struct{ id, kind, data string }

// follow reads events of a request on a real connection until take says that it is enough.
func follow(t testing.TB, url, lastID string, take func(event) bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %v", resp.Status, resp.Header)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 64<<20)
	var e event
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.kind = value
		case "data":
			e.data = value
		case "":
			if e.kind != "" && take(e) {
				return
			}
			e = event{}
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
}

// TestRESTWatchResumesWithoutAGap: what changed between two connections comes on the
// second one, and a snapshot that was not told whole has no position.
func TestRESTWatchResumesWithoutAGap(t *testing.T) {
	w, h := plain(t)
	site := httptest.NewServer(h)
	defer site.Close()
	ks, last := w.root.state.KeyspaceByName("t").GetId(), ""
	follow(t, site.URL+"/v1/keyspaces/t/watch", "", func(e event) bool {
		if e.kind != "snapshot" || !strings.Contains(e.data, `"id":`) || !strings.HasSuffix(e.id, "@"+clusterid.String(clusterID)) {
			t.Errorf("first event: %+v", e)
		}
		last = e.id
		return true
	})
	w.must(t, publish(1, ks, "", "m", 2, "m1"))
	w.must(t, publish(2, ks, "m", "", 2, "m2"))
	seen := ""
	follow(t, site.URL+"/v1/watch?keyspace=t", last, func(e event) bool {
		if e.kind == "snapshot" || e.kind == "problem" {
			t.Errorf("resumed with %+v", e)
		}
		seen += e.data
		return strings.Contains(seen, `"1"`) && strings.Contains(seen, `"2"`) && strings.Count(seen, `"region":`) >= 2
	})
}

// TestRESTWatchWaitsForTheCluster: a coordinator that does not know yet which cluster is served
// begins no watch, whose events would have ids that no coordinator takes.
func TestRESTWatchWaitsForTheCluster(t *testing.T) {
	w, _ := plain(t)
	var id atomic.Uint64
	h := w.rest(t, by(principal.Principal{}), func(c *rest.Config) { c.Cluster = id.Load })
	if a := over(t, h, jsonRequest("GET", "/v1/keyspaces/t/watch", "")); a.Code != http.StatusServiceUnavailable || a.reason() != "root_unavailable" || a.Header().Get("Retry-After") == "" {
		t.Errorf("without a cluster: %d %v %s", a.Code, a.Header(), a.Body)
	}
	id.Store(clusterID)
	site := httptest.NewServer(h)
	defer site.Close()
	last := ""
	follow(t, site.URL+"/v1/keyspaces/t/watch", "", func(e event) bool { last = e.id; return true })
	follow(t, site.URL+"/v1/keyspaces/t/watch", last, func(e event) bool {
		if e.kind == "problem" {
			t.Errorf("resumed with %+v", e)
		}
		return true
	})
}

// TestRESTPartsHaveNoPosition: a batch that was not told to its end is told again.
func TestRESTPartsHaveNoPosition(t *testing.T) {
	w, h := plain(t)
	ks := w.root.state.KeyspaceByName("t").GetId()
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 2, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}}}})
	for i := range 100 {
		start := fmt.Sprintf("n%03d%s", i, strings.Repeat("x", 4000))
		w.must(t, publish(uint64(i+10), ks, start, start+"y", 2, "m2"))
	}
	site := httptest.NewServer(h)
	defer site.Close()
	parts := 0
	follow(t, site.URL+"/v1/keyspaces/t/watch", "", func(e event) bool {
		partial := strings.Contains(strings.ReplaceAll(e.data, " ", ""), `"partial":true`)
		if e.kind != "snapshot" || partial == (e.id != "") {
			t.Fatalf("%s with id %q, part of more: %t", e.kind, e.id, partial)
		}
		parts++
		return !partial
	})
	if parts < 2 {
		t.Errorf("the snapshot came in %d parts", parts)
	}
}

// TestRESTWatchEndsWithItsRight: who may not call any more hears no more.
func TestRESTWatchEndsWithItsRight(t *testing.T) {
	w, _ := plain(t)
	ended := make(chan struct{})
	h := w.rest(t, func(*http.Request) (principal.Principal, error) {
		select {
		case <-ended:
			return principal.Principal{}, errors.New("token ended")
		default:
			return principal.Principal{}, nil
		}
	})
	site := httptest.NewServer(h)
	defer site.Close()
	follow(t, site.URL+"/v1/watch", "", func(e event) bool {
		if e.kind == "snapshot" {
			close(ended)
		}
		return e.kind == "problem" && strings.Contains(e.data, `"status":401`)
	})
}

// stuck is a writer whose reader takes nothing behind so many bytes.
type stuck struct {
	http.ResponseWriter
	room     int
	deadline time.Time
}

func (s *stuck) SetReadDeadline(time.Time) error    { return nil }
func (s *stuck) SetWriteDeadline(d time.Time) error { s.deadline = d; return nil }
func (s *stuck) FlushError() error                  { return nil }
func (s *stuck) Write(b []byte) (int, error) {
	if s.room -= len(b); s.room < 0 {
		time.Sleep(time.Until(s.deadline))
		return 0, context.DeadlineExceeded
	}
	return s.ResponseWriter.Write(b)
}

// TestRESTSlowReadersAreCut: one that takes nothing is cut within seconds, and holds nothing then.
func TestRESTSlowReadersAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, h := plain(t)
		begun := time.Now()
		h.ServeHTTP(&stuck{ResponseWriter: httptest.NewRecorder(), room: 600}, jsonRequest("GET", "/v1/watch", ""))
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("cut after %v", took)
		}
		w.end(t)
	})
}

// BenchmarkRESTLookup is a lookup as JSON, without the network; BenchmarkGetRegionByKey
// beside it must not change by what REST does.
func BenchmarkRESTLookup(b *testing.B) {
	_, h := plain(b)
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, jsonRequest("GET", "/v1/keyspaces/t/keys/a", "")); w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}
