package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
)

// nothing is an application that does nothing.
type nothing struct{}

func (nothing) Acquire(context.Context, member.Region) error           { return nil }
func (nothing) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }

// ask asks a port in memory.
func ask(port http.Handler, token, method, path, body string) (int, string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	port.ServeHTTP(w, r)
	out, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(out)
}

// Behind a question nothing was run, also when the right ended while it was asked.
func TestP80SidecarSaysThatAQuestionRanNothing(t *testing.T) {
	for _, err := range []error{&member.NotOwned{Region: 1, Ran: true}, &member.Unconfirmed{Region: 1, Ran: true}} {
		if v := refusalJSON(err); v.May || v.Status != 421 || v.Headers["Nokv-Refused"] == "outcome_unknown" {
			t.Errorf("%v: %+v", err, v)
		}
	}
}

// What a stranger, a bad request and a process in its right are told.
func TestP80SidecarSaysWhatMayBeServed(t *testing.T) {
	for _, fence := range []string{"games", "actors"} {
		t.Run(fence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { theWords(t, fence) })
		})
	}
}

func theWords(t *testing.T, preset string) {
	c := nokvtest.Start(t, nokvtest.Keyspace("games", preset))
	m1, m2 := c.Member(t, "m1", nothing{}), c.Member(t, "m2", nothing{})
	_ = m2
	key := []byte("g1")
	c.Assign(t, "games", key, "m1")
	route := c.AwaitOwner(t, "games", key, "m1")
	port := newControl(m1.Member, "secret", nil)
	for _, token := range []string{"", "wrong", "secret "} {
		if code, body := ask(port, token, "GET", "/nokv/status", ""); code != 401 || !strings.Contains(body, "NOKV_SIDECAR_TOKEN") {
			t.Errorf("with the token %q: %d %s", token, code, body)
		}
	}
	may := func(query string) (v verdict) {
		t.Helper()
		code, body := ask(port, "secret", "GET", "/nokv/may?"+query, "")
		if err := json.Unmarshal([]byte(body), &v); code != 200 || err != nil {
			t.Fatalf("%s: %d %s", query, code, body)
		}
		return v
	}
	for _, query := range []string{
		fmt.Sprintf("region=%d&epoch=%s", route.Region.ID, route.Region.Epoch), fmt.Sprintf("region=%d&keyspace=games&key=g1&epoch=%s&wait_millis=0", route.Region.ID, route.Region.Epoch),
		"keyspace=games&key=g1", "keyspace=games&key_base64=ZzE%3D",
	} {
		v := may(query)
		if !v.May || v.Epoch != route.Region.Epoch.String() || v.Keyspace != "games" || v.Region != fmt.Sprint(uint64(route.Region.ID)) {
			t.Errorf("%s: %+v", query, v)
		}
		if byTime := v.LeftMillis != nil; byTime != (preset == "actors") {
			t.Errorf("%s: it ends by time: %t", query, byTime)
		} else if byTime && (*v.LeftMillis <= 0 || *v.LeftMillis > 120_000) {
			t.Errorf("%s: %d ms are left", query, *v.LeftMillis)
		}
	}
	if v := may(fmt.Sprintf("region=%d&epoch=%d.%d", route.Region.ID, route.Region.Epoch.Version, route.Region.Epoch.ConfVersion-1)); v.May || v.Status != 421 || v.Headers["Nokv-Refused"] != "epoch_stale" ||
		v.Headers["Nokv-Epoch"] != route.Region.Epoch.String() {
		t.Errorf("of an old epoch: %+v", v)
	}
	begin := time.Now()
	if v := may(fmt.Sprintf("region=%d&epoch=9.9&wait_millis=300", route.Region.ID)); v.May || v.Status != 503 || v.Headers["Nokv-Refused"] != "busy" || !strings.Contains(v.Detail, "wait_millis") || time.Since(begin) != 300*time.Millisecond {
		t.Errorf("of an epoch that does not come: %+v after %v", v, time.Since(begin))
	}
	for query, says := range map[string]string{
		"": "want region", "region=x": "Nokv-Region", "region=1&epoch=1": "VERSION.CONF_VERSION", "region=1&wait_millis=-1": "wait_millis", "region=1&apoch=1.1": "apoch",
		"keyspace=games": "want region", "keyspace=games&key_base64=%25": "key_base64", "region=-1": "Nokv-Region", "region=18446744073709551616": "Nokv-Region",
	} {
		if code, body := ask(port, "secret", "GET", "/nokv/may?"+query, ""); code != 400 || !strings.Contains(body, says) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	region := fmt.Sprint(uint64(route.Region.ID))
	for body, want := range map[string]string{
		`{"load": 3, "capacity": 10, "regions": {"` + region + `": {"load": 2, "keys": 7, "saturated": true}, "9999999": {}}}`: `{"unknown":["9999999"]}`,
		`{}`: `{"unknown":[]}`, `{"load": -1}`: "0 or more", `{"load": 1e999}`: "not the JSON", `{"regions": {"x": {}}}`: "the number of a region",
		`{"regions": {"` + region + `": {"load": -2}}}`: "0 or more", `{"lo`: "not the JSON", strings.Repeat(" ", maxReport+1): "too large",
	} {
		if _, got := ask(port, "secret", "POST", "/nokv/load", body); !strings.Contains(got, want) {
			t.Errorf("%.80s: %s, not %s", body, got, want)
		}
	}
	for path, want := range map[string]int{"/nokv/next": 409, "/nokv/nothing": 404, "/": 404} {
		if code, body := ask(port, "secret", "GET", path, ""); code != want || !strings.Contains(body, "error") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := ask(port, "secret", "GET", "/nokv/status", ""); code != 200 || !strings.Contains(body, `"holding":1`) {
		t.Errorf("its status: %d %s", code, body)
	}
}
