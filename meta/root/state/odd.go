package state

import (
	"fmt"
	"strings"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// least is the least that some settings may be, where they are set, and why.
var least = map[string]struct {
	n   uint64
	why string
}{
	"liveness-interval":              {LeastIntervalMillis, "members say nothing more often"},
	"liveness-suspect-after":         {100, "members say nothing more often than that"},
	"liveness-dead-after":            {100, "members say nothing more often than that"},
	"ownership-ttl":                  {100, "members are confirmed no more often"},
	"policy-rebalance-interval":      {100, "nothing is looked at more often"},
	"policy-rebalance-mean-permille": {1000, "it is what a member may have, in thousandths of what all have on average: 1200 is a fifth more than that, 0 any number"},
	"policy-rebalance-load-max-age":  {100, "members say nothing more often than that"},
	"policy-hook-timeout":            {10, "nobody answers sooner"},
	"scaling-hook-timeout":           {10, "nobody answers sooner"},
	"cadence-checkpoint-interval":    {100, "no member saves more often"},
	"cadence-idle-evict":             {1000, "regions would be released that are in use: members report that once an interval"},
	"cadence-idle-scan":              {100, "nothing is looked at more often"},
	"moves-deadline":                 {100, "no move is done sooner"},
	"guards-mass-window":             {100, "members are found dead no faster than they are heard"},
	"guards-flap-window":             {100, "members do not fail more often"},
}

// LeastOf is the least that a setting of a name such as liveness-interval may be where it is set,
// as a number, times in milliseconds. 0: there is no such bound.
func LeastOf(name string) uint64 { return least[name].n }

// checkOdd refuses settings that nobody can mean, by their names: what is too short, or too
// long. What is in the log already is judged as it was.
func checkOdd(s *rootv1.KeyspaceSettings) *rootv1.ErrorDetail {
	if d := checkEach(s.ProtoReflect(), ""); d != nil {
		return d
	}
	interval := LivenessOf(s).GetIntervalMillis()
	if idle := s.GetCadence().GetIdleEvictMillis(); idle > 0 && idle < 2*interval {
		return invalid("cadence-idle-evict is %s, but members report once in %s what is in use: make it %s or more, or liveness-interval less",
			span(idle), span(interval), span(2*interval))
	}
	if d := checkLabelName("policy-spread", s.GetPolicy().GetSpread()); d != nil {
		return d
	}
	for _, rule := range s.GetPolicy().GetLabelRules() {
		for name := range rule.GetLabels() {
			if d := checkLabelName("a label rule", name); d != nil {
				return d
			}
		}
	}
	return nil
}

// checkLabelName refuses the name of a label that no member can have.
func checkLabelName(what, name string) *rootv1.ErrorDetail {
	if strings.ContainsAny(name, "=,\n\r\t ") {
		return invalid("%s is %q, which is no name of a label of members: want one such as zone", what, clip(name))
	}
	return nil
}

func checkEach(m protoreflect.Message, path string) (refused *rootv1.ErrorDetail) {
	fields := m.Descriptor().Fields()
	for i := 0; i < fields.Len() && refused == nil; i++ {
		f := fields.Get(i)
		name := path + strings.ReplaceAll(string(f.Name()), "_", "-")
		switch {
		case f.IsList() || f.IsMap() || !m.Has(f):
		case f.Message() != nil:
			refused = checkEach(m.Get(f).Message(), name+"-")
		case f.Kind() == protoreflect.Uint64Kind || f.Kind() == protoreflect.Uint32Kind:
			refused = checkSetting(name, m.Get(f).Uint())
		}
	}
	return refused
}

func checkSetting(name string, n uint64) *rootv1.ErrorDetail {
	name, millis := strings.CutSuffix(name, "-millis")
	text := func(n uint64) string {
		if millis {
			return span(n)
		}
		return fmt.Sprint(n)
	}
	if l := least[name]; n < l.n {
		return invalid("%s is %s, at least %s is allowed, or 0 for what counts otherwise: %s", name, text(n), text(l.n), l.why)
	}
	if millis && n > MaxMillis {
		return invalid("%s is %s, at most %s are allowed", name, span(n), span(MaxMillis))
	}
	return nil
}

// span is a time in milliseconds in the largest unit that it is a whole number of.
func span(millis uint64) string {
	for _, u := range []struct {
		millis uint64
		name   string
	}{{24 * 60 * 60 * 1000, "days"}, {60 * 60 * 1000, "h"}, {60 * 1000, "min"}, {1000, "s"}} {
		if millis > 0 && millis%u.millis == 0 && (u.name != "days" || millis > u.millis) {
			return fmt.Sprintf("%d %s", millis/u.millis, u.name)
		}
	}
	return fmt.Sprintf("%d ms", millis)
}
