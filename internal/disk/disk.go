// Package disk is the seam between NoKV's durable code and the file system.
//
// It owns no file. OS is the real file system; Fake is one that forgets,
// tears and fails as real disks do, for tests and simulations.
//
// It promises: (1) File.Sync on success makes every completed WriteAt of the
// file, and its size, durable; (2) names are durable only after SyncDir of
// their directory; (3) errors come back as they are, nothing is retried;
// (4) Lock is exclusive between processes that may write, and ends with the process;
// it is on the directory itself, so that no file that is removed gives it up.
//
// What to sync when, and what a restart finds, is left to the caller.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"syscall"
)

var (
	// ErrLocked is returned by FS.Lock when another process, or another holder in
	// this one, has the lock.
	ErrLocked = errors.New("disk: lock is held elsewhere")
	// ErrMoved is returned by Lock.Held when the locked directory was moved or removed.
	ErrMoved = errors.New("disk: the locked directory was moved or removed")
)

// NoRoom says that an operation failed for want of space: the file system is full, a
// quota is used up, or a file may not be so large. What failed so may find room later.
func NoRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// FS is the part of a file system that durable code needs. Methods may be
// called by many goroutines at once. Errors for missing and existing names
// match fs.ErrNotExist and fs.ErrExist.
type FS interface {
	// OpenFile opens a file; flags are those of package os.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename gives a file another name in the same directory, replacing what
	// has that name. Not durable before SyncDir.
	Rename(from, to string) error
	// Remove takes a file's name away. Not durable before SyncDir.
	Remove(name string) error
	// MkdirAll makes a directory and its parents. Not durable before SyncDir
	// of each parent.
	MkdirAll(name string, perm fs.FileMode) error
	// ReadDir returns the names in a directory, sorted.
	ReadDir(name string) ([]string, error)
	// Stat describes a file or directory.
	Stat(name string) (Stat, error)
	// Room tells how much room there is where a directory is.
	Room(dir string) (Room, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// Lock takes an exclusive lock on a directory. It does not wait: ErrLocked says
	// that someone else has it. Closing what is returned gives it up. Of a directory
	// that may only be read it keeps those away who may write it, and no other readers.
	Lock(dir string) (Lock, error)
}

// Lock is held on a directory until it is closed.
type Lock interface {
	io.Closer
	// Held returns nil while the name still leads to the locked directory, and
	// ErrMoved when it leads to another one or nowhere: whoever goes on by the name
	// writes where somebody else may have a lock of its own.
	Held() error
}

// File is an open file. WriteAt and Sync of one file may overlap only when
// the caller does not care which writes the Sync covers.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes completed writes and the size durable (fdatasync).
	Sync() error
	// Size returns the length in bytes.
	Size() (int64, error)
}

// Room is what FS.Room tells, in bytes: Free of Total may be written by this process.
type Room struct{ Free, Total uint64 }

// Stat is what FS.Stat tells.
type Stat struct {
	// Size is the length in bytes; 0 for directories.
	Size int64
	Dir  bool
}
