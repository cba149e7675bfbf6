package storage

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/nokv/nokv/internal/disk"
)

// Verify checks every bit of a workdir that matters and changes nothing. It
// goes on behind damage and reports all it finds. The error says that the
// workdir could not be checked; damage and newer formats are in the report.
func Verify(dir string, o Options) (Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Report{}, fmt.Errorf("verify workdir %s: %w", dir, err)
	}
	v := verifier{dir: dir, options: o}
	if err := v.run(); err != nil {
		return v.report, fmt.Errorf("verify workdir %s: %w", dir, err)
	}
	return v.report, nil
}

type verifier struct {
	dir     string
	options Options
	report  Report
}

func (v *verifier) path(name string) string { return path.Join(v.dir, name) }

func (v *verifier) run() error {
	if _, err := v.options.FS.Stat(v.dir); err != nil {
		return err
	}
	if err := v.probeLock(); err != nil {
		return err
	}
	known, ok, err := v.registers()
	if err != nil {
		return err
	}
	if known.identity != nil {
		v.report.Identity, v.report.HasIdentity = *known.identity, true
	}
	if err := v.checkpoint(known, ok); err != nil {
		return err
	}
	if !ok || known.mark == nil {
		return nil
	}
	return v.log(known)
}

// found puts damage into the report; other errors come back.
func (v *verifier) found(err error) error {
	var damage *DamageError
	var version *VersionError
	switch {
	case err == nil:
	case errors.As(err, &damage):
		v.report.Damage = append(v.report.Damage, Damage(*damage))
	case errors.As(err, &version):
		v.report.Damage = append(v.report.Damage, Damage{
			File: version.File,
			What: fmt.Sprintf("format version %d is newer than %d", version.Found, version.Known),
			Do:   "use the newer release",
		})
	default:
		return err
	}
	return nil
}

// probeLock looks whether a process has the workdir, without making the file.
func (v *verifier) probeLock() error {
	name := v.path(lockFile)
	if _, err := v.options.FS.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := v.options.FS.Lock(name)
	if errors.Is(err, disk.ErrLocked) {
		v.report.InUse = true
		return nil
	}
	if err != nil {
		return err
	}
	return lock.Close()
}

// registers reads root.raft.bin; false when there is nothing to go by.
func (v *verifier) registers() (rooted, bool, error) {
	name := v.path(registersFile)
	if _, err := v.options.FS.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return rooted{}, false, v.orphans(name)
	}
	values, err := v.options.ReadRegisters(name)
	if err != nil {
		return rooted{}, false, v.found(err)
	}
	known, err := loadRooted(name, func(key string) ([]byte, error) { return values[key], nil })
	if err != nil {
		return known, false, v.found(err)
	}
	return known, true, nil
}

func (v *verifier) orphans(missing string) error {
	for _, other := range []string{walDir, checkpointFile} {
		if _, err := v.options.FS.Stat(v.path(other)); err == nil {
			return v.found(&DamageError{File: missing, What: fmt.Sprintf("the file is missing, and %s exists", other), Do: doFile})
		}
	}
	return nil
}

func (v *verifier) checkpoint(known rooted, registers bool) (err error) {
	name := v.path(checkpointFile)
	f, err := v.options.FS.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return v.found(checkRegistered(name, nil, 0, known))
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	meta, digest, err := readCheckpoint(bufio.NewReaderSize(io.NewSectionReader(f, 0, size), copyBuffer), nil)
	if err != nil {
		return v.found(damagedCheckpoint(name, err))
	}
	v.report.Checkpoint, v.report.HasCheckpoint = meta, true
	if !registers {
		return nil
	}
	return v.found(checkRegistered(name, &meta, digest, known))
}

func (v *verifier) log(known rooted) error {
	dir := v.path(walDir)
	if _, err := v.options.FS.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return v.found(&DamageError{File: dir, What: "the log is missing", Do: doFile})
	}
	segments, err := listSegments(v.options.FS, dir, known)
	if err != nil {
		if err := v.found(err); err != nil {
			return err
		}
		// What is left cannot reach the mark, and that is reported already.
		known.mark = nil
	}
	r := &replay{segments: segments, mark: known.mark, complain: func(d *DamageError) {
		v.report.Damage = append(v.report.Damage, Damage(*d))
	}}
	if err := r.run(); err != nil {
		return err
	}
	v.report.Frames, v.report.Entries = r.frames, len(r.entries)
	v.report.FirstIndex, v.report.LastIndex = r.base+1, r.base+uint64(len(r.entries))
	if r.frames > 0 {
		v.report.Segments = r.seg + 1
	}
	v.report.Torn = r.torn()
	if c := v.report.Checkpoint; r.base > 0 && r.base > c.Index && len(v.report.Damage) == 0 {
		return v.found(&DamageError{
			File: v.path(checkpointFile),
			What: fmt.Sprintf("the log begins behind index %d, and no checkpoint reaches it", r.base),
			Do:   doFile,
		})
	}
	return nil
}
