package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
)

// version is set by release builds: -ldflags "-X main.version=v1.2.3".
var version = "dev"

func versionCommand() *command {
	return &command{
		name: "version", summary: "print the version",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				v := struct {
					Version  string `json:"version"`
					Revision string `json:"revision,omitempty"`
					Go       string `json:"go"`
					Platform string `json:"platform"`
				}{version, revision(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
				return e.print(v, func(w *tabwriter.Writer) {
					row(w, strings.Join(strings.Fields("nokv "+v.Version+" "+v.Revision+" "+v.Go+" "+v.Platform), " "))
				})
			}
		},
	}
}

// revision is the commit the binary was built from, where the build knows it.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
