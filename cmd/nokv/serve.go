package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/config"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/debugvars"
)

// serverFlags are the flags that all servers have, and secretFile that of those who
// see keys.
type serverFlags struct {
	addr, metricsAddr, configPath, scope, logLevel, certs *string
	insecure                                              *bool
	secretFile                                            *string
	memory                                                budget.Size
	flags                                                 *flags
}

func (f *flags) server(defaultAddr string) *serverFlags {
	s := f.serving(defaultAddr)
	s.secretFile = f.String("secret-file", "", "`file` of 32 bytes of chance or more, the same for every process: seals the keys that the root keeps (default: they are not sealed)")
	return s
}

// serving is server without what is about keys.
func (f *flags) serving(defaultAddr string) *serverFlags {
	f.withOutput()
	s := &serverFlags{
		flags:       f,
		addr:        f.String("addr", "", "gRPC `address` to listen on (default "+defaultAddr+")"),
		metricsAddr: f.String("metrics-addr", "", "`address` for /debug/vars and /healthz (default none)"),
		configPath:  f.String("config", "", "raft_config.json `file` with addresses and folders; flags win"),
		scope:       f.String("scope", "host", "`host or docker`: which of the file's values"),
		certs:       f.certsFlag(),
		insecure:    f.Bool("insecure", false, "let anybody in: listen without certificates on addresses that other machines reach"),
		logLevel:    f.String("log-level", "info", "`trace, debug, info, warn, error or off`"),
	}
	f.Func("memory-budget", "`bytes` that the process may take, such as 512MiB; half of them are for what callers make it hold (default half of the machine's)", func(text string) error {
		if err := s.memory.UnmarshalText([]byte(text)); err != nil {
			return err
		}
		if s.memory < budget.Minimum {
			return fmt.Errorf("want at least %s", budget.Minimum)
		}
		return nil
	})
	return s
}

// budget is what callers can make the process hold. One that is asked for is also what
// the runtime collects garbage for, unless GOMEMLIMIT says something.
func (s *serverFlags) budget() *budget.Budget {
	if s.memory == 0 {
		return budget.New(budget.Default())
	}
	if s.flags.env.variable("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(s.memory))
	}
	return budget.New(s.memory)
}

// load reads -config when it is set; nil without.
func (s *serverFlags) load() (*config.File, config.Scope, error) {
	scope, err := config.ParseScope(*s.scope)
	if err != nil {
		return nil, "", usagef("%s", err)
	}
	if *s.configPath == "" {
		return nil, scope, nil
	}
	file, err := config.Load(*s.configPath)
	return file, scope, err
}

func (s *serverFlags) logger(e *env, name string) (hclog.Logger, func(), error) {
	level := hclog.LevelFromString(*s.logLevel)
	if level == hclog.NoLevel {
		return nil, nil, usagef("log-level %q: use trace, debug, info, warn, error or off", *s.logLevel)
	}
	sink := newSink(e.stderr)
	logger := hclog.New(&hclog.LoggerOptions{Name: name, Level: level, Output: sink, JSONFormat: s.flags.output == "json"})
	return logger, sink.close, nil
}

// sink passes log lines on without ever blocking who logs: a reader of
// standard error that has stopped costs lines, not service.
type sink struct {
	lines chan []byte
	done  chan struct{}
	mu    sync.Mutex
	// Guarded by mu.
	closed  bool
	dropped int
}

const sinkLines = 1024

func newSink(w io.Writer) *sink {
	s := &sink{lines: make(chan []byte, sinkLines), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for line := range s.lines {
			_, _ = w.Write(line)
		}
	}()
	return s
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return len(p), nil
	}
	line := append([]byte(nil), p...)
	if s.dropped > 0 {
		line = append(fmt.Appendf(nil, "(%d log lines dropped: the reader is slow)\n", s.dropped), line...)
	}
	select {
	case s.lines <- line:
		s.dropped = 0
	default:
		s.dropped++
	}
	return len(p), nil
}

// close writes what is queued, unless the reader has stopped.
func (s *sink) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.lines)
	}
	s.mu.Unlock()
	waitBriefly(s.done)
}

const (
	// serverGC is how much a server's heap may grow before it is collected, in
	// percent of what is live: with millions of regions that is what a server
	// takes, and a region stays below 400 bytes of memory.
	serverGC = 45
	// spareBytes count as live: a heap that is small beside what its calls go
	// through may grow by so much of them more, which is seldom enough.
	spareBytes = 32 << 20
)

// spare is never touched, so that it takes address space and no memory.
var spare []byte

// tuneGC sets serverGC, unless GOGC says something.
func (e *env) tuneGC() {
	if e.variable("GOGC") == "" && spare == nil {
		spare = make([]byte, spareBytes)
		debug.SetGCPercent(serverGC)
	}
}

// listen opens a TCP listener and explains a port in use.
func listen(what, addr string) (net.Listener, error) {
	lis, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: cannot listen on %s: another process does; stop it or choose another address", what, addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s: cannot listen on %s: this machine does not have that address", what, addr)
	case err != nil:
		return nil, fmt.Errorf("%s: cannot listen on %s: %s", what, addr, rootCause(err))
	}
	return lis, nil
}

// checkListen checks the address to listen on and the one that callers are told.
func checkListen(addr, advertise string) error {
	if err := checkAddr(addr); err != nil {
		return usagef("-addr %s", err)
	}
	if advertise == "" {
		if host, _, _ := net.SplitHostPort(addr); host == "" || net.ParseIP(host).IsUnspecified() {
			return usagef("-addr %s listens on every address: say with -advertise-addr which one callers use", addr)
		}
		return nil
	}
	if err := checkAddr(advertise); err != nil {
		return usagef("-advertise-addr %s", err)
	}
	return nil
}

// advertised is the address that callers are told when no flag says another:
// the one asked for, or, when that left the port open, the one that it became.
func advertised(addr string, lis net.Listener) string {
	if _, port, _ := net.SplitHostPort(addr); port == "0" {
		return lis.Addr().String()
	}
	return addr
}

// serveMetrics serves a component's numbers beside run and ends them together.
func serveMetrics(ctx context.Context, lis net.Listener, s debugvars.Source, run func(context.Context) error) error {
	if lis == nil {
		return run(ctx)
	}
	metricsCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- debugvars.Serve(metricsCtx, lis, s) }()
	err := run(ctx)
	stop()
	if merr := <-ended; err == nil {
		err = merr
	}
	return err
}

// randomID is a random number that is not 0.
func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand crashes the process instead
	return binary.LittleEndian.Uint64(b[:]) | 1
}
