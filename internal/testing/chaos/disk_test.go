package chaos

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// injection is strace attached to a process, changing what the kernel answers.
type injection struct {
	cmd *exec.Cmd
	log string
}

// inject attaches strace to a member; an error says why it cannot.
func (r *run) inject(member int, calls, what string) (*injection, error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return nil, err
	}
	in := &injection{log: filepath.Join(r.t.TempDir(), "strace")}
	in.cmd = exec.Command(strace, "-f", "-ttt", "-p", strconv.Itoa(r.c.Process(member).PID()), "-o", in.log, "-e", "trace="+calls, "-e", "inject="+calls+":"+what)
	in.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := in.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := in.cmd.Start(); err != nil {
		return nil, err
	}
	r.t.Cleanup(in.detach)
	said := make([]byte, 512)
	if n, _ := pipe.Read(said); !strings.Contains(string(said[:n]), "attached") {
		in.detach()
		return nil, fmt.Errorf("strace cannot attach: %s", said[:n])
	}
	return in, nil
}

// detach ends the injection; the process goes on.
func (in *injection) detach() {
	if in.cmd.ProcessState == nil {
		_ = in.cmd.Process.Signal(syscall.SIGINT)
		_ = in.cmd.Wait()
	}
}

var injected = regexp.MustCompile(`(?m)^\d+ +(\d+\.\d+) .*\((?:INJECTED|DELAYED)\)`)

// times are when a call was answered by strace.
func (in *injection) times() (all []time.Time) {
	raw, err := os.ReadFile(in.log)
	if err != nil {
		return nil
	}
	for _, m := range injected.FindAllSubmatch(raw, -1) {
		if seconds, err := strconv.ParseFloat(string(m[1]), 64); err == nil {
			all = append(all, time.UnixMicro(int64(seconds*1e6)))
		}
	}
	return all
}

const (
	syncCalls  = "fdatasync,fsync"
	writeCalls = "pwrite64,fallocate,ftruncate"
)

func beginFsyncError(r *run, f fault) *active {
	return r.failStorage(f, syncCalls, "error=EIO:when=1+", "input/output error")
}

func beginDiskFull(r *run, f fault) *active {
	return r.failStorage(f, writeCalls, "error=ENOSPC:when=1+", "no space left on device")
}

// failStorage has the kernel refuse calls of a root peer: it ends within a
// second, with an error that names the reason, and comes back on the same folder.
func (r *run) failStorage(f fault, calls, what, words string) *active {
	m := r.c.find(f.target)
	p := r.c.Process(m)
	from := len(p.Log())
	in, err := r.inject(m, calls, what)
	if err != nil {
		return &active{skipped: err.Error()}
	}
	code := p.Wait(patience)
	gone := time.Now()
	r.c.left(m)
	in.detach()
	times := in.times()
	a := r.down([]int{m}, func() error {
		if len(times) == 0 {
			return errors.New("no call was made to fail")
		}
		return nil
	})
	if len(times) > 0 {
		r.e.mu.Lock()
		r.e.failed = append(r.e.failed, failStop{
			name: place(m), fault: f.kind, lived: gone.Sub(times[0]), code: code, said: strings.Contains(p.Log()[from:], words),
		})
		r.e.mu.Unlock()
	}
	return a
}

// beginFsyncSlow makes every fsync of a root peer take a part of the fault's time.
func beginFsyncSlow(r *run, f fault) *active {
	m := r.c.find(f.target)
	in, err := r.inject(m, syncCalls, fmt.Sprintf("delay_enter=%d", (f.lasts/3).Microseconds()))
	if err != nil {
		return &active{skipped: err.Error()}
	}
	fired := func() error {
		if len(in.times()) == 0 {
			return errors.New("no fsync was made to wait")
		}
		return nil
	}
	return &active{victims: []int{m}, seen: fired, end: in.detach, fired: fired}
}

// refusedStart starts a root peer that must not start; what it wrote, "" when it
// did not end with exit status 1.
func (r *run) refusedStart(m int) string {
	p := r.c.Start(m)
	from := len(p.Log())
	if code := p.Wait(patience); code != 1 {
		r.t.Errorf("%s: exit status %d, want 1", place(m), code)
	}
	log := p.Log()
	return log[min(from, len(log)):]
}

