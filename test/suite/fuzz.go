package main

import (
	"context"
	"io"
	"time"
)

// fuzzFor is how long the long form searches for inputs that break a fuzz target.
const fuzzFor = 5 * time.Minute

// fuzz searches at each fuzz target in turn. What it finds stands in the target's testdata, where
// every later run of the tests tries it.
func (r *result) fuzz(ctx context.Context, w io.Writer, packages []pkg) {
	for _, p := range packages {
		for _, name := range p.fuzz {
			c := check{
				name:  "fuzz " + short(p.path) + " " + name,
				words: []string{"test", "-run", "^$", "-fuzz", "^" + name + "$", "-fuzztime", fuzzFor.String(), p.path}, quiet: true,
			}
			r.checks = append(r.checks, runChecks(ctx, w, []check{c})...)
		}
	}
}
