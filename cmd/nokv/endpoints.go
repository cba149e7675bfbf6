package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/config"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// devFile is dev.json: where a running `nokv dev` is found. The field names
// are documented and stay.
type devFile struct {
	// Coordinators, RootPeers and Metrics are lists of host:port.
	Coordinators []string `json:"coordinators"`
	RootPeers    []string `json:"root_peers"`
	Metrics      []string `json:"metrics"`
	// Certs is the folder of an operator's certificate; absent without --tls.
	Certs   string `json:"certs,omitempty"`
	Workdir string `json:"workdir"`
	PID     int    `json:"pid"`
	// Workers are the processes of the demo members; absent without --members.
	Workers []devWorker `json:"workers,omitempty"`
}

// devNotes is the folder where each running `nokv dev` of this user is noted,
// whatever its workdir is.
func (e *env) devNotes() string {
	if dir := e.variable("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "nokv")
	}
	return filepath.Join(os.TempDir(), "nokv-"+strconv.Itoa(os.Getuid()))
}

// export is a line of shell, by which other programs find it too.
func (d *devFile) export() string {
	line := "export NOKV_COORDINATOR_ADDR=" + strings.Join(d.Coordinators, ",")
	if d.Certs != "" {
		line += " NOKV_CERTS='" + strings.ReplaceAll(d.Certs, "'", `'\''`) + "'"
	}
	return line
}

// runningDev is the `nokv dev` of this user that started last; nil when none
// runs. Notes of processes that were killed are taken away: a name is used once, so
// that the note of another process is never taken instead.
func (e *env) runningDev() *devFile {
	var newest *devFile
	var since time.Time
	if ownFolder(e.devNotes()) != nil {
		return nil
	}
	names, _ := filepath.Glob(filepath.Join(e.devNotes(), "dev-*.json"))
	for _, name := range names {
		info, err := os.Lstat(name)
		if err != nil {
			continue
		}
		d, running := readNote(name)
		if !running {
			_ = os.Remove(name)
		}
		if d != nil && (newest == nil || info.ModTime().After(since)) {
			newest, since = d, info.ModTime()
		}
	}
	return newest
}

// ownFolder returns why a folder is not this user's alone: what stands in it, and what becomes of it, would be
// another one's word.
func ownFolder(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that only this user can write: remove it, or set XDG_RUNTIME_DIR", path)
	}
	return nil
}

// writeWhole makes a file of JSON, whole or not at all.
func writeWhole(path string, content any) error {
	f, err := writeLocked(path, content)
	if err != nil {
		return err
	}
	return f.Close()
}

// writeLocked makes a file of JSON, whole or not at all, and returns it locked. The
// lock ends with the file, and with the process however that ends: it tells readers
// that what the file says is still so, which a process id cannot tell that the system
// has given to another process meanwhile.
func writeLocked(path string, content any) (_ *os.File, err error) {
	raw, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			_ = f.Close()
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if _, err := f.Write(append(raw, '\n')); err != nil {
		return nil, err
	}
	return f, os.Rename(f.Name(), path)
}

// readDevFile returns nil when no `nokv dev` runs that wrote the file.
func readDevFile(path string) *devFile {
	d, _ := readNote(path)
	return d
}

// readNote reads where a `nokv dev` is, nil when that cannot be known, and says whether it runs.
func readNote(path string) (_ *devFile, running bool) {
	// What is no file of this user's is not followed, and not waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, false
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Getuid() {
		return nil, false // somebody else's: its addresses are not to be trusted
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false // its writer has ended: nothing else holds the lock of readers up
	}
	var d devFile
	if json.NewDecoder(f).Decode(&d) != nil || len(d.Coordinators) == 0 {
		return nil, true
	}
	return &d, true
}

// endpointFlags say where coordinators are, and who asks them.
type endpointFlags struct {
	env         *env
	addr, certs *string
}

func (f *flags) endpoints() endpointFlags {
	return endpointFlags{
		env: f.env,
		addr: f.String("coordinator-addr", "", "coordinator `addresses` host:port[,host:port...] "+
			"(default: NOKV_COORDINATOR_ADDR, a running `nokv dev`, "+config.DefaultCoordinatorAddr+")"),
		certs: f.certsFlag(),
	}
}

// target is where processes are and how they are talked to.
type target struct {
	addrs []string
	certs *mtls.Source
	// hint is for the case that nobody is there.
	hint string
}

