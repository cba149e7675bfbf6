package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData is fdatasync: it makes the data and the size durable and spares the
// time stamps.
func syncData(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			failed = unix.Fdatasync(int(fd))
			if failed != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("fdatasync", failed)
}
