package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nokv/nokv/store"
)

const storeConfig = `{
 "coordinator": {"addr": "127.0.0.1:7001", "docker_addr": "c:1"},
 "stores": [
  {"store_id": 1, "addr": "127.0.0.1:7002", "docker_addr": "s1:1", "work_dir": "from-the-config"},
  {"store_id": 2, "addr": "127.0.0.1:7003", "docker_addr": "s2:1"}
 ],
 "regions": [{"id": 1, "start_key": "", "end_key": "", "epoch": {"version": 1, "conf_version": 1}, "peers": [{"store_id": 1, "peer_id": 1}]}]
}`

// resolveStore reads a command line of nokv serve with storeConfig.
func resolveStore(t *testing.T, args ...string) (*store.Config, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raft_config.json")
	if err := os.WriteFile(path, []byte(storeConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFlags("nokv serve", serveCommand())
	s, o := storeFlags(f)
	if _, err := f.parse(append(args, "--config", path)); err != nil {
		t.Fatal(err)
	}
	cfg, addr, err := o.resolve(s)
	if err != nil {
		t.Fatal(err)
	}
	return cfg, addr
}

// The config maps store ids to addresses, in a scope; --store-addr and the other flags win.
func TestN66ConfigMapsAddresses(t *testing.T) {
	cfg, addr := resolveStore(t, "--store-id", "1")
	if addr != "127.0.0.1:7002" || cfg.Workdir != "from-the-config" || cfg.Coordinators[0] != "127.0.0.1:7001" || cfg.StoreAddrs[2] != "127.0.0.1:7003" || cfg.Advertise != "" {
		t.Errorf("%s, %+v", addr, cfg)
	}
	cfg, addr = resolveStore(t, "--store-id", "1", "--scope", "docker", "--workdir", "w", "--store-addr", "2=10.0.0.12:20160",
		"--store-addr", "1=10.0.0.11:20160", "--coordinator-addr", "a:1,b:2")
	if addr != "s1:1" || cfg.Workdir != "w" || len(cfg.Coordinators) != 2 || cfg.StoreAddrs[2] != "10.0.0.12:20160" || cfg.Advertise != "10.0.0.11:20160" {
		t.Errorf("%s, %+v", addr, cfg)
	}
}

// The regions of the config are how a cluster was made, once: no store hosts them for it.
func TestN63ConfigRegionsAreNotReplayed(t *testing.T) {
	cfg, addr := resolveStore(t, "--store-id", "1", "--workdir", t.TempDir())
	cfg.Advertise = addr
	for range 2 {
		st, err := store.Open(*cfg)
		if err != nil {
			t.Fatal(err)
		}
		if vars := st.Vars().(store.Vars); len(vars.Regions) != 0 || vars.StoreID != 1 {
			t.Errorf("%+v", vars)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
