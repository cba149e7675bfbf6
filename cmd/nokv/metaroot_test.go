package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a -peer list must have depends on what the workdir is for.
func TestMetaRootFlags(t *testing.T) {
	empty, used := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lists := []map[uint64]string{nil}
	for n := range uint64(5) {
		list := map[uint64]string{}
		for id := range n + 1 {
			list[id+1] = "127.0.0.1:333" + string(rune('0'+id))
		}
		lists = append(lists, list)
	}
	for _, c := range []struct {
		name      string
		node      uint64
		dir       string
		list      map[uint64]string
		transport string
		join      bool
		want      string // empty: nothing is wrong
	}{
		{"three found a cluster", 1, empty, lists[3], "", false, ""},
		{"a workdir that is missing", 1, filepath.Join(empty, "none"), lists[3], "", false, ""},
		{"two cannot", 1, empty, lists[2], "", false, "2 peers; want 3"},
		{"two cannot in a missing one", 1, filepath.Join(empty, "none"), lists[2], "", false, "2 peers; want 3"},
		{"none", 1, empty, nil, "127.0.0.1:1", false, "0 peers; want 3"},
		{"a node id above all", 1<<64 - 1, empty, map[uint64]string{1<<64 - 1: "127.0.0.1:3333"}, "", false, "want at most"},
		{"a workdir in use takes any number", 1, used, lists[2], "", false, ""},
		{"but itself", 9, used, lists[2], "", false, "node 9 is not in the list [1 2]"},
		{"joins with two others", 9, empty, lists[2], "127.0.0.1:1", true, ""},
		{"joins with itself in the list", 2, empty, lists[2], "", true, ""},
		{"joins without others", 9, empty, nil, "127.0.0.1:1", true, "name another root peer"},
		{"joins with itself alone", 1, empty, lists[1], "", true, "name another root peer"},
		{"joins at no address", 9, empty, lists[2], "", true, "say with -transport-addr"},
		{"joins everywhere", 9, empty, lists[2], ":3333", true, "listens on every address"},
		{"joins everywhere, v6", 9, empty, lists[2], "[::]:3333", true, "say which one the others use with -peer 9=ADDR"},
		{"listens everywhere, is in the list", 2, empty, lists[2], ":3333", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := metaRootOptions{node: c.node, workdir: c.dir, peers: c.list, transport: c.transport, join: c.join, election: time.Second, checkpoint: 50_000}
			if o.transport == "" {
				o.transport = o.peers[o.node]
			}
			err := o.check("127.0.0.1:2380")
			usage := new(usageError)
			if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
