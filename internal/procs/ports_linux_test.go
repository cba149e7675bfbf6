package procs

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// ipLocalPortRange is the socket option that says from where the system takes the port
// of one socket.
const ipLocalPortRange = 51

// anyOf asks the system for any port of a range that has one, as a client or to listen.
func anyOf(t *testing.T, port int, to *net.TCPAddr) error {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, ipLocalPortRange, port<<16|port); errors.Is(err, syscall.ENOPROTOOPT) {
		t.Skip("SKIPPED: this kernel cannot narrow the range of ports of one socket")
	} else if err != nil {
		t.Fatal(err)
	}
	local := [4]byte{127, 0, 0, 1}
	if to != nil {
		return syscall.Connect(fd, &syscall.SockaddrInet4{Port: to.Port, Addr: local})
	}
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Addr: local})
}

// A reserved port is given to nobody who asks for any, also when the system gives such
// ports out; who wants it by its number gets it.
func TestReservedPortsAreGivenToNobody(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, to := range []*net.TCPAddr{nil, server.Addr().(*net.TCPAddr)} {
		for {
			lis, err := net.Listen("tcp", "127.0.0.1:0") // the system gives this one out
			if err != nil {
				t.Fatal(err)
			}
			addr := lis.Addr().(*net.TCPAddr)
			_ = lis.Close()
			if to == nil && anyOf(t, addr.Port, to) != nil {
				continue // somebody else has it by now
			}
			release, err := reserve(addr)
			if err != nil {
				continue
			}
			if err := anyOf(t, addr.Port, to); !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Errorf("a reserved port was given away: %v", err)
			}
			if lis, err = net.Listen("tcp", addr.String()); err != nil {
				t.Errorf("by its number: %v", err)
			} else if _, err := reserve(addr); err == nil {
				t.Error("a port where somebody listens was reserved")
			}
			if lis != nil {
				_ = lis.Close()
			}
			release()
			break
		}
	}
}
