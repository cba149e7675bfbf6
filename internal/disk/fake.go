package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"sync"
	"syscall"
)

// SectorBytes is what a Fake keeps, loses or spoils as one piece.
const SectorBytes = 512

// ErrCrashed is what a Fake and its open files return from a crash on.
var ErrCrashed = errors.New("disk: crashed")

// OpKind names an operation of a Fake.
type OpKind string

// The operations of a Fake. The first group changes nothing on the disk.
const (
	OpRead    OpKind = "read"
	OpReadDir OpKind = "readdir"
	OpStat    OpKind = "stat"
	OpOpen    OpKind = "open"
	OpLock    OpKind = "lock"

	OpCreate  OpKind = "create"
	OpWrite   OpKind = "write"
	OpSync    OpKind = "sync"
	OpRename  OpKind = "rename"
	OpRemove  OpKind = "remove"
	OpMkdir   OpKind = "mkdir"
	OpSyncDir OpKind = "syncdir"
	OpPut     OpKind = "put"
)

// Changes says whether the operation can change what is on the disk.
func (k OpKind) Changes() bool {
	switch k {
	case OpRead, OpReadDir, OpStat, OpOpen, OpLock:
		return false
	}
	return true
}

// Op is one operation on a Fake, as seen by its fault hook and its trace.
type Op struct {
	// N counts operations from 1.
	N    int
	Kind OpKind
	Name string
	// To is the new name of a rename.
	To string
	// Off and Len are the byte range of a read or write.
	Off, Len int64
}

// String shows the operation as a line of a trace.
func (o Op) String() string {
	switch o.Kind {
	case OpRead, OpWrite:
		return fmt.Sprintf("%s %s [%d, %d)", o.Kind, o.Name, o.Off, o.Off+o.Len)
	case OpRename:
		return fmt.Sprintf("%s %s -> %s", o.Kind, o.Name, o.To)
	}
	return fmt.Sprintf("%s %s", o.Kind, o.Name)
}

// Fault is what happens to one operation. The zero value: nothing special.
type Fault struct {
	// Err is returned by the operation.
	Err error
	// Effect: the operation took place before Err is returned or the crash.
	Effect bool
	// Short, for writes with Err: so many bytes were written.
	Short int64
	// Crash: from here on everything returns ErrCrashed until Reboot or Kill.
	Crash bool
}

// Fake is a file system in memory that behaves as badly as real ones may.
//
// Per file it holds durable bytes and writes that were not synced, split at
// SectorBytes; per directory durable names and changes that were not synced.
// Reboot keeps, loses or spoils each of them by chance. A sync that fails
// drops what it should have made durable and marks it clean: a later sync
// succeeds and does not bring it back. All chance comes from the seed.
type Fake struct {
	mu       sync.Mutex
	rng      *rand.Rand
	root     *node
	boot     int
	crashed  bool
	ops      int
	trace    []Op
	tracing  bool
	fault    func(Op) Fault
	locks    map[*node]bool
	capacity int64
	used     int64
}

// NewFake makes an empty disk.
func NewFake(seed uint64) *Fake {
	return &Fake{
		rng:   rand.New(rand.NewPCG(seed, 0x5eed)),
		root:  newDir(),
		locks: map[*node]bool{},
	}
}

// SetFault sets a hook that is asked before each operation; nil removes it.
// The hook may sleep, and must not use the Fake.
func (f *Fake) SetFault(hook func(Op) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = hook
}

// SetCapacity limits the bytes of all files; growing beyond it is ENOSPC. 0:
// no limit.
func (f *Fake) SetCapacity(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = bytes
}

// Room is what SetCapacity leaves; without a capacity it is more than anybody uses.
func (f *Fake) Room(string) (Room, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.capacity == 0 {
		return Room{Free: 1 << 60, Total: 1 << 60}, nil
	}
	return Room{Free: uint64(max(f.capacity-f.used, 0)), Total: uint64(f.capacity)}, nil
}

// SetTrace begins a new trace, or ends tracing.
func (f *Fake) SetTrace(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tracing, f.trace = on, nil
}

// Trace returns the operations since SetTrace.
func (f *Fake) Trace() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Op(nil), f.trace...)
}

// Ops returns the number of operations so far.
func (f *Fake) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// step counts an operation and asks the hook about it. It returns with the
// mutex held; the caller unlocks.
func (f *Fake) stepLocked(boot int, op Op) (Fault, error) {
	if f.crashed || boot != f.boot {
		return Fault{}, ErrCrashed
	}
	f.ops++
	op.N = f.ops
	if f.tracing {
		f.trace = append(f.trace, op)
	}
	if f.fault == nil {
		return Fault{}, nil
	}
	hook := f.fault
	f.mu.Unlock()
	fault := hook(op)
	f.mu.Lock()
	if f.crashed || boot != f.boot {
		return Fault{}, ErrCrashed
	}
	if fault.Crash {
		f.crashed = true
		fault.Err = ErrCrashed
	}
	return fault, nil
}

// do runs an operation under its fault.
func (f *Fake) do(boot int, op Op, effect func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.doLocked(boot, op, effect)
}

func (f *Fake) doLocked(boot int, op Op, effect func() error) error {
	fault, err := f.stepLocked(boot, op)
	if err != nil {
		return err
	}
	if fault.Err == nil || fault.Effect {
		if err := effect(); err != nil {
			return err
		}
	}
	return fault.Err
}

