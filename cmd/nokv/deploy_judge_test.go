package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/debugvars"
)

// commandLine is one of nokv in a recipe, with what stands around it there.
type commandLine struct {
	where string
	args  []string // behind nokv; what the recipe has for it is in the place of variables
	env   map[string]string
	// probed are paths by port; published are ports that others are told of.
	probed    map[string]string
	published []string
	stopped   time.Duration // how long it has between SIGTERM and SIGKILL; 0: the recipe does not say

	set *flag.FlagSet // as parsed
}

// value is a flag's, with its default.
func (c *commandLine) value(name string) string {
	if c.set == nil || c.set.Lookup(name) == nil {
		return ""
	}
	return c.set.Lookup(name).Value.String()
}

// took is a time that is on the command line of a sidecar, whose default is 10 s.
func (c *commandLine) took(name string) time.Duration {
	for i, word := range c.args {
		text, ok := strings.CutPrefix(strings.TrimLeft(word, "-"), name+"=")
		if word == "--" {
			break
		} else if strings.TrimLeft(word, "-") == name && i+1 < len(c.args) {
			text, ok = c.args[i+1], true
		}
		if d, err := time.ParseDuration(text); ok && err == nil {
			return d
		}
	}
	return 10 * time.Second
}

// variables are those of Kubernetes, $(NAME), and of systemd, ${NAME}.
var variables = regexp.MustCompile(`\$\((\w+)\)|\$\{(\w+)\}`)

// resolve puts values in the place of variables.
func (c *commandLine) resolve() (errs []error) {
	for i := range c.args {
		c.args[i] = variables.ReplaceAllStringFunc(c.args[i], func(v string) string {
			value, ok := c.env[strings.Trim(v, "$(){}")]
			if !ok {
				errs = append(errs, fmt.Errorf("nothing sets %s", v))
			}
			return value
		})
	}
	return errs
}

// judge parses the command line as nokv does, and compares it with what stands around it.
func (c *commandLine) judge() (errs []error) {
	errs = c.resolve()
	at, path := commands(), "nokv"
	for len(at.children) > 0 {
		i := slices.IndexFunc(at.children, func(x *command) bool { return len(c.args) > 0 && x.name == c.args[0] })
		if i < 0 && at.setup != nil {
			break
		} else if i < 0 {
			return append(errs, fmt.Errorf("%s has no command %q", path, c.args))
		}
		at, path, c.args = at.children[i], path+" "+c.args[0], c.args[1:]
	}
	f := newFlags(path, at)
	at.setup(f)
	c.set = f.FlagSet
	if _, err := f.parse(c.args); err != nil {
		return append(errs, fmt.Errorf("%s: %w", path, err))
	}
	f.VisitAll(func(x *flag.Flag) {
		if fromEnv := x.Name == "coordinator-addr" && c.env["NOKV_COORDINATOR_ADDR"] != ""; strings.Contains(x.Usage, "(required") && !f.given(x.Name) && !fromEnv {
			errs = append(errs, fmt.Errorf("%s: --%s is missing", path, x.Name))
		}
	})
	if f.Lookup("metrics-addr") == nil && at.name != "sidecar" {
		return errs // a client: it opens no ports
	}
	if at.name != "sidecar" { // whose program is what listens
		advertise := c.value("advertise-addr")
		if at.name == "proxy" {
			advertise = "proxy:1" // nobody is told of it by the root
		}
		if err := checkListen(c.value("addr"), advertise); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
		if c.value("certs") == "" && c.value("insecure") != "true" {
			errs = append(errs, fmt.Errorf("%s has neither certificates nor --insecure: it does not start", path))
		}
	}
	opens := map[string]string{} // flag by port
	for _, name := range []string{"addr", "transport-addr", "metrics-addr", "address"} {
		if _, port, err := net.SplitHostPort(c.value(name)); err == nil {
			if other := opens[port]; other != "" {
				errs = append(errs, fmt.Errorf("%s: --%s and --%s have one port", path, name, other))
			}
			opens[port] = name
		}
	}
	for _, port := range c.published {
		if opens[port] == "" {
			errs = append(errs, fmt.Errorf("%s does not open port %s", path, port))
		}
	}
	for port, page := range c.probed {
		switch opens[port] {
		case "metrics-addr":
			if err := answersAt(page, at.name == "proxy"); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		case "address":
			if page != "/nokv/ready" {
				errs = append(errs, fmt.Errorf("a member is asked for /nokv/ready, not %s", page))
			}
		default:
			errs = append(errs, fmt.Errorf("%s: a probe asks port %s, which tells no health", path, port))
		}
	}
	if at.name == "sidecar" && c.value("certs") != "" && slices.Contains(c.args, "0.0.0.0") {
		errs = append(errs, fmt.Errorf("%s takes callers by TLS, and its program takes them in plain text at 0.0.0.0", path))
	}
	if at.name == "sidecar" && c.stopped <= c.took("drain")+c.took("grace") {
		errs = append(errs, fmt.Errorf("%s is killed after %v, and may drain for %v and end its process for %v", path, c.stopped, c.took("drain"), c.took("grace")))
	}
	return errs
}

