package main

import (
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// readFlags choose how fresh an answer must be.
type readFlags struct {
	strong   *bool
	atLeast  *string
	maxLag   *uint64
	maxStale *time.Duration
	given    func(name string) bool
}

func (f *flags) read() *readFlags {
	return &readFlags{
		strong:   f.Bool("strong", false, "linearizable: reflects every change acknowledged before"),
		atLeast:  f.String("at-least", "", "read your writes: wait until the answer reflects `token` (incarnation.term.index, as printed)"),
		maxLag:   f.Uint64("max-lag", 0, "refuse when more than so many `entries` behind; 0: when any; without it no bound"),
		maxStale: f.duration("max-stale", 0, "refuse when not level with the root within so `long`, 1ms or more; without it no bound"),
		given:    f.given,
	}
}

func (r *readFlags) options() ([]client.ReadOption, error) {
	var opts []client.ReadOption
	byLag, byAge := r.given("max-lag"), r.given("max-stale")
	if byAge && *r.maxStale < time.Millisecond {
		return nil, usagef("max-stale %s: want 1ms or more, or --strong", *r.maxStale)
	}
	switch {
	case *r.strong && (byLag || byAge):
		return nil, usagef("--strong and --max-lag or --max-stale exclude each other")
	case *r.strong:
		opts = append(opts, client.Strong())
	}
	if byLag {
		opts = append(opts, client.MaxLag(*r.maxLag))
	}
	if byAge {
		opts = append(opts, client.MaxAge(*r.maxStale))
	}
	if *r.atLeast != "" {
		token, err := parseToken(*r.atLeast)
		if err != nil {
			return nil, err
		}
		opts = append(opts, client.AtLeast(token))
	}
	return opts, nil
}

// parseToken reads a token as every command prints it, with its cluster or
// without.
func parseToken(s string) (rooted.Token, error) {
	p, err := client.ParsePosition(s)
	if err != nil {
		return rooted.Token{}, usagef("%s", err)
	}
	return p.Token, nil
}

func showToken(t *rootv1.RootToken) string { return rooted.TokenFromProto(t).String() }

// disclosureOutput is what every read says of itself in JSON. The field names stay.
type disclosureOutput struct {
	ServedToken  string `json:"served_token"`
	CurrentToken string `json:"current_token"`
	LagEntries   uint64 `json:"lag_entries"`
	LagMillis    uint64 `json:"lag_millis"`
	ServingClass string `json:"serving_class"`
	DegradedMode string `json:"degraded_mode"`
	CatchUpState string `json:"catch_up_state"`
	SyncHealth   string `json:"sync_health"`
	Era          uint64 `json:"era"`
	Coordinator  string `json:"coordinator"`
}

func showDisclosure(d *coordinatorv1.Disclosure) disclosureOutput {
	return disclosureOutput{
		showToken(d.GetServedRootToken()), showToken(d.GetCurrentRootToken()), d.GetRootLag(), d.GetRootLagMillis(),
		word(d.GetServingClass().String(), "SERVING_CLASS_"), word(d.GetDegradedMode().String(), "DEGRADED_MODE_"),
		word(d.GetCatchUpState().String(), "CATCH_UP_STATE_"), word(d.GetSyncHealth().String(), "SYNC_HEALTH_"),
		d.GetEra(), d.GetCoordinatorId(),
	}
}

// word is an enum value as users see it: lower case without the prefix.
func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
