package local

import (
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/bbolt"
)

// Write is one change of a key.
type Write struct {
	Key, Value []byte
	Delete     bool
	// Expected is the version that the key must have; nil: any.
	Expected *uint64
	// Admit judges it when it is its turn: behind it nothing comes between. An error
	// refuses it, and nobody else.
	Admit func() error
}

// Written is what became of it.
type Written struct {
	// Version that the key has now: that of the change, or, when it was refused or there was
	// nothing to delete, as it is; 0: there is no such key.
	Version uint64
	// Was is the entry before.
	Was Entry
	// Mismatch: the version was not the one expected; nothing was changed.
	Mismatch bool
	// Done: something was changed.
	Done bool
}

// maxTogether and maxTogetherBytes bound what one commit writes.
const (
	maxTogether      = 1024
	maxTogetherBytes = 8 << 20
)

// MaxWaiting and MaxWaitingBytes bound the writes that wait for the disk.
const (
	MaxWaiting      = 8192
	MaxWaitingBytes = 64 << 20
)

// ErrFull refuses a write because too many wait.
var ErrFull = fmt.Errorf("%d writes, or %d MiB of them, wait for the disk", MaxWaiting, MaxWaitingBytes>>20)

// commits gathers writers: those that come while one commit is on its way to the disk
// go together in the next one. bbolt's own Batch begins one for every pause instead, and
// they queue.
type commits struct {
	db *Disk

	mu      sync.Mutex // guards what follows
	waiting []*write
	bytes   int
	busy    bool // somebody commits
	count   uint64
}

type write struct {
	Write
	result  Written
	err     error
	refused error
	// turn gets true when the writer is to commit what waits, and false when its own is done.
	turn chan bool
}

func (w *write) size() int { return len(w.Key) + len(w.Value) }

// Write makes a change. An error of Admit is returned as it is.
func (d *Disk) Write(w Write) (Written, error) {
	own := &write{Write: w, turn: make(chan bool, 1)}
	c := &d.writes
	c.mu.Lock()
	if len(c.waiting) >= MaxWaiting || c.bytes+own.size() > MaxWaitingBytes {
		c.mu.Unlock()
		return Written{}, ErrFull
	}
	c.waiting = append(c.waiting, own)
	c.bytes += own.size()
	lead := !c.busy
	c.busy = true
	c.mu.Unlock()
	if lead || <-own.turn {
		c.commit(own)
	}
	if own.err != nil {
		return Written{}, own.err
	}
	return own.result, own.refused
}

// commit writes what waits, own among it, and gives the turn to the next writer.
func (c *commits) commit(own *write) {
	c.mu.Lock()
	n, size := 0, 0
	for n < len(c.waiting) && n < maxTogether && (n == 0 || size+c.waiting[n].size() <= maxTogetherBytes) {
		size += c.waiting[n].size()
		n++
	}
	batch := c.waiting[:n:n]
	c.waiting = append([]*write(nil), c.waiting[n:]...)
	c.bytes -= size
	c.mu.Unlock()

	err := c.db.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(dataBucket)
		for _, w := range batch {
			if w.refused = w.Admit(); w.refused != nil {
				continue
			}
			switch err := w.apply(b); {
			case errors.Is(err, ErrDamaged): // this key, not those of others
				w.refused = err
			case err != nil:
				return err
			}
		}
		return nil
	})
	for _, w := range batch {
		w.err = err
		if w != own {
			w.turn <- false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.busy = len(c.waiting) > 0; c.busy {
		c.waiting[0].turn <- true
	}
}

func (w *write) apply(b *bbolt.Bucket) error {
	was, err := readEntry(w.Key, b.Get(w.Key))
	if err != nil {
		return err
	}
	w.result = Written{Version: was.Version, Was: was}
	switch {
	case w.Expected != nil && *w.Expected != was.Version:
		w.result.Mismatch = true
		return nil
	case w.Delete && was.Version == 0:
		return nil
	}
	version, err := b.NextSequence()
	if err != nil {
		return err
	}
	w.result.Done = true
	if w.Delete {
		w.result.Version = 0
		return b.Delete(w.Key)
	}
	w.result.Version = version
	return putEntry(b, &Entry{Key: w.Key, Value: w.Value, Version: version})
}

// Commits is how many there were for all writes.
func (d *Disk) Commits() uint64 {
	d.writes.mu.Lock()
	defer d.writes.mu.Unlock()
	return d.writes.count
}

// Settle returns when the writes that were admitted before are on disk, or refused.
func (d *Disk) Settle() error { return d.update(func(*bbolt.Tx) error { return nil }) }
