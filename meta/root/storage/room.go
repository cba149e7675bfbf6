package storage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/nokv/nokv/internal/disk"
)

// Shortage is what a Storage had to do without for want of room on the disk. Nothing
// that was acknowledged is in doubt.
type Shortage struct {
	// Why is what lacks room now, with what the file system said; empty: nothing does.
	Why string
	// Count is the number of times since the start.
	Count uint64
}

// Room is how much room the disk of the workdir has, in bytes. Need is what a Storage should have
// left: four times what the next checkpoint and two segments of the log take.
type Room struct{ Free, Total, Need uint64 }

// Room asks the file system.
func (s *Storage) Room() (Room, error) {
	room, err := s.fs.Room(s.dir)
	if err != nil {
		return Room{}, err
	}
	newest, _ := s.Checkpoint()
	return Room{room.Free, room.Total, 4 * (newest.Bytes + 2*uint64(s.options.SegmentBytes))}, nil
}

// Low says in a sentence that there is too little room to go on for long; empty: there is enough, or
// nobody has asked.
func (r Room) Low() string {
	if r.Free >= r.Need || r.Total == 0 { // some file systems do not know
		return ""
	}
	return fmt.Sprintf("%d MiB of %d MiB are free, and the next checkpoints and segments of the log need %d MiB", r.Free>>20, r.Total>>20, r.Need>>20)
}

// need is what lacks room.
type need int

const (
	forCheckpoint need = iota
	forSegment
	needs
)

type shortage struct {
	mu    sync.Mutex
	why   [needs]string // guarded by mu, as is count; empty: there was room
	count uint64
}

// Shortage returns what was dropped for want of room.
func (s *Storage) Shortage() Shortage {
	s.shortage.mu.Lock()
	defer s.shortage.mu.Unlock()
	why := slices.DeleteFunc(slices.Clone(s.shortage.why[:]), func(why string) bool { return why == "" })
	return Shortage{Why: strings.Join(why, "; "), Count: s.shortage.count}
}

// lacked notes that something that can wait found no room.
func (s *Storage) lacked(what need, op string, err error) *NoRoomError {
	lack := &NoRoomError{Op: op, Err: err}
	s.shortage.mu.Lock()
	s.shortage.why[what] = lack.Error()
	s.shortage.count++
	s.shortage.mu.Unlock()
	s.options.Logger.Warn("the disk has no room: what needs it is tried again later, and nothing acknowledged is lost", "op", op, "err", err)
	return lack
}

// found notes that there was room.
func (s *Storage) found(what need) {
	s.shortage.mu.Lock()
	defer s.shortage.mu.Unlock()
	s.shortage.why[what] = ""
}

// drop is the error of a step of a checkpoint: a *NoRoomError when it found no room,
// otherwise the storage has failed.
func (s *Storage) drop(op string, err error) error {
	var lack *NoRoomError
	switch {
	case errors.As(err, &lack):
		return lack
	case disk.NoRoom(err) && s.failed.Load() == nil:
		return s.lacked(forCheckpoint, op, err)
	}
	return s.fail(op, err)
}

// errCrowded ends the writing of a checkpoint when the log needs its room.
var errCrowded = fmt.Errorf("the log needs it: %w", syscall.ENOSPC)

// makeRoom has the checkpoint that is being written given up, and returns when its file
// is gone. Called by the goroutine of Append.
func (s *Storage) makeRoom() {
	s.crowded.Store(true)
	defer s.crowded.Store(false)
	s.filling.take()
	s.filling.give()
}

// inPlace stops a storage whose folder was moved or removed: by its name it would
// write into another one.
func (s *Storage) inPlace() error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.lock.Held(); err != nil {
		return s.fail("stay in "+s.dir, err)
	}
	return nil
}
