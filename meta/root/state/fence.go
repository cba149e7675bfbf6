package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// allocators are the fences of both allocators.
type allocators struct {
	id, tso fence
}

// fence is one allocator's bound.
type fence struct {
	// value is the highest number that may have been served.
	value uint64
	// last is the window that was given last; see FenceExtended.
	last window
}

// window is a run of numbers (from, to] of one era; era 0: none.
type window struct {
	era      Era
	from, to uint64
}

func (w window) proto() *rootv1.Window {
	if w.era == 0 {
		return nil
	}
	return &rootv1.Window{Era: uint64(w.era), From: w.from, To: w.to}
}

func (a *allocators) proto() *rootv1.Allocators {
	return &rootv1.Allocators{
		IdFence: a.id.value, TsoFence: a.tso.value,
		LastIdWindow: a.id.last.proto(), LastTsoWindow: a.tso.last.proto(),
	}
}
