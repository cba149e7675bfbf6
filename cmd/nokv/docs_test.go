package main

import (
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator"
	"github.com/nokv/nokv/internal/bench"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/takeover/experiment"
	"github.com/nokv/nokv/meta/root"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func readDoc(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(repositoryFile(t, "docs/"+name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestDocsHaveEveryReason(t *testing.T) {
	api := readDoc(t, "api.md")
	for number := range rootv1.Reason_name {
		r := rootv1.Reason(number)
		if row := "| `" + reason.Name(r) + "` | " + reason.Code(r).String() + " |"; !strings.Contains(api, row) {
			t.Errorf("docs/api.md has no row %q", row)
		}
	}
}

func TestDocsHaveEveryCommand(t *testing.T) {
	api := readDoc(t, "api.md")
	eachCommand(commands(), nil, func(c *command, path []string) {
		if name := "`nokv " + strings.Join(path, " ") + "`"; c.setup != nil && !strings.Contains(api, name) {
			t.Errorf("docs/api.md does not have %s", name)
		}
	})
}

func TestDocsHaveEveryServerFlag(t *testing.T) {
	operations := readDoc(t, "operations.md")
	for _, c := range []*command{metaRootCommand(), coordinatorCommand()} {
		f := newFlags(c.name, c)
		c.setup(f)
		f.VisitAll(func(x *flag.Flag) {
			if !strings.Contains(operations, "`-"+x.Name+"`") && !strings.Contains(operations, "`-"+x.Name+" ") {
				t.Errorf("docs/operations.md does not have flag -%s of %s", x.Name, c.name)
			}
		})
	}
}

func TestDocsHaveEveryMetric(t *testing.T) {
	operations := readDoc(t, "operations.md")
	for _, vars := range []any{root.Vars{}, coordinator.Vars{}} {
		v := reflect.TypeOf(vars)
		for i := range v.NumField() {
			if name := v.Field(i).Tag.Get("json"); !strings.Contains(operations, "`"+name+"`") {
				t.Errorf("docs/operations.md does not have metric %s", name)
			}
		}
	}
}

func TestDocsHaveEveryJSONField(t *testing.T) {
	api := readDoc(t, "api.md")
	for _, v := range []any{
		idOutput{},
		tsoOutput{},
		devFile{},
		bench.Result{},
		experiment.Report{},
		experiment.Quantiles{},
		experiment.PartSummary{},
		experiment.Round{},
		experiment.RoundPart{},
		statusOutput{},
		noteOutput{},
		membersOutput{},
		stuckOutput{},
		coordinatorStatusOutput{},
		rootEndpointOutput{},
		disclosureOutput{},
		keyspaceOutput{},
		guideOutput{},
		ownedOutput{},
		coordinatorOutput{},
		transitionOutput{},
		regionOutput{},
		ownerOutput{},
		changeOutput{},
		watchOutput{},
		rootPeerOutput{},
		eventOutput{},
		storyOutput{},
		memberOutput{},
		observedOutput{},
		memberGetOutput{},
		observerOutput{},
		drainOutput{},
		assignOutput{},
		grantOutput{},
		grantChange{},
		accessOutput{},
		tenureOutput{},
		settingsOutput{},
		revokedOutput{},
		verifyOutput{},
		damageOutput{},
		witnessOutput{},
		guaranteeOutput{},
		eraOutput{},
		frontiersOutput{},
		windowOutput{},
		anomalyOutput{},
		auditOutput{},
		historyOutput{},
		promiseOutput{},
		history.Call{},
		backupOutput{},
		restoreOutput{},
		replaceOutput{},
		certOutput{},
		workerEvent{},
		proxyLine{},
		proxyVars{},
	} {
		fields := reflect.TypeOf(v)
		for i := range fields.NumField() {
			if fields.Field(i).Anonymous {
				continue // its fields are told where it is
			}
			name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			if name != "-" && !strings.Contains(api, "`"+name+"`") && !strings.Contains(api, "`"+name+"[]`") {
				t.Errorf("docs/api.md does not have field %s of %s", name, fields.Name())
			}
		}
	}
}
