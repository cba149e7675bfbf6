package hook_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
)

// asked is what is asked about two regions.
func asked() *hook.Placement {
	slot := uint64(7)
	return &hook.Placement{
		Version: hook.Version, Keyspace: "games", KeyspaceID: 2,
		Regions: []hook.Region{
			{ID: 1<<63 + 1, StartKey: []byte("g1"), EndKey: []byte("g1\x00"), Load: 1.5, Reason: "first_touch"},
			{ID: 18, StartKey: []byte{}, EndKey: []byte{}, Slot: &slot, Load: 1, Reason: "member_failed"},
		},
		Candidates: []hook.Candidate{{ID: "m1", Labels: map[string]string{"zone": "a"}, Capacity: 2, Load: 3}, {ID: "m2", Capacity: 1}},
	}
}

// answering is a hook that always says the same.
func answering(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(serve)
	t.Cleanup(s.Close)
	return s.URL
}

func place(t *testing.T, url string, within time.Duration) (map[state.RegionID]state.MemberID, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return allowing(t, "127.0.0.1").Place(ctx, url, asked())
}

// What is sent is what the documents show: a reader of an older form goes on to understand it.
func TestP61HookIsToldWhatTheDocumentsShow(t *testing.T) {
	const want = `{"version":1,"keyspace":"games","keyspace_id":2,"regions":[` +
		`{"id":"9223372036854775809","start_key":"ZzE=","end_key":"ZzEA","load":1.5,"reason":"first_touch"},` +
		`{"id":"18","start_key":"","end_key":"","slot":7,"load":1,"reason":"member_failed"}],` +
		`"candidates":[{"id":"m1","labels":{"zone":"a"},"capacity":2,"load":3},{"id":"m2","capacity":1,"load":0}]}`
	url := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != want || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/place" {
			t.Errorf("%s %s: %s", r.Method, r.URL, body)
		}
		_, _ = io.WriteString(w, `{"owners":{"9223372036854775809":"m2","18":null,"99":"m1"},"because":[1,2]}`)
	})
	got, err := place(t, url+"/place", proctest.Patience)
	if err != nil || !maps.Equal(got, map[state.RegionID]state.MemberID{1<<63 + 1: "m2"}) {
		t.Errorf("it says %v, %v; want what was asked about, and nothing of what it has no opinion of", got, err)
	}
}

// A hook that answers nonsense, refuses, sends elsewhere, says too much or hangs has not
// answered, and the reason says which.
func TestP61HookThatAnswersNonsenseHasNotAnswered(t *testing.T) {
	elsewhere := answering(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") })
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	release := make(chan struct{})
	defer close(release)
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  hook.Why
	}{
		"nothing":     {says(``), hook.Malformed},
		"no json":     {says(`m1`), hook.Malformed},
		"no owners":   {says(`{}`), hook.Malformed},
		"null":        {says(`null`), hook.Malformed},
		"a list":      {says(`{"owners":["m1"]}`), hook.Malformed},
		"a number":    {says(`{"owners":{"18":1}}`), hook.Malformed},
		"a word":      {says(`{"owners":{"eighteen":"m1"}}`), hook.Malformed},
		"two answers": {says(`{"owners":{}}{"owners":{}}`), hook.Malformed},
		"half":        {says(`{"owners":{"18":"m1"`), hook.Malformed},
		"too much":    {says(`{"owners":{}}` + strings.Repeat(" ", hook.MaxAnswerBytes)), hook.TooLarge},
		"an error":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }, hook.Status},
		"moved": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		}, hook.Status},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, hook.Unreachable},
		"never":    {func(http.ResponseWriter, *http.Request) { <-release }, hook.Late},
		"never the end": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"ow`)
			w.(http.Flusher).Flush()
			<-release
		}, hook.Late},
	} {
		within := proctest.Patience
		if c.want == hook.Late {
			within = 100 * time.Millisecond
		}
		if got, err := place(t, answering(t, c.serve), within); err == nil || hook.WhyOf(err) != c.want || got != nil {
			t.Errorf("%s: it says %v, %v; want %s", name, got, err, c.want)
		}
	}
	if _, err := place(t, "http://"+proctest.Addrs(t, 1)[0]+"/place", proctest.Patience); hook.WhyOf(err) != hook.Unreachable {
		t.Errorf("nobody is there: %v", err)
	}
	if _, err := place(t, "file:///etc/passwd", proctest.Patience); hook.WhyOf(err) != hook.Unreachable {
		t.Errorf("a file: %v", err)
	}
	if hook.WhyOf(context.DeadlineExceeded) != hook.Late || hook.WhyOf(errors.New("x")) != hook.Unreachable {
		t.Error("errors of others have reasons, too")
	}
}

// What is too large to send is not sent.
func TestHookRequestIsBounded(t *testing.T) {
	url := answering(t, func(http.ResponseWriter, *http.Request) { t.Error("it is sent") })
	p := asked()
	p.Regions[0].StartKey = make([]byte, hook.MaxRequestBytes)
	if _, err := allowing(t, "127.0.0.1").Place(t.Context(), url, p); hook.WhyOf(err) != hook.TooLarge {
		t.Errorf("%v", err)
	}
}

// A wish is taken with any status of success, and says what the documents show.
func TestC33C36WishIsPosted(t *testing.T) {
	w := &hook.Wish{
		Version: hook.Version, ID: "2-down-9", Keyspace: "games", KeyspaceID: 2, Active: 3, Desired: 3, Reason: "load",
		Victim: "m4", VictimAddress: "10.0.0.4:7000", VictimIncarnation: 9, FullPermille: 120,
	}
	status := http.StatusNoContent
	url := answering(t, func(rw http.ResponseWriter, r *http.Request) {
		var got hook.Wish
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil || got != *w {
			t.Errorf("it is told %+v, %v", got, err)
		}
		rw.WriteHeader(status)
	})
	c := allowing(t, "127.0.0.1")
	if err := c.Scale(t.Context(), url, w); err != nil {
		t.Error(err)
	}
	status = http.StatusConflict
	if err := c.Scale(t.Context(), url, w); hook.WhyOf(err) != hook.Status {
		t.Errorf("a refusal is %v", err)
	}
}