// wantWords checks that a refusal names what is wrong.
func (r *run) wantWords(what, said string, words ...string) {
	for _, w := range words {
		if !strings.Contains(said, w) {
			r.t.Errorf("%s: the message does not say %q:\n%s", what, w, said)
		}
	}
}

// span is a part of a file.
type span struct{ begin, end int }

// segment is the newest log file of a root peer that was written to, and where its
// frames are: behind them, and in a file prepared for use, may be what is left of a
// former use.
func (r *run) segment(m int) (path string, raw []byte, frames []span) {
	r.t.Helper()
	all, err := filepath.Glob(filepath.Join(r.c.Workdir(m), "root.events.wal", "*.wal"))
	if err != nil || len(all) == 0 {
		r.t.Fatalf("%s has no log: %v", place(m), err)
	}
	for i := len(all) - 1; i >= 0; i-- {
		if raw, err = os.ReadFile(all[i]); err != nil {
			r.t.Fatal(err)
		}
		for next := sector; next+sector <= len(raw) && bytes.Equal(raw[next+saltAt:next+saltAt+8], raw[useAt:useAt+8]); {
			end := next + frameHeader + int(binary.LittleEndian.Uint32(raw[next:]))
			frames = append(frames, span{next, end})
			next = (end + sector - 1) / sector * sector
		}
		if len(frames) > 0 {
			return all[i], raw, frames
		}
	}
	r.t.Fatalf("%s has an empty log", place(m))
	return "", nil, nil
}

// The log's frames begin at sectors, with their length, and say at numberAt which
// they are and at saltAt which use of the segment they are of, which is at useAt of
// the file.
const (
	sector      = 512
	numberAt    = 8
	saltAt      = 16
	useAt       = 40
	frameHeader = 36
)

// overwrite puts bytes into a file.
func (r *run) overwrite(path string, at int, b []byte) {
	r.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, int64(at)); err != nil {
		r.t.Fatal(err)
	}
}

// beginTorn leaves a piece of a record behind the log of a killed peer, which
// cuts it off and goes on.
func beginTorn(r *run, f fault) *active {
	m := r.c.find(f.target)
	a := r.killNow(m)
	path, raw, frames := r.segment(m)
	end := frames[len(frames)-1].end
	garbage := make([]byte, 40+r.rng.IntN(3*sector))
	for i := range garbage {
		garbage[i] = byte(1 + r.rng.IntN(255))
	}
	// It is of this use of the segment, as the first frame is.
	copy(garbage[saltAt:], raw[sector+saltAt:sector+saltAt+8])
	r.overwrite(path, (end+sector-1)/sector*sector, garbage)
	from := len(r.c.Process(m).Log())
	fired := a.fired
	a.fired = func() error {
		if err := r.healthyWithin(m, patience); err != nil {
			r.t.Errorf("a torn tail: %v", err)
		}
		if log := r.c.Process(m).Log(); !strings.Contains(log[min(from, len(log)):], "cutting off an append") {
			return errors.New("the peer found no torn tail")
		}
		return fired()
	}
	return a
}

// beginBitFlip turns one bit of a killed peer's log over: it does not start and
// names the file and the offset, and starts when the bit is right again.
func beginBitFlip(r *run, f fault) *active {
	m := r.c.find(f.target)
	a := r.killNow(m)
	path, raw, frames := r.segment(m)
	must := []span{{0, useAt + 8}} // the segment's header
	number := func(i int) []byte { return raw[frames[i].begin+numberAt:][:8] }
	for i, f := range frames[:len(frames)-1] {
		// The last frame may be torn; of one that a start wrote again either copy counts.
		if !bytes.Equal(number(i), number(i+1)) && (i == 0 || !bytes.Equal(number(i), number(i-1))) {
			must = append(must, f)
		}
	}
	damaged := must[r.rng.IntN(len(must))]
	at := damaged.begin + r.rng.IntN(damaged.end-damaged.begin)
	whole := raw[at]
	r.overwrite(path, at, []byte{whole ^ 1<<r.rng.IntN(8)})
	r.wantWords("a flipped bit at "+strconv.Itoa(at), r.refusedStart(m), "damage in "+path, "at offset")
	r.overwrite(path, at, []byte{whole})
	return a
}

