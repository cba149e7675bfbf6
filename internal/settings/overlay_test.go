package settings_test

import (
	"testing"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a text names and leaves empty is taken back, and nothing else is.
func TestWhatIsNamedAndEmptyIsTakenBack(t *testing.T) {
	base := func() *rootv1.KeyspaceSettings {
		games, _ := state.Preset("games")
		k := proto.CloneOf(games)
		k.Labels = map[string]string{"team": "a"}
		k.Policy.LabelRules = []*rootv1.LabelRule{{Labels: map[string]string{"zone": "a"}}}
		k.Policy.Rebalance = &rootv1.Rebalance{MinGap: 3, MaxMoves: 2}
		return k
	}
	for text, takesBack := range map[string]func(*rootv1.KeyspaceSettings){
		`{}`:                                        func(*rootv1.KeyspaceSettings) {},
		`{"policy": {}}`:                            func(*rootv1.KeyspaceSettings) {},
		`{"policy": {"labelRules": []}}`:            func(k *rootv1.KeyspaceSettings) { k.Policy.LabelRules = nil },
		`{"policy": {"label_rules": null}}`:         func(k *rootv1.KeyspaceSettings) { k.Policy.LabelRules = nil },
		`{"policy": {"rebalance": null}}`:           func(k *rootv1.KeyspaceSettings) { k.Policy.Rebalance = nil },
		`{"policy": {"rebalance": {"minGap":"0"}}}`: func(k *rootv1.KeyspaceSettings) { k.Policy.Rebalance.MinGap = 0 },
		`{"policy": {"spread": "", "rebalance": {"minGap":4}}}`: func(k *rootv1.KeyspaceSettings) {
			k.Policy.Spread, k.Policy.Rebalance.MinGap = "", 4
		},
		`{"labels": {}}`:                 func(k *rootv1.KeyspaceSettings) { k.Labels = nil },
		`{"labels": {"env": "x"}}`:       func(k *rootv1.KeyspaceSettings) { k.Labels["env"] = "x" },
		`{"liveness": {"probe": false}}`: func(k *rootv1.KeyspaceSettings) { k.Liveness.Probe = false },
		`{"policy": {"onMiss": 0}}`:      func(k *rootv1.KeyspaceSettings) { k.Policy.OnMiss = 0 },
		`{"policy": null}`:               func(k *rootv1.KeyspaceSettings) { k.Policy = nil },
	} {
		got, err := settings.Overlay(base(), []byte(text))
		want := base()
		if takesBack(want); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v\n%v, want\n%v", text, err, got, want)
		}
	}
	if _, err := settings.Overlay(nil, []byte(`{"policy": {"labelRule": []}}`)); err == nil {
		t.Error("a field that there is not is taken")
	}
}

// Every field of the settings can be taken back by null, and the text of settings laid over none is these.
func TestEveryFieldIsTakenBackByNull(t *testing.T) {
	full := &rootv1.KeyspaceSettings{}
	fill(full.ProtoReflect())
	text, err := protojson.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := settings.Overlay(nil, text); err != nil || !proto.Equal(got, full) {
		t.Fatalf("%s: %v, %v", text, got, err)
	}
	fields := full.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		got, err := settings.Overlay(full, []byte(`{"`+f.JSONName()+`": null}`))
		want := proto.CloneOf(full)
		want.ProtoReflect().Clear(f)
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: null: %v, %v", f.Name(), got, err)
		}
	}
}

// fill sets every field of a message that is no list or map.
func fill(m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		switch f := m.Descriptor().Fields().Get(i); {
		case f.IsMap() || f.IsList():
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("x"))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		case f.Kind() == protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(1))
		case f.Kind() == protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(7))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(7))
		default:
			panic("a field of a new kind: " + string(f.FullName()))
		}
	}
}
