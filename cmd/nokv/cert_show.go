package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
)

func certShow() *command {
	return &command{
		name: "show", args: "DIR|FILE ... [flags]", summary: "show certificates, and whether a folder of them can be used",
		long: `
Of a folder, its own certificate and those that it believes. The exit status is
1 when a process could not use the folder now, with why.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				if len(args) == 0 {
					return usagef("want a DIR or FILE")
				}
				for i, arg := range args {
					if slices.Contains(args[:i], arg) {
						return usagef("%s stands twice", arg)
					}
				}
				files, folders, err := certFiles(args)
				if err != nil {
					return err
				}
				if err := showCerts(e, files...); err != nil {
					return err
				}
				for _, dir := range folders {
					if _, err := mtls.Open(dir, mtls.Options{}); err != nil {
						return err
					}
				}
				return nil
			}
		},
	}
}

// certFiles are the files of folders and files; folders those that a process may
// use.
func certFiles(args []string) (files, folders []string, err error) {
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, nil, err
		}
		if !info.IsDir() {
			files = append(files, arg)
			continue
		}
		some := false
		for _, name := range []string{mtls.CertFile, mtls.CAFile} {
			if _, err := os.Stat(filepath.Join(arg, name)); err == nil {
				files, some = append(files, filepath.Join(arg, name)), true
			}
		}
		if !some {
			return nil, nil, fmt.Errorf("%s has no %s and no %s: it is no folder of certificates", arg, mtls.CertFile, mtls.CAFile)
		}
		if _, err := os.Stat(filepath.Join(arg, ca.KeyFile)); err != nil {
			folders = append(folders, arg)
		}
	}
	return files, folders, nil
}

func certsOf(name string) ([]certOutput, error) {
	certs, err := mtls.ReadCertificates(name)
	if err != nil {
		return nil, err
	}
	out := make([]certOutput, len(certs))
	for i, c := range certs {
		out[i] = describe(name, c, time.Now())
	}
	if key := keyBeside[filepath.Base(name)]; key != "" {
		if err := mtls.Exposed(filepath.Join(filepath.Dir(name), key)); err != nil {
			out[0].Warning = err.Error()
		}
	}
	return out, nil
}

// keyBeside is where the key of a file's first certificate is.
var keyBeside = map[string]string{mtls.CertFile: mtls.KeyFile, mtls.CAFile: ca.KeyFile}

func describe(file string, c *x509.Certificate, now time.Time) certOutput {
	sum := sha256.Sum256(c.Raw)
	o := certOutput{
		File: file, Authority: c.IsCA, Hosts: ca.Hosts(c), Subject: c.Subject.String(), Issuer: c.Issuer.String(),
		NotBefore: c.NotBefore.UTC().Format(time.RFC3339), NotAfter: c.NotAfter.UTC().Format(time.RFC3339),
		DaysLeft: mtls.Days(c.NotAfter.Sub(now)), Serial: c.SerialNumber.Text(16), Fingerprint: hex.EncodeToString(sum[:]),
	}
	if who, err := principal.Of(c); err == nil {
		o.Principal = who.URI().String()
	}
	return o
}

func (o certOutput) show(w *tabwriter.Writer) {
	row(w, "file", o.File)
	switch {
	case o.Authority:
		row(w, "authority", o.Subject)
	case o.Principal == "":
		row(w, "principal", "none: "+o.Subject)
	default:
		row(w, "principal", o.Principal)
	}
	if len(o.Hosts) > 0 {
		row(w, "hosts", strings.Join(o.Hosts, " "))
	}
	row(w, "valid from", o.NotBefore)
	row(w, "valid until", fmt.Sprintf("%s (%d days)", o.NotAfter, o.DaysLeft))
	if !o.Authority {
		row(w, "issuer", o.Issuer)
	}
	row(w, "serial", o.Serial)
	row(w, "SHA-256", o.Fingerprint)
	if o.Warning != "" {
		row(w, "warning", o.Warning)
	}
}
