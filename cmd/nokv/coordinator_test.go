package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Whoever reads the log of a coordinator whose root came back as another cluster
// reads that, and not only that nobody answered at first.
func TestWhyTheRootIsOutOfReach(t *testing.T) {
	silent := reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no root leader answered")
	another := reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "it was restored")
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		answers := []error{nil, silent, silent, another, silent, another, nil, nil, another, errors.New("something else"), nil}
		ctx, end := context.WithCancel(t.Context())
		reportRoot(ctx, func(context.Context) error {
			if len(answers) == 1 {
				end()
			}
			err := answers[0]
			answers = answers[1:]
			return err
		}, hclog.New(&hclog.LoggerOptions{Output: &out, TimeFn: time.Now}))
		var words []string
		for line := range strings.Lines(out.String()) {
			for _, word := range []string{"no root leader answered", "it was restored", "something else", "root is back"} {
				if strings.Contains(line, word) {
					words = append(words, word)
				}
			}
		}
		const want = "no root leader answered, it was restored, root is back, it was restored, something else"
		if got := strings.Join(words, ", "); got != want {
			t.Errorf("the log says %q, want %q:\n%s", got, want, &out)
		}
	})
}
