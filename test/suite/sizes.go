package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// size is a flag of package test/size: how much a test does in the short form and in the long one.
type size struct{ pkg, flag, short, long, what string }

// printSizes lists them, as the tests declare them.
func (o *options) printSizes(ctx context.Context) error {
	packages, err := o.list(ctx, nil)
	if err != nil {
		return err
	}
	var all []size
	for _, p := range packages {
		for _, file := range p.files {
			found, err := sizesOf(p.path, file)
			if err != nil {
				return err
			}
			all = append(all, found...)
		}
	}
	slices.SortStableFunc(all, func(a, b size) int { return strings.Compare(a.pkg, b.pkg) })
	return writeSizes(o.stdout, all)
}

func writeSizes(out io.Writer, all []size) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PACKAGE\tFLAG\tSHORT\tLONG\tWHAT")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t-%s\t%s\t%s\t%s\n", short(s.pkg), s.flag, s.short, s.long, s.what)
	}
	return w.Flush()
}

// sizesOf are the sizes that a file declares.
func sizesOf(pkg, path string) (found []size, err error) {
	code, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(code, []byte("/test/size\"")) {
		return nil, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, filepath.Base(path), code, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	text := func(e ast.Expr) string {
		var b bytes.Buffer
		if err := printer.Fprint(&b, fset, e); err != nil {
			return err.Error()
		}
		if s, err := strconv.Unquote(b.String()); err == nil {
			return s
		}
		return b.String()
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || fmt.Sprint(f.X) != "size" {
			return true
		}
		switch args := call.Args; {
		case len(args) == 4:
			found = append(found, size{pkg, text(args[0]), text(args[1]), text(args[2]), text(args[3])})
		case len(args) == 2:
			found = append(found, size{pkg, text(args[0]), "no", "yes", text(args[1])})
		}
		return true
	})
	return found, nil
}
