// Command protogen makes the Go code of the .proto files below a folder, beside
// them. It compiles the files itself and runs the two official plugins of
// tools/go.mod, so that nothing but Go is needed.
//
//	go run -C tools ./protogen ../proto
//
// With -check it writes nothing, and prints the files whose code is not what it
// would write.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

func main() {
	check := flag.Bool("check", false, "write nothing, print the files that are stale")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "protogen: want one argument, the folder that imports start from")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	request, err := compile(root)
	if err != nil {
		return err
	}
	for _, name := range plugins {
		files, err := generate(name, request)
		if err != nil {
			return err
		}
		for _, f := range files {
			path, content := filepath.Join(root, f.GetName()), []byte(f.GetContent())
			old, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			switch {
			case bytes.Equal(old, content):
			case check:
				fmt.Println(path)
			default:
				if err := os.WriteFile(path, content, 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// compile makes what plugins are asked. A warning, such as an import that is
// not used, is an error.
func compile(root string) (*pluginpb.CodeGeneratorRequest, error) {
	names, err := protosBelow(root)
	if err != nil {
		return nil, err
	}
	var warnings error
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
		MaxParallelism: 1,
		Reporter:       reporter.NewReporter(nil, func(w reporter.ErrorWithPos) { warnings = errors.Join(warnings, w) }),
	}
	files, err := compiler.Compile(context.Background(), names...)
	if err := errors.Join(err, warnings); err != nil {
		return nil, err
	}
	parameter := "paths=source_relative"
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: names, Parameter: &parameter}
	seen := make(map[string]bool)
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) { // imports before importers
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range files {
		add(f)
	}
	return request, nil
}

// protosBelow are the .proto files below root, named as imports name them.
func protosBelow(root string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".proto" {
			return err
		}
		name, err := filepath.Rel(root, path)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no .proto file below %s", root)
	}
	return names, err
}

// generate runs a plugin: a request on its standard input, the files that it
// makes on its standard output.
func generate(plugin string, request *pluginpb.CodeGeneratorRequest) ([]*pluginpb.CodeGeneratorResponse_File, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "tool", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", plugin, err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return nil, fmt.Errorf("%s: %w", plugin, err)
	}
	if response.Error != nil {
		return nil, fmt.Errorf("%s: %s", plugin, strings.TrimSpace(response.GetError()))
	}
	return response.File, nil
}