// resolve finds the coordinators: the flag, the environment, a running `nokv
// dev`, the documented port.
func (f endpointFlags) resolve(logger hclog.Logger) (t target, err error) {
	certs := *f.certs
	if named := f.env.variable("NOKV_COORDINATOR_ADDR"); *f.addr != "" {
		t.hint = "That is what --coordinator-addr says"
		t.addrs, err = splitAddrs("--coordinator-addr", *f.addr)
	} else if named != "" {
		t.hint = "That is what NOKV_COORDINATOR_ADDR says"
		t.addrs, err = splitAddrs("NOKV_COORDINATOR_ADDR", named)
	} else if d := f.env.runningDev(); d != nil {
		t.addrs, certs = d.Coordinators, d.certificates(f.env, certs)
		t.hint = fmt.Sprintf("That is where `nokv dev` with process id %d should be", d.PID)
	} else {
		t.addrs = []string{config.DefaultCoordinatorAddr}
		t.hint = "Start a cluster with `nokv dev`, or say where one is with --coordinator-addr or NOKV_COORDINATOR_ADDR"
	}
	if err == nil {
		t.certs, err = f.env.certificates(certs, logger)
	}
	return t, err
}

// certificates is the folder that a command uses which finds d by itself.
func (d *devFile) certificates(e *env, flagValue string) string {
	if flagValue == "" && e.variable("NOKV_CERTS") == "" {
		return d.Certs
	}
	return flagValue
}

// resolve finds the root peers that the root commands talk to: the flag, those of the
// coordinators that the environment names, a running `nokv dev`, the documented ports.
func (r *rootFlags) resolve(ctx context.Context) (map[uint64]string, *mtls.Source, error) {
	peers, dir, named := r.peers.peers, *r.certs, r.env.variable("NOKV_COORDINATOR_ADDR")
	if len(peers) == 0 && named == "" {
		addrs := []string{"127.0.0.1:2380", "127.0.0.1:2381", "127.0.0.1:2382"}
		if d := r.env.runningDev(); d != nil {
			addrs, dir = d.RootPeers, d.certificates(r.env, dir)
		}
		peers = make(map[uint64]string, len(addrs))
		for i, a := range addrs {
			peers[uint64(i)+1] = a
		}
	}
	certs, err := r.env.certificates(dir, r.env.logger(*r.verbose))
	if err == nil && len(peers) == 0 {
		peers, err = r.peersOf(ctx, named, certs)
		r.peers.peers = peers // which are asked for once
	}
	return peers, certs, err
}

// peersOf are the root peers of the cluster of coordinators.
func (r *rootFlags) peersOf(ctx context.Context, named string, certs *mtls.Source) (map[uint64]string, error) {
	addrs, err := splitAddrs("NOKV_COORDINATOR_ADDR", named)
	if err != nil {
		return nil, err
	}
	cl, err := client.New(client.Config{Endpoints: addrs, TLS: certs, DefaultTimeout: 5 * time.Second, Logger: r.env.logger(*r.verbose)})
	if err != nil {
		return nil, usagef("%s", err)
	}
	defer cl.Close()
	t := target{addrs, certs, "That is what NOKV_COORDINATOR_ADDR says, and where root peers are was to be asked there: say it with --root-peer ID=ADDR"}
	if err := t.letsIn(ctx, principal.Coordinator, patience); err != nil {
		return nil, err
	}
	s, err := cl.Status(ctx, "")
	if err != nil {
		return nil, err
	}
	peers := make(map[uint64]string, len(s.GetRootPeers()))
	for _, p := range s.GetRootPeers() {
		if !state.WasReplaced(s.GetCluster(), p.GetNodeId()) {
			peers[p.GetNodeId()] = p.GetAddress()
		}
	}
	return peers, nil
}

func splitAddrs(what, s string) ([]string, error) {
	var addrs []string
	for a := range strings.SplitSeq(s, ",") {
		a = strings.TrimSpace(a)
		if err := checkAddr(a); err != nil {
			return nil, usagef("%s %s", what, err)
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: want HOST:PORT", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is not a number below 65536", addr, port)
	}
	if strings.ContainsAny(host, " /") {
		return fmt.Errorf("%q: host %q has a space or a slash", addr, host)
	}
	return nil
}
