package proxy_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/nokv/nokv/pin"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

func pinKey(t testing.TB) pin.Key {
	t.Helper()
	k, err := pin.Derive(bytes.Repeat([]byte{1}, 32), 7, 1, 1)
	must(t, err)
	return k
}

// PinKeys implements the service.
func (w *world) PinKeys(context.Context, *coordinatorv1.PinKeysRequest) (*coordinatorv1.PinKeysResponse, error) {
	k := pinKey(w.t)
	return &coordinatorv1.PinKeysResponse{ClusterId: 7, KeyspaceId: 1, Keys: []*coordinatorv1.KeyspacePinKey{{Id: k.ID, Secret: k.Secret[:]}}}, nil
}

// ListMembers implements the service.
func (w *world) ListMembers(_ context.Context, req *coordinatorv1.ListMembersRequest) (*coordinatorv1.ListMembersResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &coordinatorv1.ListMembersResponse{Disclosure: w.says()}
	if w.wanted != nil && req.GetMemberId() == "m0" {
		close(w.wanted)
		w.wanted = nil
	}
	if m := w.states[req.GetMemberId()]; m != nil {
		r.Members = append(r.Members, &coordinatorv1.MemberStatus{Member: m})
	}
	return r, nil
}

// P-79: a pin in a header or a cookie leads to its process, also behind a move of the region;
// an unknown one, or one of a dead process, is 404.
func TestP79P83LookupLockAndProxy(t *testing.T) {
	at := func(name string) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/ended" {
				router.RefusalOf(pin.Refuse(pin.Ended, "it has ended")).WriteHTTP(rw)
				return
			}
			_, _ = rw.Write([]byte(name + " " + r.Header.Get(proxy.HeaderPin)))
		})
	}
	w := start(t, at("zero"), at("one"))
	ring := pin.NewRing(7, 1)
	must(t, ring.Learn(time.Now(), pinKey(t)))
	seal := func(id rooted.MemberID, incarnation uint64) string {
		text, err := ring.Seal(&pin.Pin{Region: 1, Member: id, Incarnation: incarnation, Expires: time.Now().Add(time.Minute)})
		must(t, err)
		return text
	}
	front := serve(t, w.proxy(proxy.Config{Pins: proxy.NewPins(w.router, "")}).LookupLockAndProxy())
	n := 0
	ask := func(path string, status int, tag proxy.Tag, reason, body string, set func(*http.Request)) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+path, nil)
		must(t, err)
		set(req)
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		must(t, err)
		n++
		if r := w.last(n); resp.StatusCode != status || r.Tag != tag || resp.Header.Get(proxy.HeaderReason) != reason || body != "" && string(got) != body {
			t.Errorf("%s: %d %s %q %s, want %d %s %q %s", path, resp.StatusCode, r.Tag, resp.Header.Get(proxy.HeaderReason), got, status, tag, reason, body)
		}
	}
	header := func(text string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add(proxy.HeaderPin, text) }
	}
	one := seal("m1", 1)
	ask("/", 200, proxy.Hit, "", "one "+one, header(one))
	ask("/", 200, proxy.Hit, "", "one ", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: proxy.CookiePin, Value: one}) })
	w.move(1)
	w.move(0)
	ask("/", 200, proxy.Hit, "", "one "+one, header(one))
	ask("/ended", 404, proxy.NotFound, "pin_lost", "", header(one))

	ask("/", 404, proxy.NotFound, "not_found", "", func(*http.Request) {})
	ask("/", 404, proxy.NotFound, "not_found", "", header("nokvpin_x"))
	ask("/", 404, proxy.NotFound, "not_found", "", header(one[:len(one)-4]+"AAAA"))
	ask("/", 400, proxy.BadRequest, "invalid_request", "", func(r *http.Request) { header(one)(r); header(one)(r) })
	ask("/", 404, proxy.NotFound, "pin_lost", "", header(seal("m1", 2))) // strongly asked: there is no such incarnation
	w.at(1, rootv1.MemberState_MEMBER_STATE_FAILED)
	w.heard()
	ask("/", 404, proxy.NotFound, "pin_lost", "", header(one))

	// A process that cannot be reached: it is lost as soon as that is known.
	zero := seal("m0", 1)
	w.members[0].Close()
	known, wanted := make(chan struct{}), make(chan struct{})
	w.wanted = wanted
	go func() {
		defer close(known)
		<-wanted // it is asked for: the request waits
		w.at(0, rootv1.MemberState_MEMBER_STATE_FAILED)
	}()
	ask("/", 404, proxy.NotFound, "pin_lost", "", header(zero))
	<-known
}
