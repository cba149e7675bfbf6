package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

func TestCreateKeyspace(t *testing.T) {
	w := start(t)
	req := &coordinatorv1.CreateKeyspaceRequest{
		Name: "shop", Preset: "games", Settings: &rootv1.KeyspaceSettings{Labels: map[string]string{"team": "a"}},
	}
	resp, err := w.client.CreateKeyspace(within(t), req)
	if err != nil {
		t.Fatal(err)
	}
	preset, _ := state.Preset("games")
	want := state.MergeSettings(preset, req.Settings)
	if got := resp.GetKeyspace().GetSettings(); !proto.Equal(got.GetLiveness(), want.GetLiveness()) || got.GetLabels()["team"] != "a" {
		t.Errorf("settings %v", got)
	}
	if resp.GetAlreadyExisted() || state.TokenFromProto(resp.GetToken()) != w.root.token() {
		t.Errorf("created %v", resp)
	}
	again, err := w.client.CreateKeyspace(within(t), req)
	if err != nil || !again.GetAlreadyExisted() || again.GetKeyspace().GetId() != resp.GetKeyspace().GetId() {
		t.Errorf("again: %v, %v", again, err)
	}
	req.Preset = "kv"
	_, err = w.client.CreateKeyspace(within(t), req)
	refused(t, err, rootv1.Reason_REASON_ALREADY_EXISTS)
}

// Whole settings are taken as they are: what they leave out is not filled in, so that a
// preset's "yes" can be taken back.
func TestCreateKeyspaceOfWholeSettings(t *testing.T) {
	w := start(t)
	want, _ := state.Preset("games")
	want.Liveness.Probe, want.Cadence = false, nil
	resp, err := w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: "shop", Settings: want, Whole: true})
	if err != nil || !proto.Equal(resp.GetKeyspace().GetSettings(), want) {
		t.Errorf("settings %v, %v", resp.GetKeyspace().GetSettings(), err)
	}
	_, err = w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: "two", Preset: "games", Settings: want, Whole: true})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	_, err = w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: "none", Whole: true})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
}

func TestUpdateAndDeleteKeyspace(t *testing.T) {
	w := start(t)
	created, err := w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: "shop", Preset: "tenants"})
	if err != nil {
		t.Fatal(err)
	}
	settings := proto.CloneOf(created.GetKeyspace().GetSettings())
	settings.Layout = nil // it stays
	settings.Limits = &rootv1.Limits{MaxRegions: 5}
	version := created.GetKeyspace().GetVersion()
	updated, err := w.client.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{Name: "shop", ExpectedVersion: version, Settings: settings})
	if err != nil || updated.GetKeyspace().GetVersion() <= version || updated.GetKeyspace().GetSettings().GetLimits().GetMaxRegions() != 5 {
		t.Fatalf("%v, %v", updated, err)
	}
	if !proto.Equal(updated.GetKeyspace().GetSettings().GetLayout(), created.GetKeyspace().GetSettings().GetLayout()) {
		t.Error("the layout changed")
	}
	settings.Limits.MaxRegions = 6
	_, err = w.client.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{Name: "shop", ExpectedVersion: version + 7, Settings: settings})
	refused(t, err, rootv1.Reason_REASON_VERSION_STALE)
	_, err = w.client.DeleteKeyspace(within(t), &coordinatorv1.DeleteKeyspaceRequest{Name: "shop", ExpectedVersion: version})
	refused(t, err, rootv1.Reason_REASON_VERSION_STALE)
	deleted, err := w.client.DeleteKeyspace(within(t), &coordinatorv1.DeleteKeyspaceRequest{Name: "shop"})
	if err != nil || state.TokenFromProto(deleted.GetToken()) != w.root.token() {
		t.Fatalf("%v, %v", deleted, err)
	}
	asked := len(w.root.asked)
	_, err = w.client.DeleteKeyspace(within(t), &coordinatorv1.DeleteKeyspaceRequest{Name: "shop"})
	refused(t, err, rootv1.Reason_REASON_NOT_FOUND)
	if len(w.root.asked) == asked {
		t.Error("NOT_FOUND, and the root was not asked")
	}
}

func TestGetAndListKeyspaces(t *testing.T) {
	w := routed(t)
	for i := range 5 {
		w.must(t, create(fmt.Sprint("k", i), state.DefaultSettings()))
	}
	got, err := w.client.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "default"})
	if err != nil || got.GetKeyspace().GetId() != 1 || got.GetRegions() != 3 {
		t.Errorf("%v, %v", got, err)
	}
	checkDisclosure(t, w, got.GetDisclosure(), coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
	var names []string
	req := &coordinatorv1.ListKeyspacesRequest{Limit: 2}
	for more := true; more; {
		list, err := w.client.ListKeyspaces(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list.GetKeyspaces() {
			names = append(names, k.GetName())
		}
		more, req.After = list.GetMore(), names[len(names)-1]
	}
	if fmt.Sprint(names) != "[default k0 k1 k2 k3 k4]" {
		t.Errorf("listed %v", names)
	}
}

func TestKeyspaceRefusals(t *testing.T) {
	w := start(t)
	before := w.root.changes()
	long := strings.Repeat("x", 64)
	const invalid = rootv1.Reason_REASON_INVALID_REQUEST
	for name, c := range map[string]struct {
		call  func() error
		want  rootv1.Reason
		field string
	}{
		"create nothing": {func() error {
			_, err := w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{})
			return err
		}, invalid, "name"},
		"create long": {func() error {
			_, err := w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: long})
			return err
		}, invalid, "name"},
		"letters": {func() error {
			_, err := w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: "No Such"})
			return err
		}, invalid, "name"},
		"preset": {func() error {
			_, err := w.client.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: "a", Preset: "nope"})
			return err
		}, invalid, "preset"},
		"update version": {func() error {
			_, err := w.client.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{Name: "default", Settings: &rootv1.KeyspaceSettings{}})
			return err
		}, invalid, "expected_version"},
		"update settings": {func() error {
			_, err := w.client.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{Name: "default", ExpectedVersion: 1})
			return err
		}, invalid, "settings"},
		"update nothing": {func() error {
			_, err := w.client.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{Name: "nope", ExpectedVersion: 1, Settings: state.DefaultSettings()})
			return err
		}, rootv1.Reason_REASON_NOT_FOUND, "nope"},
		"get": {func() error {
			_, err := w.client.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "nope"})
			return err
		}, rootv1.Reason_REASON_NOT_FOUND, "nope"},
		"get unnamed": {func() error {
			_, err := w.client.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{})
			return err
		}, invalid, "name"},
		"delete unnamed": {func() error {
			_, err := w.client.DeleteKeyspace(within(t), &coordinatorv1.DeleteKeyspaceRequest{})
			return err
		}, invalid, "name"},
		"list limit": {func() error {
			_, err := w.client.ListKeyspaces(within(t), &coordinatorv1.ListKeyspacesRequest{Limit: 1025})
			return err
		}, invalid, "limit"},
		"list after": {func() error {
			_, err := w.client.ListKeyspaces(within(t), &coordinatorv1.ListKeyspacesRequest{After: long})
			return err
		}, invalid, "after"},
	} {
		detail := refused(t, c.call(), c.want)
		if !strings.Contains(detail.GetMessage(), c.field) {
			t.Errorf("%s: %q does not name %s", name, detail.GetMessage(), c.field)
		}
	}
	if w.root.changes() != before {
		t.Error("a refusal changed the root")
	}
}
