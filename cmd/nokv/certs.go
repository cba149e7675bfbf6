package main

import (
	"net"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// certsFlag declares --certs.
func (f *flags) certsFlag() *string {
	return f.String("certs", "", "`folder` with tls.crt, tls.key and ca.crt: who this process is, and whom it believes (default: NOKV_CERTS; none: plain connections)")
}

// certificates opens the folder that --certs or NOKV_CERTS names; nil: neither does.
func (e *env) certificates(flagValue string, logger hclog.Logger) (*mtls.Source, error) {
	dir := flagValue
	if dir == "" {
		dir = e.variable("NOKV_CERTS")
	}
	if dir == "" {
		return nil, nil
	}
	return mtls.Open(dir, mtls.Options{Logger: logger})
}

// listening is an address that a server takes connections at or tells callers, and
// the flag that says so.
type listening struct{ flag, addr string }

// secure opens the certificates of a server, which must be its own. Without any it
// listens on loopback, unless it was told that it may be insecure.
func (s *serverFlags) secure(role principal.Role, name string, logger hclog.Logger, at ...listening) (certs *mtls.Source, insecure bool, err error) {
	if certs, err = s.flags.env.certificates(*s.certs, logger.Named("certs")); err != nil {
		return nil, false, err
	}
	if certs != nil {
		if *s.insecure {
			return nil, false, usagef("--insecure means without certificates, and %s has some: leave out --insecure, or --certs and NOKV_CERTS", certs.Dir())
		}
		if own := certs.Principal(); own.Role != role || own.Name != name {
			return nil, false, usagef("%s has the certificate of %s, and this process is %s/%s: give it its own (nokv cert issue --role %[3]s --name %[4]s)",
				certs.Dir(), own, role, name)
		}
		return certs, false, nil
	}
	var open []string
	for _, a := range at {
		if a.addr != "" && !loopback(a.addr) {
			open = append(open, a.flag+" "+a.addr)
		}
	}
	if len(open) == 0 {
		return nil, false, nil
	}
	if !*s.insecure {
		return nil, false, usagef("%s can be reached from other machines, and this process has no certificates: give it some with --certs DIR (nokv cert --help), or let anybody in with --insecure",
			strings.Join(open, ", "))
	}
	logger.Warn("anybody who reaches this process can do everything: it has no certificates and was started with --insecure", "addrs", strings.Join(open, ", "))
	return nil, true, nil
}

// loopback says whether only this machine reaches an address.
func loopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
