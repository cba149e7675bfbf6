package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

// The protocol: snapshots and transactions over any number of regions, of nothing but timestamps
// (Tso) and writes of one key that are refused when the key has changed since it was read.
//
// A key holds its last versions, each with the timestamp of its commit. A transaction reads at
// its start timestamp, then puts a lock with the new value on each key that it writes; the first
// one is the primary, and is locked first. It takes a commit timestamp, and what decides is one
// write: that which turns the lock of the primary into a version. The other locks follow, by
// whoever comes first: each names the primary, which keeps the outcome until they have.
//
// Nobody's clock counts but the cluster's: a commit is later than every snapshot that was taken
// before its locks were there, because its timestamp is. A lock is old by timestamps, too.

// record is what the store has of a key.
type record struct {
	// Versions, the newest first. Cut: there were older ones.
	Versions []version `json:",omitempty"`
	Cut      bool      `json:",omitempty"`
	Lock     *lock     `json:",omitempty"`
	// Done is the transaction that had its primary here and was committed, while its other
	// locks are still there. No lock is put here meanwhile.
	Done *done `json:",omitempty"`

	at uint64 // version of the key in the store: a write is refused when it is another one
}

type version struct {
	Start, Commit client.Timestamp
	Value         []byte
}

type lock struct {
	Start   client.Timestamp
	Primary string
	Value   []byte
	Others  []string `json:",omitempty"` // on the primary: the other keys
}

type done struct {
	Start, Commit client.Timestamp
	Others        []string
}

const (
	// keptVersions of a key: a snapshot that needs an older one fails with ErrTooOld.
	keptVersions = 32
	waitPause    = 5 * time.Millisecond
)

// What a transaction may fail with, of which nothing remains then. After every other error of
// Commit its outcome is not known.
var (
	ErrConflict = errors.New("another transaction came first: begin again")
	ErrTooOld   = errors.New("the snapshot is too old: begin again")
)

// commit turns the lock of a transaction into a version.
func (r *record) commit(at client.Timestamp) {
	r.Versions = slices.Insert(r.Versions, 0, version{Start: r.Lock.Start, Commit: at, Value: r.Lock.Value})
	if len(r.Versions) > keptVersions {
		r.Versions, r.Cut = r.Versions[:keptVersions], true
	}
	r.Lock = nil
}

// as is the value in a snapshot; nil: there is none.
func (r *record) as(of client.Timestamp) ([]byte, error) {
	for _, v := range r.Versions {
		if v.Commit <= of {
			return v.Value, nil
		}
	}
	if r.Cut {
		return nil, ErrTooOld
	}
	return nil, nil
}

// lockedBy says whether a transaction has its lock here.
func (r *record) lockedBy(start client.Timestamp) bool { return r.Lock != nil && r.Lock.Start == start }

// txn is a transaction. One goroutine uses it.
type txn struct {
	kv     *kv
	start  client.Timestamp
	read   map[string]record
	writes map[string][]byte
}

func (k *kv) begin(ctx context.Context) (*txn, error) {
	start, err := k.now(ctx)
	return &txn{kv: k, start: start, read: map[string]record{}, writes: map[string][]byte{}}, err
}

// get reads a key as it was when the transaction began.
func (t *txn) get(ctx context.Context, key string) ([]byte, error) {
	r, err := t.kv.settled(ctx, key, t.start)
	if err != nil {
		return nil, err
	}
	t.read[key] = r
	return r.as(t.start)
}

// put writes a key that was read; others see it behind commit.
func (t *txn) put(key string, value []byte) { t.writes[key] = value }

