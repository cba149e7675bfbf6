package ca

import (
	"fmt"
	"os"
	"path/filepath"
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

// write writes a file beside its place and returns its name.
func write(dir string, f file) (name string, err error) {
	tmp, err := os.CreateTemp(dir, f.name+".*.tmp") // for its owner alone
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
	if err = tmp.Chmod(f.mode); err != nil {
		return "", err
	}
	if err = tmp.Sync(); err != nil {
		return "", err
	}
	return tmp.Name(), tmp.Close()
}
