package storage

import (
	"errors"
	"fmt"
)

var (
	// ErrCompacted says that entries asked for are no longer retained.
	ErrCompacted = errors.New("entries are no longer retained")
	// ErrNoCheckpoint says that there is no checkpoint yet.
	ErrNoCheckpoint = errors.New("no checkpoint")
	// ErrReceiving says that another checkpoint is being received or installed.
	ErrReceiving = errors.New("another checkpoint is being received")
	// ErrOutdated says that a checkpoint is not newer than the current one.
	ErrOutdated = errors.New("checkpoint is not newer than the current one")
	// ErrClosed says that the storage was closed.
	ErrClosed = errors.New("storage is closed")
)

// DamageError says that a file of a workdir is not what was written. The
// workdir must not be used as it is.
type DamageError struct {
	// File is the path of the damaged file or directory.
	File string
	// Offset is where in the file, in bytes.
	Offset int64
	// What is wrong.
	What string
	// Do says how to go on.
	Do string
}

// Error implements error.
func (e *DamageError) Error() string {
	return fmt.Sprintf("damage in %s at offset %d: %s; %s", e.File, e.Offset, e.What, e.Do)
}

// VersionError says that a file was written by a newer release.
type VersionError struct {
	// File is the path of the file.
	File string
	// Found is the file's format version; Known the newest this release reads.
	Found, Known uint32
}

// Error implements error.
func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has format version %d, this release reads up to %d: start the newer release", e.File, e.Found, e.Known)
}

// LockedError says that another process uses the workdir.
type LockedError struct {
	// Dir is the workdir.
	Dir string
	// Err is what the file system said.
	Err error
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("workdir %s is in use by another process: %v", e.Dir, e.Err)
}

// Unwrap returns what the file system said.
func (e *LockedError) Unwrap() error { return e.Err }

// FailedError says that the disk failed once and the storage therefore does
// nothing any more. What was acknowledged before is durable. The process must
// stop; a restart finds out what the disk holds.
type FailedError struct {
	// Op is what failed.
	Op string
	// Err is what the file system said.
	Err error
}

// Error implements error.
func (e *FailedError) Error() string { return fmt.Sprintf("storage failed to %s: %v", e.Op, e.Err) }

// Unwrap returns what the file system said.
func (e *FailedError) Unwrap() error { return e.Err }

// NoRoomError says that something that can wait was dropped because the disk has no
// room for it. The storage goes on, with the checkpoint that it had.
type NoRoomError struct {
	// Op is what was dropped.
	Op string
	// Err is what the file system said.
	Err error
}

// Error implements error.
func (e *NoRoomError) Error() string { return fmt.Sprintf("no room to %s: %v", e.Op, e.Err) }

// Unwrap returns what the file system said.
func (e *NoRoomError) Unwrap() error { return e.Err }

const (
	doReplace = "keep the workdir for inspection and replace this peer; never start it on an older copy of its folder"
	doFile    = "put this very file back if it was moved away, never an older copy; otherwise keep the workdir for inspection and replace this peer"
)
