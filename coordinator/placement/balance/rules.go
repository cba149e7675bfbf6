package balance

import (
	"cmp"
	"slices"
	"strings"
)

// book finds the rule of a key: the one with the longest beginning of it.
type book struct {
	rules []ruled
}

type ruled struct {
	Rule
	// within is the rule with the longest beginning of this one's; -1: none.
	within int32
}

// free is the rule of what has none.
const free int32 = -1

func newBook(rules []Rule) book {
	var b book
	for _, r := range rules {
		b.rules = append(b.rules, ruled{Rule: r})
	}
	slices.SortStableFunc(b.rules, func(x, y ruled) int { return cmp.Compare(x.Prefix, y.Prefix) })
	for i := range b.rules {
		within := int32(i) - 1
		for within >= 0 && !strings.HasPrefix(b.rules[i].Prefix, b.rules[within].Prefix) {
			within = b.rules[within].within
		}
		b.rules[i].within = within
	}
	return b
}

// of is the rule of a region by its first key.
func (b *book) of(start string) int32 {
	if len(b.rules) == 0 {
		return free
	}
	i, _ := slices.BinarySearchFunc(b.rules, start, func(r ruled, key string) int {
		if r.Prefix <= key {
			return -1
		}
		return 1
	})
	at := int32(i) - 1
	for at >= 0 && !strings.HasPrefix(start, b.rules[at].Prefix) {
		at = b.rules[at].within
	}
	return at
}

// fits reports whether labels are what a rule asks for.
func (r *ruled) fits(labels map[string]string) bool {
	for k, v := range r.Labels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