func (r *run) rename(from, to string) {
	r.t.Helper()
	if err := os.Rename(from, to); err != nil {
		r.t.Fatal(err)
	}
}

// beginMissingWorkdir starts a peer without its folder: the others refuse it.
func beginMissingWorkdir(r *run, f fault) *active {
	m := r.c.find(f.target)
	a := r.killNow(m)
	dir, aside := r.c.Workdir(m), filepath.Join(r.c.Dir, "aside")
	r.rename(dir, aside)
	r.c.net.Open(place(m)) // or it would not be told why
	r.wantWords("a missing workdir", r.refusedStart(m), fmt.Sprintf("root peer %d", m+1), "wiped", "Restore the old workdir, or replace the peer")
	r.c.net.Close(place(m))
	if err := os.RemoveAll(dir); err != nil {
		r.t.Fatal(err)
	}
	r.rename(aside, dir)
	return a
}

// beginReadOnlyWorkdir starts a peer on a folder that it may not write.
func beginReadOnlyWorkdir(r *run, f fault) *active {
	m := r.c.find(f.target)
	dir := r.c.Workdir(m)
	protect, release := chmodReadOnly, chmodBack
	if os.Getuid() == 0 {
		protect, release = mountReadOnly, unmount
	}
	a := r.killNow(m)
	if err := protect(dir); err != nil {
		_ = release(dir)
		a.skipped = err.Error()
		return a
	}
	r.wantWords("a read-only workdir", r.refusedStart(m), dir)
	if err := release(dir); err != nil {
		r.t.Fatal(err)
	}
	return a
}

func chmodReadOnly(dir string) error { return os.Chmod(dir, 0o500) }
func chmodBack(dir string) error     { return os.Chmod(dir, 0o700) }

func mountReadOnly(dir string) error {
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount: %w", err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("remount read-only: %w", err)
	}
	return nil
}

func unmount(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }

// beginSwappedWorkdirs starts two peers on each other's folder: both refuse and
// name both peers.
func beginSwappedWorkdirs(r *run, _ fault) *active {
	m, other := r.c.pair("follower", "other")
	a := r.killNow(m, other)
	swap := func() {
		aside := filepath.Join(r.c.Dir, "aside")
		r.rename(r.c.Workdir(m), aside)
		r.rename(r.c.Workdir(other), r.c.Workdir(m))
		r.rename(aside, r.c.Workdir(other))
	}
	swap()
	for _, x := range []int{m, other} {
		r.wantWords("another peer's workdir", r.refusedStart(x), fmt.Sprintf("root peer %d", m+1), fmt.Sprintf("root peer %d", other+1), "its own workdir")
	}
	swap()
	return a
}

// beginWorkdirInUse starts a second process on the folder of a peer that runs.
func beginWorkdirInUse(r *run, f fault) *active {
	m := r.c.find(f.target)
	first := r.c.Process(m)
	said, code := r.second(m)
	r.wantWords("two processes on one workdir", said, "in use", r.c.Workdir(m))
	return &active{victims: []int{m}, end: func() {}, fired: func() error {
		if code != 1 || !first.Running() {
			r.t.Errorf("two processes on the workdir of %s: the second ended with exit status %d, the first is there: %v", place(m), code, first.Running())
		}
		return nil
	}}
}

// second runs a second process on a root peer's folder, with ports of its own.
func (r *run) second(m int) (said string, code int) {
	args := r.c.commandLine(m)
	addrs := proctest.Addrs(r.t, 3)
	args = append(args, "-addr", addrs[0], "-metrics-addr", addrs[1], "-transport-addr", addrs[2])
	result := proctest.Run(r.t, r.c.Options("second", args...))
	return result.Stderr, result.Code
}
