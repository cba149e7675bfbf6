package procs

import (
	"net"
	"syscall"
)

// reserve keeps a port from who asks the system for any port, a client or a listener,
// whatever range the system gives these from: a socket has it that does not listen. It
// stands in the way of nobody who listens at the port by its number, and fails when
// somebody does already.
func reserve(addr *net.TCPAddr) (release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	release = func() { _ = syscall.Close(fd) }
	if err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())})
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}