func (f *Fake) currentBoot() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boot
}

// OpenFile implements FS.
func (f *Fake) OpenFile(name string, flag int, _ fs.FileMode) (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, base, err := f.parentLocked(name)
	if err != nil {
		return nil, err
	}
	file := dir.names[base]
	op := Op{Kind: OpOpen, Name: name}
	if file == nil && flag&os.O_CREATE != 0 || file != nil && flag&os.O_TRUNC != 0 {
		op.Kind = OpCreate
	}
	err = f.doLocked(f.boot, op, func() error {
		file, err = f.openLocked(dir, base, flag)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	file.name = name
	return &fakeFile{fake: f, boot: f.boot, node: file}, nil
}

func (f *Fake) openLocked(dir *node, base string, flag int) (*node, error) {
	file := dir.names[base]
	switch {
	case file == nil && flag&os.O_CREATE == 0:
		return nil, fs.ErrNotExist
	case file == nil:
		file = newFile()
		dir.change(change{name: base, node: file})
	case flag&os.O_EXCL != 0 && flag&os.O_CREATE != 0:
		return nil, fs.ErrExist
	case file.names != nil:
		return nil, syscall.EISDIR
	case flag&os.O_TRUNC != 0:
		// Truncation takes effect at once: no caller may rely on the old bytes.
		f.used -= int64(len(file.cache))
		*file = *newFile()
	}
	return file, nil
}

// Rename implements FS.
func (f *Fake) Rename(from, to string) error {
	return f.do(f.currentBoot(), Op{Kind: OpRename, Name: from, To: to}, func() error {
		dir, base, err := f.parentLocked(from)
		if err != nil {
			return err
		}
		if path.Dir(from) != path.Dir(to) {
			return syscall.EXDEV
		}
		n := dir.names[base]
		if n == nil {
			return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
		}
		n.name = to
		dir.change(change{name: path.Base(to), from: base, node: n})
		return nil
	})
}

// Remove implements FS.
func (f *Fake) Remove(name string) error {
	return f.do(f.currentBoot(), Op{Kind: OpRemove, Name: name}, func() error {
		dir, base, err := f.parentLocked(name)
		if err != nil {
			return err
		}
		n := dir.names[base]
		if n == nil {
			return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
		}
		f.used -= int64(len(n.cache))
		dir.change(change{name: base})
		return nil
	})
}

// MkdirAll implements FS.
func (f *Fake) MkdirAll(name string, _ fs.FileMode) error {
	return f.do(f.currentBoot(), Op{Kind: OpMkdir, Name: name}, func() error {
		at := f.root
		for _, part := range split(name) {
			next := at.names[part]
			if next == nil {
				next = newDir()
				at.change(change{name: part, node: next})
			}
			if next.names == nil {
				return syscall.ENOTDIR
			}
			at = next
		}
		return nil
	})
}

// ReadDir implements FS.
func (f *Fake) ReadDir(name string) (names []string, err error) {
	err = f.do(f.currentBoot(), Op{Kind: OpReadDir, Name: name}, func() error {
		n := f.lookupLocked(name)
		if n == nil || n.names == nil {
			return &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
		}
		names = sortedNames(n.names)
		return nil
	})
	return names, err
}

// Stat implements FS.
func (f *Fake) Stat(name string) (st Stat, err error) {
	err = f.do(f.currentBoot(), Op{Kind: OpStat, Name: name}, func() error {
		n := f.lookupLocked(name)
		if n == nil {
			return &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
		}
		st = Stat{Size: int64(len(n.cache)), Dir: n.names != nil}
		return nil
	})
	return st, err
}

// SyncDir implements FS.
func (f *Fake) SyncDir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.lookupLocked(name)
	fault, err := f.stepLocked(f.boot, Op{Kind: OpSyncDir, Name: name})
	if err != nil {
		return err
	}
	if n == nil || n.names == nil {
		return &fs.PathError{Op: "syncdir", Path: name, Err: fs.ErrNotExist}
	}
	switch {
	case fault.Err == nil || fault.Effect:
		n.durable = maps.Clone(n.names)
		n.pending = nil
	case !fault.Crash:
		n.pending = nil
	}
	return fault.Err
}

// Lock implements FS. The lock ends with a crash.
func (f *Fake) Lock(dir string) (Lock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := &fakeLock{fake: f, boot: f.boot, dir: dir}
	err := f.doLocked(f.boot, Op{Kind: OpLock, Name: dir}, func() error {
		l.node = f.lookupLocked(dir)
		switch {
		case l.node == nil || l.node.names == nil:
			return fs.ErrNotExist
		case f.locks[l.node]:
			return ErrLocked
		}
		f.locks[l.node] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return l, nil
}

// fakeLock is a locked directory of a Fake.
type fakeLock struct {
	fake *Fake
	boot int
	dir  string
	node *node
}

// Held implements Lock.
func (l *fakeLock) Held() error {
	l.fake.mu.Lock()
	defer l.fake.mu.Unlock()
	if l.fake.lookupLocked(l.dir) != l.node {
		return ErrMoved
	}
	return nil
}

// Close implements Lock.
func (l *fakeLock) Close() error {
	l.fake.mu.Lock()
	defer l.fake.mu.Unlock()
	if l.fake.boot == l.boot {
		delete(l.fake.locks, l.node)
	}
	return nil
}
