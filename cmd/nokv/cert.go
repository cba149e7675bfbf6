package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
)

func certCommand() *command {
	return &command{
		name: "cert", summary: "make, renew, show and revoke the certificates of a cluster",
		children: []*command{certInit(), certIssue(), certRenew(), certShow(), certRevoke()},
	}
}

// authorityDir declares -ca.
func (f *flags) authorityDir() *string {
	return f.String("ca", "ca", "`folder` of the authority: ca.crt and ca.key")
}

// validity declares -valid; def 0 has no default of its own.
func (f *flags) validity(def time.Duration, says string) *time.Duration {
	return f.life("valid", def, maxLife, "12h, 90d or 10y", "100 years", says)
}

// life declares how long something is valid, one minute to most, which is spelled in words.
func (f *flags) life(name string, def, most time.Duration, suchAs, mostWords, says string) *time.Duration {
	d := def
	f.Func(name, "how `long` it is valid, such as "+suchAs+" "+says, func(s string) error {
		v, ok := parseLife(s)
		if !ok || v > most {
			return fmt.Errorf("want a duration such as %s, of 1 minute to %s", suchAs, mostWords)
		}
		d = v
		return nil
	})
	return &d
}

const (
	oneDay  = 24 * time.Hour
	oneYear = 365 * oneDay
	// maxLife keeps ends within the four digits of a year in certificates, and
	// durations within what they can hold.
	maxLife = 100 * oneYear
)

func parseLife(s string) (time.Duration, bool) {
	var d time.Duration
	switch unit := strings.TrimLeft(s, "0123456789"); unit {
	case "d", "y":
		n, err := strconv.ParseUint(strings.TrimSuffix(s, unit), 10, 16)
		if err != nil {
			return 0, false
		}
		if d = time.Duration(n) * oneDay; unit == "y" {
			d = time.Duration(min(n, 200)) * oneYear
		}
	default:
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			return 0, false
		}
	}
	return d, d >= time.Minute
}

func certInit() *command {
	return &command{
		name: "init", args: "--cluster NAME [flags]", summary: "make the authority that signs a cluster's certificates",
		long: `
The authority is a folder with ca.crt, which everybody of the cluster gets, and
ca.key, which stays here: whoever has it can be anybody. --again makes the next
authority; ca.crt has both then. When that ca.crt is everywhere, renew every
certificate, and then leave the old one away with --only.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			cluster := f.String("cluster", "", "`name` of the cluster, in every certificate of it")
			dir := f.authorityDir()
			life := f.validity(ca.DefaultAuthorityLife, "(default 10y)")
			again := f.Bool("again", false, "make the next authority of the cluster, and believe the one before as well")
			only := f.Bool("only", false, "believe the newest authority alone")
			force := f.Bool("force", false, "replace an authority, so that its certificates are worth nothing")
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				switch {
				case len(args) > 0:
					return usagef("no arguments, got %q", args)
				case *again && *only || *again && *force || *only && *force:
					return usagef("-again, -only and -force exclude each other")
				case (*again || *only) && *cluster != "":
					return usagef("-cluster is that of the authority in %s", *dir)
				case !*again && !*only && *cluster == "":
					return usagef("-cluster NAME is required")
				case *only && f.given("valid"):
					return usagef("-only makes no certificate, so that -valid says nothing")
				}
				a, err := nextAuthority(*dir, *cluster, *again, *only, *force, *life)
				if err != nil {
					return err
				}
				if err := a.Save(*dir); err != nil {
					return err
				}
				return showCerts(e, filepath.Join(*dir, mtls.CAFile))
			}
		},
	}
}

func nextAuthority(dir, cluster string, again, only, force bool, life time.Duration) (*ca.Authority, error) {
	if !again && !only {
		if err := principal.CheckName(cluster); err != nil {
			return nil, usagef("cluster %v", err)
		}
		if !force {
			if err := absent("nokv cert init --again makes the next one, --force replaces it for good", dir, ca.KeyFile, mtls.CAFile); err != nil {
				return nil, err
			}
		}
		return ca.New(cluster, time.Now(), life)
	}
	a, err := ca.Load(dir)
	if err != nil {
		return nil, err
	}
	if only {
		return a.Alone(), nil
	}
	return a.Next(time.Now(), life)
}

// absent refuses to write over any of the files.
func absent(wayOut, dir string, names ...string) error {
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s exists: %s", filepath.Join(dir, name), wayOut)
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func certIssue() *command {
	return &command{
		name: "issue", args: "--role ROLE --name NAME [flags]", summary: "make a certificate, with its key, in a folder",
		long: `
The folder has tls.crt, tls.key and ca.crt: it is what --certs and NOKV_CERTS
take. The name of a root peer is its node id, that of a coordinator its
coordinator id.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			role := f.String("role", "", "`role`: root, coordinator, member, client, proxy or operator")
			name := f.String("name", "", "`name` of the process or person")
			dir := f.authorityDir()
			out := f.String("out", "", "`folder` to write (default certs/ROLE-NAME)")
			var hosts []string
			f.Func("host", "`name or address` by which curl, browsers and the like reach it, besides localhost; repeatable", func(s string) error {
				hosts = append(hosts, s)
				return nil
			})
			life := f.validity(ca.DefaultLife, "(default 90d), and not longer than the authority")
			force := f.Bool("force", false, "replace what is in the folder")
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				r, err := request(*role, *name, hosts, *life)
				if err != nil {
					return err
				}
				if *out == "" {
					*out = filepath.Join("certs", *role+"-"+*name)
				}
				if !*force {
					if err := absent("nokv cert renew "+*out+" replaces it by one of the same name, --force by any", *out, mtls.KeyFile, mtls.CertFile); err != nil {
						return err
					}
				}
				a, err := ca.Load(*dir)
				if err != nil {
					return err
				}
				p, err := a.Issue(r, time.Now())
				if err != nil {
					return err
				}
				if err := p.Save(*out); err != nil {
					return err
				}
				return showCerts(e, filepath.Join(*out, mtls.CertFile))
			}
		},
	}
}

