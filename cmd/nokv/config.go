package main

import (
	"context"
	"sort"
	"text/tabwriter"

	"github.com/nokv/nokv/config"
)

func configCommand() *command {
	return &command{
		name: "config", summary: "read a raft_config.json",
		children: []*command{{
			name: "get", args: "coordinator|meta-root [flags]", summary: "print one value as a process would resolve it",
			long: `
Prints the address or work directory of the coordinator, or of one root peer,
in a scope. The file is read strictly: an unknown field is an error.

  nokv config get coordinator --field addr --scope host
  nokv config get meta-root --node-id 2 --field workdir`,
			setup: func(f *flags) func(context.Context, *env, []string) error {
				path := f.String("config", "raft_config.json", "config `file`")
				scope := f.String("scope", "host", "`host or docker`")
				field := f.String("field", "addr", "`addr or workdir`")
				node := f.Uint64("node-id", 0, "root peer, for meta-root")
				f.withOutput()
				return func(_ context.Context, e *env, args []string) error {
					return configGet(e, args, *path, *scope, *field, *node)
				}
			},
		}},
	}
}

func configGet(e *env, args []string, path, scopeName, field string, node uint64) error {
	if len(args) != 1 || args[0] != "coordinator" && args[0] != "meta-root" {
		return usagef("name coordinator or meta-root, got %q", args)
	}
	if field != "addr" && field != "workdir" {
		return usagef("field %q: use addr or workdir", field)
	}
	scope, err := config.ParseScope(scopeName)
	if err != nil {
		return usagef("%s", err)
	}
	file, err := config.Load(path)
	if err != nil {
		return err
	}
	var value string
	switch {
	case args[0] == "meta-root" && node == 0:
		return usagef("say which root peer with --node-id")
	case args[0] == "meta-root":
		addr, dir, err := file.ResolveMetaRoot(node, scope)
		if err != nil {
			return err
		}
		value = map[string]string{"addr": addr, "workdir": dir}[field]
	case field == "addr":
		value, err = file.ResolveCoordinatorAddr(scope)
	default:
		value, err = file.ResolveCoordinatorWorkDir(scope)
	}
	if err != nil {
		return err
	}
	v := struct {
		Field string `json:"field"`
		Scope string `json:"scope"`
		Value string `json:"value"`
	}{field, string(scope), value}
	return e.print(v, func(w *tabwriter.Writer) { row(w, value) })
}

// sortedIDs lists the keys of a peer map in order.
func sortedIDs(peers map[uint64]string) []uint64 {
	ids := make([]uint64, 0, len(peers))
	for id := range peers {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}