// answersAt says whether the HTTP port of a server has a page for probes.
func answersAt(path string, ready bool) error {
	fine := func(context.Context) error { return nil }
	s := debugvars.Source{Vars: func() any { return 0 }, Healthy: fine}
	if ready {
		s.Ready = fine
	}
	w := httptest.NewRecorder()
	debugvars.Handler(s).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK || w.Body.String() != "ok\n" {
		return fmt.Errorf("%s is not for probes: status %d", path, w.Code)
	}
	return nil
}

// agree says what is wrong with the peers of a recipe's processes: three root peers that all name the
// same three, each at its own transport port, and coordinators that ask these at their gRPC ports.
func agree(lines []*commandLine) (errs []error) {
	peers, grpc, nodes := "", map[string]string{}, map[string]bool{}
	for _, c := range lines {
		if c.set == nil || c.set.Name() != "nokv meta-root" {
			continue
		}
		own := c.set.Lookup("peer").Value.(*peerMap).peers
		if len(own) != 3 {
			errs = append(errs, fmt.Errorf("%s names %d root peers, want 3", c.where, len(own)))
		}
		if said := fmt.Sprint(own); peers == "" {
			peers = said
		} else if peers != said {
			errs = append(errs, fmt.Errorf("%s has other peers: %s, and not %s", c.where, said, peers))
		}
		id := c.value("node-id")
		nodes[id] = true
		for n, addr := range own {
			host, port, _ := net.SplitHostPort(addr)
			if fmt.Sprint(n) != id {
				continue
			}
			if _, at, _ := net.SplitHostPort(c.value("transport-addr")); at != port {
				errs = append(errs, fmt.Errorf("%s: the others reach it at %s, it listens at %s", c.where, addr, c.value("transport-addr")))
			}
			at := cmp.Or(c.value("advertise-addr"), c.value("addr"))
			if named, _, _ := net.SplitHostPort(at); named != host {
				errs = append(errs, fmt.Errorf("%s is %s to the others, and %s to coordinators", c.where, host, named))
			}
			grpc[id] = at
		}
	}
	for id := range 3 {
		if !nodes[fmt.Sprint(id+1)] {
			errs = append(errs, fmt.Errorf("no process is root peer %d", id+1))
		}
	}
	for _, c := range lines {
		if c.set == nil || c.set.Name() != "nokv coordinator" {
			continue
		}
		asks := map[string]string{}
		for n, addr := range c.set.Lookup("root-peer").Value.(*peerMap).peers {
			asks[fmt.Sprint(n)] = addr
		}
		if !maps.Equal(asks, grpc) {
			errs = append(errs, fmt.Errorf("%s asks the root at %v, which is at %v", c.where, asks, grpc))
		}
	}
	return errs
}

// coordinatorsKnown are callers that are told of coordinators that are not there.
func coordinatorsKnown(lines []*commandLine) (errs []error) {
	var there []string
	for _, c := range lines {
		if c.set != nil && c.set.Name() == "nokv coordinator" {
			there = append(there, cmp.Or(c.value("advertise-addr"), c.value("addr")))
		}
	}
	for _, c := range lines {
		for _, addr := range strings.Split(cmp.Or(c.value("coordinator-addr"), c.env["NOKV_COORDINATOR_ADDR"]), ",") {
			if addr != "" && !slices.Contains(there, addr) {
				errs = append(errs, fmt.Errorf("%s asks the coordinator at %s; there are %v", c.where, addr, there))
			}
		}
	}
	return errs
}
