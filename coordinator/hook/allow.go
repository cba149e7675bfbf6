package hook

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Allow is which addresses may be asked: whoever may change a keyspace chooses the address of its hook, and
// those who run the cluster which ones it can choose. The zero value allows none.
type Allow struct{ rules []rule }

// rule is a name, or addresses.
type rule struct {
	name string // in small letters; "*.DOMAIN" are all names that end so
	ips  netip.Prefix
	port string // empty: all
}

// ParseAllow reads rules, each one HOST, *.DOMAIN, IP or CIDR, with a :PORT or for all ports. Loopback, link-local
// and other addresses that no machine has of its own are allowed only by a rule of such addresses.
func ParseAllow(texts ...string) (a Allow, err error) {
	for _, text := range texts {
		r := rule{name: text}
		if host, port, err := net.SplitHostPort(text); err == nil {
			r.name, r.port = host, port
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				return Allow{}, fmt.Errorf("%.128q: %.16q is no port", text, port)
			}
		}
		r.name = canonical(strings.Trim(r.name, "[]"))
		if ip, err := netip.ParseAddr(r.name); err == nil {
			r.ips = netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen())
		} else if ips, err := netip.ParsePrefix(r.name); err == nil {
			r.ips = ips.Masked()
		} else if name := strings.TrimPrefix(r.name, "*."); name == "" || strings.ContainsFunc(name, func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c))
		}) {
			return Allow{}, fmt.Errorf("%.128q: want a name, *.DOMAIN, an IP address or a range of them such as 10.0.0.0/8, with a :PORT or without", text)
		}
		a.rules = append(a.rules, r)
	}
	return a, nil
}

// canonical is a host as rules are compared with it.
func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// url says whether the address of a URL is allowed as it is written. What is no HTTP is not asked anyway.
func (a Allow) url(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil
	}
	host, port := canonical(u.Hostname()), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	ip, err := netip.ParseAddr(host)
	for _, r := range a.rules {
		domain, wild := strings.CutPrefix(r.name, "*")
		switch {
		case r.port != "" && r.port != port:
		case err == nil && r.has(ip), err != nil && (r.name == host || wild && strings.HasSuffix(host, domain)):
			return nil
		}
	}
	return notAllowed(net.JoinHostPort(host, port))
}

// resolved says whether what a name led to is allowed: names lead where their owners want.
func (a Allow) resolved(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err == nil && !special(at.Addr()) || slices.ContainsFunc(a.rules, func(r rule) bool {
		return (r.port == "" || r.port == strconv.Itoa(int(at.Port()))) && r.has(at.Addr())
	}) {
		return nil
	}
	return notAllowed(address)
}

// has says whether a rule is for an address.
func (r *rule) has(ip netip.Addr) bool {
	return r.ips.IsValid() && r.ips.Contains(ip.Unmap().WithZone("")) && (!special(ip) || special(r.ips.Addr()) && r.ips.Bits() >= 8)
}

// special are addresses that mean another machine on each, or many.
func special(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast()
}

func notAllowed(address string) error {
	return &Error{NotAllowed, fmt.Errorf("the operators do not allow %.300s: start coordinators with --hook-allow", address)}
}

// Address is a URL without what may be a secret in it: user, password and query.
func Address(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}
