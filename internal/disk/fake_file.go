package disk

import (
	"io"
	"io/fs"
	"syscall"
)

// fakeFile is an open file of a Fake.
type fakeFile struct {
	fake   *Fake
	boot   int
	node   *node
	closed bool
}

// name is the file's path as the last rename or open left it.
func (h *fakeFile) name() string { return h.node.name }

func (h *fakeFile) ReadAt(b []byte, off int64) (n int, err error) {
	err = h.do(Op{Kind: OpRead, Off: off, Len: int64(len(b))}, func() error {
		if off >= int64(len(h.node.cache)) {
			return io.EOF
		}
		if n = copy(b, h.node.cache[off:]); n < len(b) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

func (h *fakeFile) WriteAt(b []byte, off int64) (int, error) {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	if h.closed {
		return 0, fs.ErrClosed
	}
	fault, err := h.fake.stepLocked(h.boot, Op{Kind: OpWrite, Name: h.name(), Off: off, Len: int64(len(b))})
	if err != nil {
		return 0, err
	}
	if fault.Err != nil && !fault.Effect {
		b = b[:min(fault.Short, int64(len(b)))]
	}
	grow := max(0, off+int64(len(b))-int64(len(h.node.cache)))
	if h.fake.capacity > 0 && h.fake.used+grow > h.fake.capacity {
		return 0, &fs.PathError{Op: "write", Path: h.name(), Err: syscall.ENOSPC}
	}
	h.fake.used += grow
	if len(b) > 0 {
		h.node.write(b, off)
	}
	return len(b), fault.Err
}

// Sync makes writes durable. A sync that fails without effect forgets what it
// had to do: some sectors reached the platter, by chance, and no later sync
// brings the rest.
func (h *fakeFile) Sync() error {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	if h.closed {
		return fs.ErrClosed
	}
	fault, err := h.fake.stepLocked(h.boot, Op{Kind: OpSync, Name: h.name()})
	if err != nil {
		return err
	}
	switch {
	case fault.Err == nil || fault.Effect:
		h.node.sync()
	case !fault.Crash:
		cache := h.node.cache
		h.fake.settle(h.node)
		h.node.cache = cache
	}
	return fault.Err
}

func (h *fakeFile) Size() (size int64, err error) {
	err = h.do(Op{Kind: OpStat}, func() error {
		size = int64(len(h.node.cache))
		return nil
	})
	return size, err
}

func (h *fakeFile) Close() error {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	if h.closed {
		return fs.ErrClosed
	}
	h.closed = true
	return nil
}

func (h *fakeFile) do(op Op, effect func() error) error {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	if h.closed {
		return fs.ErrClosed
	}
	op.Name = h.name()
	return h.fake.doLocked(h.boot, op, effect)
}
