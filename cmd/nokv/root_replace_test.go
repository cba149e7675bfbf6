package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// said is what a root leader answers, and goes on to answer for a while.
type said struct {
	stage rootv1.ReplaceStage
	why   rootv1.Reason
	again uint64 // retry_after_millis
	lasts time.Duration
}

// replaceWith runs the command's loop against a script of answers, the last of
// which lasts for ever, in virtual time.
func replaceWith(t *testing.T, timeout time.Duration, script ...said) (stage rootv1.ReplaceStage, progress string, took time.Duration, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		var out bytes.Buffer
		p := &replacement{req: &rootv1.ReplacePeerRequest{Lost: 2, With: 4}, progress: &out}
		began := time.Now()
		next := began.Add(script[0].lasts)
		var resp *rootv1.ReplacePeerResponse
		resp, err = p.run(ctx, func(context.Context, *rootv1.ReplacePeerRequest) (*rootv1.ReplacePeerResponse, error) {
			for len(script) > 1 && !time.Now().Before(next) {
				script = script[1:]
				next = next.Add(script[0].lasts)
			}
			if s := script[0]; s.why != 0 {
				err := reason.New(s.why, "not now")
				err.Detail.RetryAfterMillis = s.again
				return nil, err
			}
			return &rootv1.ReplacePeerResponse{Stage: script[0].stage, Match: 10, Commit: 30}, nil
		})
		stage, progress, took = resp.GetStage(), out.String(), time.Since(began)
	})
	return stage, progress, took, err
}

const (
	catchingUp = rootv1.ReplaceStage_REPLACE_STAGE_CATCHING_UP
	settling   = rootv1.ReplaceStage_REPLACE_STAGE_SETTLING
	replaced   = rootv1.ReplaceStage_REPLACE_STAGE_DONE
	unhealthy  = rootv1.Reason_REASON_UNHEALTHY_MEMBER
)

func TestReplaceGoesOnUntilItIsDone(t *testing.T) {
	stage, progress, took, err := replaceWith(t, time.Minute,
		said{why: unhealthy, again: 200, lasts: 3 * time.Second},
		said{stage: catchingUp, lasts: 4 * time.Second},
		said{why: rootv1.Reason_REASON_NOT_LEADER, lasts: 4 * time.Second}, // an election
		said{stage: settling, lasts: time.Second},
		said{stage: replaced})
	if err != nil || stage != replaced || took < 12*time.Second || took > 13*time.Second {
		t.Fatalf("%v after %s: %v", stage, took, err)
	}
	for _, want := range []string{"unhealthy_member: not now\n", "root peer 4 catches up: it has 10 of 30 entries\n", "not_leader: not now\n"} {
		if !strings.Contains(progress, want) {
			t.Errorf("progress does not say %q:\n%s", want, progress)
		}
	}
	if lines := strings.Count(progress, "\n"); lines < 5 || lines > 7 {
		t.Errorf("%d lines of progress in %s:\n%s", lines, took, progress)
	}
	// What takes no time is not told of.
	if _, progress, took, err = replaceWith(t, time.Minute, said{stage: catchingUp, lasts: time.Second}, said{stage: replaced}); err != nil || progress != "" || took > 2*time.Second {
		t.Errorf("after %s: %v\n%s", took, err, progress)
	}
}

func TestReplaceGivesUpOnWhatDoesNotPass(t *testing.T) {
	for _, c := range []struct {
		what        string
		timeout     time.Duration
		script      []said
		least, most time.Duration
		words       string
		unavailable bool
	}{
		{"a final refusal", time.Minute, []said{{why: rootv1.Reason_REASON_ALREADY_EXISTS}}, 0, 0, "not now", false},
		{"one that does not pass", time.Minute, []said{{why: unhealthy, again: 200}}, mayPass, mayPass + time.Second, "unhealthy_member: not now", false},
		{"one that comes later", time.Minute, []said{{stage: catchingUp, lasts: 20 * time.Second}, {why: unhealthy, again: 200}}, 20 * time.Second, 26 * time.Second, "not now", false},
		{"no quorum", time.Minute, []said{{why: rootv1.Reason_REASON_ROOT_UNAVAILABLE}}, mayPass, mayPass + time.Second, "nokv root restore", true},
		{"the end of its time", 10 * time.Second, []said{{stage: catchingUp}}, 10 * time.Second, 10 * time.Second, "it has 10 of 30 entries. What was begun goes on", true},
		{"the end of its time, refused", time.Second, []said{{why: unhealthy, again: 200}}, time.Second, time.Second, "unhealthy_member: not now", false},
	} {
		_, _, took, err := replaceWith(t, c.timeout, c.script...)
		if err == nil || took < c.least || took > c.most || !strings.Contains(err.Error(), c.words) || unavailable(err) != c.unavailable {
			t.Errorf("%s: after %s: %v; unavailable: %v", c.what, took, err, unavailable(err))
		}
		if c.timeout == 10*time.Second && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
