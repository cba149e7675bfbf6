package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/sidecar"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/rooted"
)

func sidecarCommand() *command {
	return &command{
		name: "sidecar", args: "--id NAME --address HOST:PORT [flags] [-- COMMAND...]", summary: "make a process in any language a member: run it, ask it by JSON, tell when it ends",
		long: `
COMMAND serves callers at --address, and says yes to GET /nokv/ready when it does. From
then on it is a member: it is asked to acquire and release regions, by POST /nokv/acquire
and so on, as docs/callers.md has them; that it has ended is told to coordinators at once.

  nokv sidecar --keyspace games --id g1 --address 127.0.0.1:9001 -- python3 counter.py 9001

With --certs callers come to this process, at --listen, by certificates of the cluster: it
ends TLS, and passes their requests on to COMMAND on loopback, with who asks in Nokv-Caller.

A process that cannot listen asks for its calls instead, with --poll. COMMAND finds the port
that it asks in NOKV_SIDECAR_URL, and what guards both in NOKV_SIDECAR_TOKEN; its name and
address are in NOKV_MEMBER_ID and NOKV_MEMBER_ADDRESS.

Ctrl-C or SIGTERM gives the regions to others, for --drain at most, and then passes SIGTERM
on; a second one ends all at once. SIGHUP, SIGUSR1 and SIGUSR2 are passed on at once. The exit status is that of COMMAND,
128 and the signal's number if one ended it. It is never started again. When this process is
killed COMMAND is too, with what it started in its group.

Without COMMAND the process runs already, --app says where it is asked, and NOKV_SIDECAR_TOKEN
is set for both. It is not ended, and never said to be dead: when its port is closed, when it
hangs, and when this process is killed, coordinators know of it by its silence.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			s := &sidecarFlags{flags: f, labels: map[string]string{}}
			f.StringVar(&s.id, "id", "", "`name` of the member, the same after a restart (required)")
			f.StringVar(&s.address, "address", "", "`host:port` where callers reach the process (required)")
			f.keyspaces(&s.keyspaces)
			f.StringVar(&s.listen, "listen", "", "`host:port` at which this process takes callers by its certificates, and ends TLS for the other one; none: that one has TLS of its own (default with certificates: --address)")
			f.StringVar(&s.app, "app", "", "`URL` where the process is asked, http://127.0.0.1:PORT (default: the port of --address, on loopback)")
			f.BoolVar(&s.poll, "poll", false, "the process cannot listen: it asks for its calls")
			f.StringVar(&s.control, "control", "127.0.0.1:0", "`address` of the port that the process asks; port 0 takes a free one")
			f.StringVar(&s.probe, "probe-address", "", "`host:port` that this process listens at, so that coordinators see at once when it has died: of an IP address of its own, in a pod the pod's; none: nowhere (default: a free port of the host of --address)")
			f.StringVar(&s.kind, "kind", "worker", "`word` for what it is")
			f.Uint64Var(&s.capacity, "capacity", 0, "`share` of load it can take, relative to others; 0 counts as 1, 1,000,000 at most")
			f.label(s.labels, "`NAME=VALUE`; repeat for more")
			s.ready = f.duration("ready", 30*time.Second, "`time` that the process has to get ready")
			s.late = f.duration("timeout", 30*time.Second, "`time` after which a call that has no answer is shown as late")
			s.hang = f.duration("hang", 10*time.Second, "`time` after which a process that answers nothing is ended; 0: never")
			s.drain = f.duration("drain", 10*time.Second, "`time` that others have to take the regions when this process ends")
			s.grace = f.duration("grace", 10*time.Second, "`time` that the process has to end behind SIGTERM, before it is killed")
			f.BoolVar(&s.insecure, "insecure", false, "allow --app and --control that are not on loopback")
			f.BoolVar(&s.unseen, "no-address-check", false, "join also when nobody can be reached at --address from here")
			f.StringVar(&s.level, "log-level", "warn", "`trace, debug, info, warn, error or off`")
			s.ends = f.endpoints()
			f.withOutput()
			return s.run
		},
	}
}

// sidecarFlags is nokv sidecar.
type sidecarFlags struct {
	flags                                                 *flags
	id, address, listen, app, control, probe, kind, level string
	keyspaces                                             []string
	labels                                                map[string]string
	capacity                                              uint64
	poll, insecure, unseen                                bool
	ready, late, hang, drain, grace                       *time.Duration
	ends                                                  endpointFlags
}

// sidecarToken is what guards both ports where nobody makes one.
const sidecarToken = "NOKV_SIDECAR_TOKEN"

func (s *sidecarFlags) check(command []string) error {
	switch host, port, _ := net.SplitHostPort(s.address); {
	case s.id == "" || !isName(s.id):
		return usagef("--id %q: want a name without spaces, the same after a restart", s.id)
	case checkAddr(s.address) != nil:
		return usagef("--address %s", checkAddr(s.address))
	case host == "" || net.ParseIP(host).IsUnspecified() || port == "0":
		return usagef("--address %s: want the host and the port at which callers reach the process", s.address)
	case s.poll && s.app != "":
		return usagef("--poll means that the process asks, and --app where it is asked: leave out one of them")
	case len(command) == 0 && !s.poll && s.app == "":
		return usagef("say what to run, behind --, or with --app where a process that runs is asked")
	case len(command) == 0 && s.flags.env.variable(sidecarToken) == "":
		return usagef("set %s here and for the process that runs already: openssl rand -hex 32 makes one", sidecarToken)
	case s.flags.env.variable(sidecarToken) != "" && len(s.flags.env.variable(sidecarToken)) < 16:
		return usagef("%s has %d characters, which can be guessed: openssl rand -hex 32 makes one", sidecarToken, len(s.flags.env.variable(sidecarToken)))
	case len(command) == 0 && s.probe != "" && s.probe != "none":
		return usagef("--probe-address is closed when the process has ended, which nobody knows of one that this command does not run: leave it out")
	case len(command) == 0 && s.poll && *s.hang == 0:
		return usagef("--hang 0: a process that runs already and polls is known by its polls alone")
	case checkAddr(s.control) != nil && !strings.HasSuffix(s.control, ":0"):
		return usagef("--control %s", checkAddr(s.control))
	case !s.insecure && !loopback(s.control):
		return usagef("--control %s can be reached from other machines, and what it says and takes is not encrypted: use 127.0.0.1, or allow it with --insecure", s.control)
	case *s.ready == 0 || *s.late == 0 || *s.drain == 0 || *s.grace == 0:
		return usagef("--ready, --timeout, --drain and --grace: want more than 0")
	case s.capacity > rooted.MaxCapacity:
		return usagef("--capacity %d: want %d at most", s.capacity, rooted.MaxCapacity)
	case hclog.LevelFromString(s.level) == hclog.NoLevel:
		return usagef("log-level %q: use trace, debug, info, warn, error or off", s.level)
	case s.app != "":
		if err := sidecar.CheckApp(s.app, s.insecure); err != nil {
			return usagef("--app %s", err)
		}
	}
	return nil
}

// serve is where this process takes callers; empty: nowhere. One port of this machine has room for one of the two.
func (s *sidecarFlags) serve(certs *mtls.Source) (string, error) {
	serve := cmp.Or(s.listen, s.address)
	switch {
	case certs == nil && s.listen != "" && s.listen != "none":
		return "", usagef("--listen %s is where this process takes callers by its certificates, and it has none: give it some with --certs DIR (nokv cert --help)", s.listen)
	case certs == nil || s.listen == "none":
		return "", nil
	case checkAddr(serve) != nil:
		return "", usagef("--listen %s", checkAddr(serve))
	}
	host, port, _ := net.SplitHostPort(serve)
	ownHost, own := "127.0.0.1", port // of the other process
	if s.app != "" {
		at, _, _ := strings.Cut(strings.TrimPrefix(s.app, "http://"), "/")
		ownHost, own, _ = net.SplitHostPort(at)
	}
	if port == own && (host == "" || host == ownHost || host == "localhost" || net.ParseIP(host).IsUnspecified()) {
		return "", usagef("with certificates callers come to this process at %s, where the other one cannot listen then: have it listen at another port of 127.0.0.1, and say so with --app http://127.0.0.1:PORT", serve)
	}
	return serve, nil
}

// probeAddress is where this process listens for probes; empty: nowhere.
func (s *sidecarFlags) probeAddress(command []string) string {
	switch {
	case len(command) == 0 || s.probe == "none":
		return ""
	case s.probe != "":
		return s.probe
	}
	host, _, _ := net.SplitHostPort(s.address)
	return net.JoinHostPort(host, "0")
}

func (s *sidecarFlags) run(ctx context.Context, e *env, command []string) error {
	if err := s.check(command); err != nil {
		return err
	}
	errs := newSink(e.stderr)
	defer errs.close()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nokv", Level: hclog.LevelFromString(s.level), Output: errs, JSONFormat: e.output == "json"})
	t, err := s.ends.resolve(logger)
	if err != nil {
		return err
	}
	if t.certs != nil {
		if who := t.certs.Principal(); who.Role != principal.Member || who.Name != s.id {
			return usagef("the certificate in %s is that of %s, not of member/%s: nokv cert issue --role member --name %s makes one", t.certs.Dir(), who, s.id, s.id)
		}
	}
	serve, err := s.serve(t.certs)
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{Endpoints: t.addrs, TLS: t.certs, Logger: logger.Named("client")})
	if err != nil {
		return usagef("%s", err)
	}
	defer c.Close()
	err = sidecar.Run(ctx, sidecar.Config{
		Command: command, Stdin: os.Stdin, Stdout: e.stdout, Stderr: e.stderr,
		App: s.app, Poll: s.poll, Serve: serve, Control: s.control, Token: s.flags.env.variable(sidecarToken), Anywhere: s.insecure,
		Ready: *s.ready, Hang: *s.hang, Drain: *s.drain, Grace: *s.grace, Reach: !s.unseen,
		Member: member.Config{
			ID: s.id, Address: s.address, ProbeAddress: s.probeAddress(command), Labels: s.labels, Capacity: s.capacity, Kind: s.kind,
			Keyspaces: s.keyspaces, Client: c, TLS: t.certs, HandlerTimeout: *s.late, Logger: logger,
		},
		Logger: logger.Named("sidecar"),
	})
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		err = fmt.Errorf("%w: this machine does not have the address: say with --probe-address at which of its IP addresses coordinators reach this process, or none", err)
	}
	return err
}
