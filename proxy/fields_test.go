package proxy_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/router"
)

// odd are headers that application servers may read as those of the proxy, and those themselves.
var odd = []string{"Nokv_Epoch", "nokv_region", "Nokv.Keyspace", "Nokv-Epoch", "Nokv-Member", "Nokv-Anything", "Nokv_pin", "X_Forwarded_For", "X-Forwarded_Host", "X_Real_Ip"}

// Neither a caller nor a member says what only the control plane and the proxy say, in headers, in trailers, or before the
// answer. The pin passes.
func TestNobodyElseSpeaksForTheControlPlane(t *testing.T) {
	seen := make(chan *http.Request, 1)
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r
		h := rw.Header()
		for _, name := range odd[:7] {
			h[name] = []string{"forged"}
		}
		rw.WriteHeader(http.StatusEarlyHints)
		h.Set("Trailer", "Nokv_region, Own")
		h.Set(proxy.HeaderPin, "a pin")
		_, _ = io.WriteString(rw, "x")
		_ = http.NewResponseController(rw).Flush()
		h["Nokv_region"], h["Own"], h[http.TrailerPrefix+"Nokv-Region"] = []string{"forged"}, []string{"its own"}, []string{"forged"}
	}))
	for _, trust := range []bool{false, true} {
		front := serve(t, w.proxy(proxy.Config{TrustForwarded: trust}).Lookup())
		lines := ""
		for _, name := range odd {
			lines += name + ": forged\r\n"
		}
		head := "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nNokv-Pin: p\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
		got := rawly(t, front.Listener.Addr().String(), head+lines+"Trailer: Own, "+strings.Join(odd, ", ")+", X-Forwarded-For\r\n\r\n1\r\nx\r\n0\r\nOwn: its own\r\nX-Forwarded-For: forged\r\n"+lines+"\r\n", false)
		if strings.Contains(got, "forged") || !strings.Contains(got, "103 Early Hints") || !strings.Contains(got, "Nokv-Pin: a pin\r\n") || !strings.Contains(got, "\r\nOwn: its own\r\n") {
			t.Errorf("the caller is told %q", got)
		}
		r := <-seen
		for name, values := range r.Header {
			if slices.Contains(values, "forged") {
				t.Errorf("the member is told %s: %q", name, values)
			}
		}
		if r.Header.Get(proxy.HeaderPin) != "p" || r.Header.Get(router.HeaderEpoch) != "1.1" || r.Header.Get("X-Forwarded-For") != "127.0.0.1" {
			t.Errorf("the member is told %v", r.Header)
		}
		if names := slices.Collect(maps.Keys(r.Trailer)); len(names) != 1 || r.Trailer.Get("Own") != "its own" {
			t.Errorf("the member gets the trailers %v", r.Trailer)
		}
	}
}

// The query that the member gets is the one that came, also where this process would read it in another way.
func TestQueriesPassAsTheyCame(t *testing.T) {
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", fmt.Sprint(len(r.RequestURI)))
		_, _ = io.WriteString(rw, r.RequestURI)
	}))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	for _, query := range []string{"?", "?a;b", "?p=50%", "?x=%zz&y=%7E", "?b=2&a=1&b=1", "?a=1" + strings.Repeat("&a", 10_000)} {
		got := rawly(t, front.Listener.Addr().String(), "GET /x"+query+" HTTP/1.1\r\nHost: h\r\nK: k\r\nConnection: close\r\n\r\n", false)
		if _, body, _ := strings.Cut(got, "\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 ") || body != "/x"+query {
			t.Errorf("%.40s arrives as %.200q", query, got)
		}
	}
}

// Trailers pass with all of their values, to the member and back, whichever protocol callers speak.
func TestTrailersPassBothWays(t *testing.T) {
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Trailer", "Sum")
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s", body, r.Trailer.Values("Sum"))
		rw.Header()["Sum"] = []string{"c", "d"}
	}))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	for _, two := range []bool{false, true} {
		by := &http.Transport{Protocols: new(http.Protocols)}
		by.Protocols.SetHTTP1(!two)
		by.Protocols.SetUnencryptedHTTP2(two)
		defer by.CloseIdleConnections()
		for _, row := range []struct {
			method, body string
			length       int64
		}{{"POST", "x", -1}, {"PUT", "", -1}, {"GET", "", -1}, {"POST", "whole", 5}, {"POST", strings.Repeat("long", 1<<16), -1}} {
			if row.length >= 0 && !two {
				continue // trailers come behind chunks only
			}
			req, err := http.NewRequestWithContext(t.Context(), row.method, front.URL, struct{ io.Reader }{strings.NewReader(row.body)})
			must(t, err)
			req.ContentLength, req.Trailer = row.length, http.Header{"Sum": {"a", "b"}}
			req.Header.Set("K", "k")
			if row.length < 0 {
				req.TransferEncoding = []string{"chunked"}
			}
			resp, err := by.RoundTrip(req)
			must(t, err)
			got, err := io.ReadAll(resp.Body)
			must(t, err)
			must(t, resp.Body.Close())
			if string(got) != row.body+" [a b]" || fmt.Sprint(resp.Trailer["Sum"]) != "[c d]" {
				t.Errorf("%s of %d bytes by HTTP/%d: the member got %.40q ... %.40q, and the caller %v", row.method, len(row.body), resp.ProtoMajor, got, got[max(0, len(got)-40):], resp.Trailer)
			}
		}
	}
}

// The cluster that a caller means, which a store asks for, and why it asks, are the caller's own words.
func TestWhatCallersSayThemselvesPasses(t *testing.T) {
	seen := make(chan http.Header, 1)
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { seen <- r.Header.Clone() }))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	rawly(t, front.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nNokv-Cluster: 0000000000000007\r\nNokv-Why: a reason\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", false)
	if h := <-seen; h.Get("Nokv-Cluster") == "" {
		t.Errorf("the member is not told which cluster the call is for: %v", h)
	}
}

// A request whose address has a # is refused: this proxy and a member would read different keys in it.
func TestAnAddressWithAFragmentIsRefused(t *testing.T) {
	asked := make(chan struct{}, 1)
	w := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	if got := rawly(t, front.Listener.Addr().String(), "GET /q?key=g1#f HTTP/1.1\r\nHost: h\r\nK: k\r\nConnection: close\r\n\r\n", false); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("answered %.200q", got)
	}
	select {
	case <-asked:
		t.Error("the member is asked")
	default:
	}
}
