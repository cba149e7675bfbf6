package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OS returns the real file system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }

func (osFS) ReadDir(name string) ([]string, error) {
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (osFS) Stat(name string) (Stat, error) {
	st, err := os.Stat(name)
	if err != nil {
		return Stat{}, err
	}
	if st.IsDir() {
		return Stat{Dir: true}, nil
	}
	return Stat{Size: st.Size()}, nil
}

func (osFS) Room(dir string) (Room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Room{}, fmt.Errorf("statfs %s: %w", dir, err)
	}
	block := uint64(st.Bsize)
	return Room{Free: st.Bavail * block, Total: st.Blocks * block}, nil
}

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(dir string) (Lock, error) {
	l, err := flock(dir, dir, os.O_RDONLY)
	if errors.Is(err, unix.EBADF) { // NFS locks only what is open for writing
		l, err = flock(dir, filepath.Join(dir, "LOCK"), os.O_RDWR|os.O_CREATE)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return l, nil
}

// flock locks a directory by what is at name, the directory itself or a file in it.
func flock(dir, name string, flag int) (Lock, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if unix.Access(dir, unix.W_OK) != nil {
		how = unix.LOCK_SH
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	switch err {
	case nil:
		return osLock{f}, nil
	case unix.EWOULDBLOCK:
		err = ErrLocked
	}
	return nil, errors.Join(err, f.Close())
}

// osLock is a locked file or directory; its name is the one it was opened by.
type osLock struct{ *os.File }

func (l osLock) Held() error {
	own, err := l.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(l.Name())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(own, there) {
		return ErrMoved
	}
	return err
}

// osFile is a real file.
type osFile struct{ *os.File }

func (f osFile) Sync() error { return syncData(f.File) }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
