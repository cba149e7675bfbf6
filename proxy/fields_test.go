package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nokv/nokv/proxy"
)

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
