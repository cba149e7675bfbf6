package debugvars

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// byName refuses requests that name a host which is not this machine's. A page of somebody else's
// can have its own name lead to loopback, and would read here what is for this machine; it cannot
// choose the name that the browser sends. Health is for everybody.
func byName(hosts []string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || named(r.Host, hosts) {
			h.ServeHTTP(w, r)
			return
		}
		refuse(w, fmt.Sprintf("the request is for the host %.128q, and this port is for this machine", r.Host),
			"ask by an address, such as http://127.0.0.1:PORT, or by localhost; a proxy in front has to send one of these as Host")
	})
}

// refuse answers that who asks may not.
func refuse(w http.ResponseWriter, detail, wayOut string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusForbidden)
	why := reason.Name(rootv1.Reason_REASON_PERMISSION_DENIED)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "urn:nokv:problem:" + why, "title": "permission denied", "status": http.StatusForbidden, "reason": why, "detail": detail, "way_out": wayOut,
	})
}

// foreign says whether a browser asks on behalf of a page of somebody else's, and which, as far as it
// tells: by Sec-Fetch-Site, or, where a browser does not send that, by another host in Origin or Referer.
func foreign(r *http.Request) (page string, is bool) {
	page = cmp.Or(r.Header.Get("Origin"), r.Header.Get("Referer"))
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "same-origin", "none": // of its own, or typed
		return "", false
	case "":
		from, err := url.Parse(page)
		return page, page != "" && (err != nil || from.Host != r.Host)
	default:
		return cmp.Or(page, site), true
	}
}

// named says whether a Host header is an address, a name of loopback, one of hosts, or not there.
func named(host string, hosts []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	address, _, _ := strings.Cut(host, "%") // and its zone
	return host == "" || net.ParseIP(address) != nil || host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// onLoopback says whether only this machine reaches a listener.
func onLoopback(lis net.Listener) bool {
	at, ok := lis.Addr().(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}