// request checks what does not depend on the authority.
func request(role, name string, hosts []string, life time.Duration) (ca.Request, error) {
	if role == "" || name == "" {
		return ca.Request{}, usagef("-role ROLE and -name NAME are required")
	}
	kind, err := principal.ParseRole(role)
	if err != nil {
		return ca.Request{}, usagef("%v", err)
	}
	if err := principal.CheckName(name); err != nil {
		return ca.Request{}, usagef("name %v", err)
	}
	if _, err := strconv.ParseUint(name, 10, 64); kind == principal.Root && (err != nil || name[0] == '0') {
		return ca.Request{}, usagef("name %q: that of a root peer is its node id, such as 1", name)
	}
	r := ca.Request{Role: kind, Name: name, Hosts: hosts, Life: life}
	if err := r.Check(); err != nil {
		return ca.Request{}, usagef("%v", err)
	}
	return r, nil
}

func certRenew() *command {
	return &command{
		name: "renew", args: "DIR [flags]", summary: "replace a certificate by a new one of the same name, with a new key",
		long: `
Processes that use the folder take the new certificate within a second of the
next connection, without a restart. ca.crt becomes that of the authority.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			dir := f.authorityDir()
			life := f.validity(0, "(default: as long as the one before)")
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("want one DIR, got %q", args)
				}
				a, err := ca.Load(*dir)
				if err != nil {
					return err
				}
				if _, err := a.Renew(args[0], time.Now(), *life); err != nil {
					return err
				}
				return showCerts(e, filepath.Join(args[0], mtls.CertFile))
			}
		},
	}
}

// certOutput is a certificate in JSON. The field names stay.
type certOutput struct {
	File string `json:"file"`
	// Principal is nokv://CLUSTER/ROLE/NAME; empty for an authority.
	Principal string   `json:"principal"`
	Authority bool     `json:"authority"`
	Hosts     []string `json:"hosts"`
	NotBefore string   `json:"not_before"`
	NotAfter  string   `json:"not_after"`
	// DaysLeft are whole days, rounded down: negative when it has ended.
	DaysLeft int    `json:"days_left"`
	Subject  string `json:"subject"`
	Issuer   string `json:"issuer"`
	// Serial is its number in hex, which nokv cert revoke takes.
	Serial string `json:"serial"`
	// Fingerprint is the SHA-256 in hex.
	Fingerprint string `json:"fingerprint"`
	// Warning is of a key that others can read; absent when there is nothing to say.
	Warning string `json:"warning,omitempty"`
}

// showCerts prints the certificates of files.
func showCerts(e *env, files ...string) error {
	out := []certOutput{}
	for _, name := range files {
		found, err := certsOf(name)
		if err != nil {
			return err
		}
		out = append(out, found...)
	}
	return e.print(out, func(w *tabwriter.Writer) {
		for i, o := range out {
			if i > 0 {
				row(w)
			}
			o.show(w)
		}
	})
}
