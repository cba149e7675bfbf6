package ca

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nokv/nokv/mtls"
)

// file of a folder that is written.
type file struct {
	name string
	raw  []byte
	mode os.FileMode
}

// save writes all files beside their places, durably, and renames them in order
// when all are there: a crash before leaves what was there.
func save(dir string, files []file) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var made []string
	defer func() {
		for _, name := range made {
			_ = os.Remove(name) // it is renamed when all went well
		}
	}()
	for _, f := range files {
		name, err := write(dir, f)
		if err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(dir, f.name), err)
		}
		made = append(made, name)
	}
	for i, f := range files {
		if err := os.Rename(made[i], filepath.Join(dir, f.name)); err != nil {
			return err
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// give makes a new file belong to whom the one at its place belongs to: a
// certificate is renewed by one user and read by another.
func (f file) give(made *os.File, place string) error {
	info, err := os.Stat(place)
	if errors.Is(err, os.ErrNotExist) {
		return made.Chmod(f.mode)
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if ok && (int(owner.Uid) != os.Getuid() || int(owner.Gid) != os.Getgid()) {
		if err := made.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return made.Chmod(info.Mode().Perm() & (f.mode | 0o040))
}

// write writes a file beside its place and returns its name.
func write(dir string, f file) (name string, err error) {
	tmp, err := os.CreateTemp(dir, f.name+".*"+mtls.BesideSuffix) // for its owner alone
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = tmp.Close()
			_ = os.Remove(tmp.Name())
		}
	}()
	if _, err = tmp.Write(f.raw); err != nil {
		return "", err
	}
	if err = f.give(tmp, filepath.Join(dir, f.name)); err != nil {
		return "", err
	}
	if err = tmp.Sync(); err != nil {
		return "", err
	}
	return tmp.Name(), tmp.Close()
}
