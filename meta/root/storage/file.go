package storage

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/nokv/nokv/internal/disk"
)

// CreateCheckpointFile writes a checkpoint to a file outside any workdir, in the
// format of a workdir's: the file has its name, durably, once it is whole and
// was read back. An error leaves nothing under that name; fs.ErrExist: something
// is there already. The file meanwhile is name.tmp; one that is left behind by
// a killed process is written over.
func CreateCheckpointFile(fsys disk.FS, name string, meta CheckpointMeta, records func(yield func([]byte) error) error) (CheckpointMeta, error) {
	if _, err := fsys.Stat(name); err == nil {
		return meta, fmt.Errorf("%s: %w", name, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return meta, err
	}
	tmp := name + ".tmp"
	written, err := writeCheckpointFile(fsys, tmp, meta, records)
	if err == nil {
		written, err = checkWritten(fsys, tmp, written)
	}
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		if e := fsys.Remove(tmp); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return written, err
	}
	return written, fsys.SyncDir(path.Dir(name))
}

func writeCheckpointFile(fsys disk.FS, name string, meta CheckpointMeta, records func(yield func([]byte) error) error) (_ CheckpointMeta, err error) {
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return meta, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := bufio.NewWriterSize(&fileWriter{file: f, flush: true}, copyBuffer)
	w, err := newCheckpointWriter(out, meta)
	if err != nil {
		return meta, err
	}
	err = records(func(r []byte) error {
		encode, disk := w.add(r)
		return errors.Join(encode, disk)
	})
	if err != nil {
		return meta, err
	}
	if err := errors.Join(w.finish(), out.Flush()); err != nil {
		return meta, err
	}
	meta.Records, meta.Bytes = w.records, w.bytes
	return meta, f.Sync()
}

// checkWritten reads a file back: what it holds must be what was written.
func checkWritten(fsys disk.FS, name string, want CheckpointMeta) (CheckpointMeta, error) {
	got, err := ReadCheckpointFile(fsys, name, nil)
	if err == nil && got != want {
		err = fmt.Errorf("%s reads as %+v, written was %+v", name, got, want)
	}
	return want, err
}
