package settings_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// What Text gives, Set takes back, for every setting of every preset; together they are
// the preset.
func TestEverySettingIsText(t *testing.T) {
	for _, name := range []string{"tenants", "games", "actors", "kv", "partitions"} {
		preset, ok := state.Preset(name)
		if !ok {
			t.Fatalf("there is no preset %s", name)
		}
		got := &rootv1.KeyspaceSettings{Layout: preset.GetLayout(), Preset: name}
		for _, s := range settings.All() {
			text := s.Text(preset)
			if text == "" {
				continue
			}
			if err := s.Set(got, text); err != nil {
				t.Errorf("%s of %s: %q: %v", s.Name, name, text, err)
			}
		}
		if !proto.Equal(got, preset) {
			t.Errorf("preset %s is\n%v\nof its texts\n%v", name, preset, got)
		}
	}
}

func TestWordsAreJudged(t *testing.T) {
	by := map[string]settings.Setting{}
	for _, s := range settings.All() {
		if _, twice := by[s.Name]; twice {
			t.Errorf("two settings are named %s", s.Name)
		}
		by[s.Name] = s
	}
	for _, c := range []struct{ name, text, want string }{
		{"ownership-fence", "ttl", ""},
		{"ownership-fence", "maybe", "want epoch, ttl"},
		{"liveness-dead-after", "3s", ""},
		{"liveness-dead-after", "3", "duration"},
		{"liveness-dead-after", "-3s", "duration"},
		{"liveness-dead-after", "1us", "milliseconds"},
		{"liveness-probe", "false", ""},
		{"liveness-probe", "yes", "true or false"},
		{"policy-ring-vnodes", "4294967296", "4,294,967,295"},
		{"moves-in-flight", "-1", "not negative"},
		{"policy-hook-url", "http://x", ""},
	} {
		s, ok := by[c.name]
		if !ok {
			t.Fatalf("there is no setting %s", c.name)
		}
		k := &rootv1.KeyspaceSettings{}
		err := s.Set(k, c.text)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: %v, want %q", c.name, c.text, err, c.want)
		}
		if err == nil && c.text != "false" && s.Text(k) != c.text {
			t.Errorf("%s %q is %q", c.name, c.text, s.Text(k))
		}
	}
}

func TestDiff(t *testing.T) {
	games, _ := state.Preset("games")
	after := proto.CloneOf(games)
	after.Liveness.DeadAfterMillis, after.Liveness.Probe = 3000, false
	after.Labels = map[string]string{"a": "b"}
	after.Moves = &rootv1.Moves{InFlight: 16} // what counts anyway
	after.Policy.LabelRules = []*rootv1.LabelRule{{KeyPrefix: []byte("big-"), Labels: map[string]string{"zone": "a", "disk": "nvme"}}}
	var got []string
	for _, c := range settings.Diff(games, after) {
		got = append(got, c.Name+" "+c.From+"->"+c.To)
	}
	if want := "liveness-dead-after 5s->3s,liveness-probe true->,labels ->a=b,policy-label-rules ->\"big-\": disk=nvme zone=a"; strings.Join(got, ",") != want {
		t.Errorf("it differs in %s, want %s", strings.Join(got, ","), want)
	}
}
