package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

// A power cut is real as far as one machine can have it: each root peer's folder
// is an ext4 file system of its own in a loop device; it is shut down without
// writing its journal, the process is killed, and the file system is mounted
// again, which replays what had reached the device.

// powerCut is the kind whose schedules need disks of their own.
const powerCut = "power-cut"

// movesWorkdirs are kinds that rename folders, which a mounted one cannot be.
var movesWorkdirs = []string{"missing-workdir", "read-only-workdir", "swapped-workdirs"}

// has says whether a schedule has a fault of one of the kinds.
func (s *schedule) has(kinds ...string) bool {
	return slices.ContainsFunc(s.episodes, func(e episode) bool {
		return slices.ContainsFunc(e.faults, func(f fault) bool { return slices.Contains(kinds, f.kind) })
	})
}

// diskBytes is room for a few segments of the log.
const diskBytes = 160 << 20

// command runs a tool of the system.
func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (r *run) image(m int) string { return filepath.Join(r.c.Dir, rootPlace(m)+".ext4") }

// giveDisks puts each root peer's folder on a file system of its own.
func (r *run) giveDisks() error {
	if os.Getuid() != 0 {
		return errors.New("a loop device needs root")
	}
	for m := range roots {
		f, err := os.Create(r.image(m))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(diskBytes), f.Close()); err != nil {
			return err
		}
		if err := command("mkfs.ext4", "-q", "-F", r.image(m)); err != nil {
			return err
		}
		dir := r.c.Workdir(m)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := r.mount(m); err != nil {
			return err
		}
		r.t.Cleanup(func() {
			if r.c.Process(m) != nil {
				r.c.kill(m)
			}
			if err := syscall.Unmount(dir, 0); err != nil {
				r.t.Errorf("unmount %s: %v", dir, err)
			}
		})
		if err := os.Remove(filepath.Join(dir, "lost+found")); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) mount(m int) error { return command("mount", "-o", "loop", r.image(m), r.c.Workdir(m)) }

// The ioctl that shuts a file system down, and its way that loses the journal.
const (
	ioctlShutdown     = 0x8004587d
	withoutTheJournal = uint32(2)
)

func shutdown(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	how := withoutTheJournal
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), ioctlShutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		return fmt.Errorf("shut %s down: %w", dir, errno)
	}
	return nil
}

// beginPowerCut takes the power from one root peer, from two, or from all.
func beginPowerCut(r *run, f fault) *active {
	if r.noDisks != nil {
		return &active{skipped: r.noDisks.Error()}
	}
	var victims []int
	switch f.target {
	case "all":
		victims = []int{0, 1, 2}
	case "two":
		victims = r.both("leader", "follower")
	default:
		victims = []int{r.c.find(f.target)}
	}
	// All at the same moment, as far as three calls are one.
	for _, m := range victims {
		if err := shutdown(r.c.Workdir(m)); err != nil {
			r.t.Fatal(err)
		}
	}
	lost := 0
	for _, m := range victims {
		r.c.kill(m)
		if err := syscall.Unmount(r.c.Workdir(m), 0); err != nil {
			r.t.Fatalf("unmount: %v", err)
		}
		out, err := exec.Command("dumpe2fs", "-h", r.image(m)).CombinedOutput()
		if err != nil {
			r.t.Fatalf("dumpe2fs: %v: %s", err, out)
		}
		if strings.Contains(string(out), "needs_recovery") {
			lost++
		}
		if err := r.mount(m); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.down(victims, func() error {
		if lost != len(victims) {
			return fmt.Errorf("%d of %d file systems had a journal to replay", lost, len(victims))
		}
		return nil
	})
}
