package main

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator"
	"github.com/nokv/nokv/coordinator/placement"
)

// The rules for alerts name metrics and reasons that there are.
func TestA52A53A54A55AlertsNameWhatThereIs(t *testing.T) {
	_, rules, _ := strings.Cut(readDoc(t, "operations.md"), "Rules for alerts")
	_, rules, _ = strings.Cut(rules, "|---|---|---|\n")
	rules, _, _ = strings.Cut(rules, "\n\n")
	rows := strings.Split(rules, "\n")
	if len(rows) < 5 {
		t.Fatalf("there are %d rules", len(rows))
	}
	whys := map[string]bool{}
	for _, w := range placement.Whys() {
		whys[w.String()] = true
	}
	for _, row := range rows {
		names := regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(strings.Split(row, "|")[2], -1)
		if len(names) == 0 {
			t.Errorf("no metric in %s", row)
		}
		for _, n := range names {
			if name := n[1]; name != "suspect_after" && !whys[name] && !hasPath(reflect.TypeOf(coordinator.Vars{}), strings.Split(name, ".")) && !hasPath(reflect.TypeOf(coordinator.Vars{}.Assigner.Members).Elem(), []string{name}) {
				t.Errorf("no metric or reason is called %s", name)
			}
		}
	}
}

// hasPath reports whether the JSON of a type has a field at a path.
func hasPath(v reflect.Type, path []string) bool {
	if len(path) == 0 {
		return true
	}
	for i := range v.NumField() {
		if v.Field(i).Tag.Get("json") == path[0] {
			return len(path) == 1 || hasPath(v.Field(i).Type, path[1:])
		}
	}
	return false
}
