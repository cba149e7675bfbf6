package config_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/config"
)

func TestExampleFile(t *testing.T) {
	f, err := config.Load("../raft_config.example.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		scope         config.Scope
		addr, workDir string
	}{
		{config.ScopeHost, "127.0.0.1:2379", "./artifacts/cluster/coordinator"},
		{config.ScopeDocker, "nokv-coordinator:2379", "/var/lib/nokv-coordinator"},
	} {
		if got, err := f.ResolveCoordinatorAddr(tc.scope); err != nil || got != tc.addr {
			t.Errorf("%s addr = %q, %v, want %q", tc.scope, got, err, tc.addr)
		}
		if got, err := f.ResolveCoordinatorWorkDir(tc.scope); err != nil || got != tc.workDir {
			t.Errorf("%s work dir = %q, %v, want %q", tc.scope, got, err, tc.workDir)
		}
	}
	peers, err := f.RootPeers(config.ScopeHost)
	if err != nil || len(peers) != 3 || peers[2] != "127.0.0.1:2381" {
		t.Errorf("root peers = %v, %v", peers, err)
	}
}

func TestBadFiles(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown field", "{\n \"coordinator\": {\n  \"adr\": \"x:1\"\n }\n}", `line 3: unknown field "adr" in coordinator`},
		{"unknown top field", "{\n\n \"coordinators\": 1}", `line 3: unknown field "coordinators"`},
		{"unknown in list", "{\"stores\":[\n{\"store_id\":1,\"addr\":\"a:1\"},\n{\"id\":2}]}", `line 3: unknown field "id" in stores[1]`},
		{"twice", "{\"coordinator\":{},\n\"coordinator\":{}}", `line 2: field "coordinator" stands twice`},
		{"syntax", "{\n\"coordinator\": }", "line 2"},
		{"cut off", "{\n\"coordinator\": {", "ends too early"},
		{"trailing", "{}\n{}", "text behind"},
		{"type", "{\n\"coordinator\": {\"addr\": 7}}", "line 2"},
		{"object for list", "{\"stores\": {}}", "stores is an object"},
		{"address", `{"coordinator":{"addr":"nowhere"}}`, "want host:port"},
		{"node twice", `{"meta_root":[{"node_id":1,"addr":"a:1"},{"node_id":1,"addr":"a:2"}]}`, "stands twice"},
		{"inverted region", `{"regions":[{"id":1,"start_key":"b","end_key":"a"}]}`, "not below"},
		{"unknown store", `{"regions":[{"id":1,"peers":[{"store_id":9,"peer_id":1}]}]}`, "not in stores"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := config.Parse([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestMissingDockerValueIsNotTheHosts(t *testing.T) {
	f, err := config.Parse([]byte(`{"coordinator":{"addr":"127.0.0.1:1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ResolveCoordinatorAddr(config.ScopeDocker); err == nil {
		t.Error("docker scope fell back to the host's address")
	}
	if _, err := config.ParseScope("moon"); err == nil {
		t.Error("scope moon was taken")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"coordinator":{"addr":"127.0.0.1:1"},"stores":[{"store_id":1,"addr":"a:1"}]}`))
	f.Add([]byte(`{"regions":[{"epoch":{"version":1}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if file, err := config.Parse(raw); err == nil && file == nil {
			t.Error("no file and no error")
		}
	})
}