// commit makes every write visible at once, or none.
func (t *txn) commit(ctx context.Context) error {
	var keys []string
	for key := range t.writes {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for i, key := range keys {
		l := &lock{Start: t.start, Primary: keys[0], Value: t.writes[key]}
		if i == 0 {
			l.Others = keys[1:]
		}
		if err := t.lock(ctx, key, l); err != nil {
			if !errors.Is(err, ErrConflict) {
				return err // others find the locks, and end them
			}
			for _, locked := range keys[:i] { // the primary first: from then on it cannot be committed
				if err := t.kv.unlock(ctx, locked, t.start); err != nil {
					return err
				}
			}
			return ErrConflict
		}
	}
	at, err := t.kv.now(ctx)
	if err != nil {
		return err
	}
	if err := t.decide(ctx, keys, at); err != nil {
		return err
	}
	// It is committed, whatever happens now: who cannot clean up leaves it to others.
	_ = t.kv.follow(ctx, keys[0], &done{Start: t.start, Commit: at, Others: keys[1:]})
	return nil
}

// lock puts a lock on a key that nobody has written since the transaction began.
func (t *txn) lock(ctx context.Context, key string, l *lock) error {
	r, have := t.read[key]
	for {
		var err error
		if !have {
			if r, err = t.kv.get(ctx, key); err != nil {
				return err
			}
		}
		have = false
		switch {
		case r.lockedBy(t.start): // an answer was lost
			return nil
		case r.Lock != nil, len(r.Versions) > 0 && r.Versions[0].Commit > t.start:
			return ErrConflict
		case r.Done != nil:
			if err = t.kv.follow(ctx, key, r.Done); err != nil {
				return err
			}
			continue
		}
		r.Lock = l
		if ok, err := t.kv.replace(ctx, key, &r); ok || err != nil {
			return err
		}
	}
}

// decide commits the primary.
func (t *txn) decide(ctx context.Context, keys []string, at client.Timestamp) error {
	for {
		r, err := t.kv.get(ctx, keys[0])
		if err != nil {
			return err
		}
		if r.lockedBy(t.start) {
			r.commit(at)
			if len(keys) > 1 {
				r.Done = &done{Start: t.start, Commit: at, Others: keys[1:]}
			}
			if ok, err := t.kv.replace(ctx, keys[0], &r); ok || err != nil {
				return err
			}
			continue
		}
		// Somebody thought that this one had died, unless only an answer was lost.
		for _, v := range r.Versions {
			if v.Start == t.start {
				return nil
			}
		}
		if r.Cut && r.Versions[len(r.Versions)-1].Commit > t.start {
			return errors.New("what became of the transaction is not known any more")
		}
		for _, key := range keys[1:] {
			if err := t.kv.unlock(ctx, key, t.start); err != nil {
				return err
			}
		}
		return ErrConflict
	}
}

// follow has the other locks of a committed transaction become versions, and then its primary
// forget it.
func (k *kv) follow(ctx context.Context, primary string, d *done) error {
	for _, key := range d.Others {
		if err := k.change(ctx, key, func(r *record) bool {
			if !r.lockedBy(d.Start) {
				return false
			}
			r.commit(d.Commit)
			return true
		}); err != nil {
			return err
		}
	}
	return k.change(ctx, primary, func(r *record) bool {
		if r.Done == nil || r.Done.Start != d.Start {
			return false
		}
		r.Done = nil
		return true
	})
}

// unlock takes the lock of a transaction that is not committed off a key.
func (k *kv) unlock(ctx context.Context, key string, start client.Timestamp) error {
	return k.change(ctx, key, func(r *record) bool {
		locked := r.lockedBy(start)
		if locked {
			r.Lock = nil
		}
		return locked
	})
}

// change replaces a record, as it is when that happens; change may say that it stays.
func (k *kv) change(ctx context.Context, key string, change func(*record) bool) error {
	for {
		r, err := k.get(ctx, key)
		if err != nil || !change(&r) {
			return err
		}
		if ok, err := k.replace(ctx, key, &r); ok || err != nil {
			return err
		}
	}
}

// settled reads a key without a lock that might become a version of a snapshot: it waits for
// the transaction, or ends it.
func (k *kv) settled(ctx context.Context, key string, of client.Timestamp) (record, error) {
	for {
		r, err := k.get(ctx, key)
		if err != nil || r.Lock == nil || r.Lock.Start > of {
			return r, err
		}
		if err := k.resolve(ctx, key, r); err != nil {
			return r, fmt.Errorf("the lock on %s: %w", key, err)
		}
	}
}

// resolve does away with a lock that was found, by what its primary says, or waits a little.
func (k *kv) resolve(ctx context.Context, key string, found record) error {
	l := found.Lock
	p, err := k.get(ctx, l.Primary)
	if err != nil {
		return err
	}
	switch {
	case p.Done != nil && p.Done.Start == l.Start:
		return k.follow(ctx, l.Primary, p.Done)
	case p.lockedBy(l.Start):
		now, err := k.now(ctx)
		if err != nil {
			return err
		}
		if now.Time().Sub(l.Start.Time()) < k.lockLife {
			return pause(ctx, waitPause)
		}
		p.Lock = nil // from here on it cannot be committed
		k.ended.Add(1)
		_, err = k.replace(ctx, l.Primary, &p)
		return err
	}
	// It was not committed; or it was, and since then this lock has become a version: then the
	// key is not what was found any more, and this is refused.
	found.Lock = nil
	_, err = k.replace(ctx, key, &found)
	return err
}

// snapshot reads a range as it was at a timestamp.
func (k *kv) snapshot(ctx context.Context, start, end string, of client.Timestamp, each func(key string, value []byte) error) error {
	return k.scan(ctx, start, end, func(key string, r record) error {
		if r.Lock != nil && r.Lock.Start <= of {
			var err error
			if r, err = k.settled(ctx, key, of); err != nil {
				return err
			}
		}
		value, err := r.as(of)
		if err != nil || value == nil {
			return err
		}
		return each(key, value)
	})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
