package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

var errHelp = flag.ErrHelp

// flags is a command's flag set: the standard package's, plus flags between
// and behind arguments, and -o.
type flags struct {
	*flag.FlagSet
	path   string
	cmd    *command
	env    *env
	output string
}

func newFlags(path string, cmd *command) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(path, flag.ContinueOnError), path: path, cmd: cmd, env: new(env), output: "table"}
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	return f
}

// withOutput declares -o table|json.
func (f *flags) withOutput() {
	f.Func("o", "output: `table or json` (default table)", func(s string) error {
		if s != "table" && s != "json" {
			return fmt.Errorf("use table or json")
		}
		f.output = s
		return nil
	})
}

// parse accepts flags before, between and behind positional arguments; "--"
// ends them.
func (f *flags) parse(args []string) ([]string, error) {
	var positional []string
	for {
		if err := f.Parse(args); err != nil {
			return nil, f.readable(err)
		}
		rest := f.Args()
		if len(rest) == 0 {
			return positional, nil
		}
		if consumed := len(args) - len(rest); consumed > 0 && args[consumed-1] == "--" {
			return append(positional, rest...), nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
}

// flagErrors are the standard package's words and ours.
var flagErrors = strings.NewReplacer(
	"flag needs an argument: ", "a value is missing behind ",
	"parse error", "want a whole number that is not negative",
	"value out of range", "the number is too large",
)

// readable says what is wrong with a flag: -count "x": want a whole number.
func (f *flags) readable(err error) error {
	if errors.Is(err, errHelp) {
		return err
	}
	text := err.Error()
	if unknown, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		var names []string
		f.VisitAll(func(x *flag.Flag) { names = append(names, x.Name) })
		return fmt.Errorf("there is no flag -%s%s", unknown, suggest(unknown, names))
	}
	if rest, ok := strings.CutPrefix(text, "invalid boolean value "); ok {
		return errors.New(strings.Replace(rest, "parse error", "want true or false", 1))
	}
	if rest, ok := strings.CutPrefix(text, "invalid value "); ok {
		if value, rest, ok := strings.Cut(rest, " for flag "); ok {
			if name, why, ok := strings.Cut(rest, ": "); ok {
				text = name + " " + value + ": " + why
			}
		}
	}
	return errors.New(flagErrors.Replace(text))
}

// given says whether a flag was on the command line.
func (f *flags) given(name string) bool {
	found := false
	f.Visit(func(x *flag.Flag) { found = found || x.Name == name })
	return found
}

func (f *flags) usage(to io.Writer) error {
	w := new(bytes.Buffer)
	fmt.Fprintf(w, "%s: %s\n\nUsage: %s\n", f.path, f.cmd.summary, strings.TrimSpace(f.path+" "+f.cmd.args))
	if f.cmd.long != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(f.cmd.long))
	}
	hasFlags := false
	f.VisitAll(func(*flag.Flag) { hasFlags = true })
	if hasFlags {
		fmt.Fprint(w, "\nFlags (-x or --x):\n")
		f.SetOutput(w)
		f.PrintDefaults()
		f.SetOutput(io.Discard)
	}
	_, err := w.WriteTo(to)
	return err
}

// peerMap is a repeated flag id=addr.
type peerMap struct {
	peers map[uint64]string
}

func (p *peerMap) String() string { return "" }

func (p *peerMap) Set(s string) error {
	id, addr, ok := strings.Cut(s, "=")
	n, err := strconv.ParseUint(id, 10, 64)
	if !ok || err != nil || n == 0 {
		return fmt.Errorf("want ID=HOST:PORT with an id of 1 or more")
	}
	if err := checkAddr(addr); err != nil {
		return err
	}
	if p.peers == nil {
		p.peers = make(map[uint64]string)
	}
	if other, ok := p.peers[n]; ok {
		return fmt.Errorf("id %d stands twice (%s and %s)", n, other, addr)
	}
	for id, other := range p.peers {
		if other == addr {
			return fmt.Errorf("address %s stands twice (ids %d and %d)", addr, id, n)
		}
	}
	p.peers[n] = addr
	return nil
}

// durationFlag is a duration of zero or more.
func (f *flags) duration(name string, def time.Duration, usage string) *time.Duration {
	d := def
	if def != 0 {
		usage = fmt.Sprintf("%s (default %s)", usage, def)
	}
	f.Func(name, usage, func(s string) error {
		v, err := time.ParseDuration(s)
		if err != nil {
			return errors.New("want a duration such as 500ms or 3s")
		}
		if v < 0 {
			return errors.New("want zero or more")
		}
		d = v
		return nil
	})
	return &d
}

// keyspaces declares --keyspace, the names of some, and --keyspaces, as it was called.
func (f *flags) keyspaces(into *[]string) {
	add := func(text string) error {
		for name := range strings.SplitSeq(text, ",") {
			switch {
			case name == "":
				return errors.New("want names with commas between them: one is empty")
			case slices.Contains(*into, name):
				return fmt.Errorf("%s stands twice", name)
			}
			*into = append(*into, name)
		}
		return nil
	}
	f.Func("keyspace", "`names` of the keyspaces whose regions it takes, with commas; may be repeated (default all that are assigned)", add)
	f.Func("keyspaces", "the same as --keyspace: `names`", add)
}

// label declares --label, which may be repeated.
func (f *flags) label(into map[string]string, usage string) {
	f.Func("label", usage, func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("want NAME=VALUE")
		}
		into[name] = value
		return nil
	})
}
