package procs

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports that Addrs chooses from: below the range that outgoing connections get on most
// machines, or a client's socket could take the port of a process that is down.
const (
	lowestPort  = 12000
	highestPort = 30000
)

// maxPortTries bounds the search for free ports.
const maxPortTries = 1000

// given holds the ports that were handed out in this process, until it ends: the
// UDP port of the same number, which nobody listens at, tells other processes that
// choose here, and reserve keeps everybody else away.
var given struct {
	sync.Mutex
	// Guarded by the mutex.
	ports []net.PacketConn
}

// Addrs returns n loopback addresses, host:port, with free ports. Each one is given
// out once as long as this process lives, also beside others that call Addrs: who
// listens there may be started later, and more than once.
func Addrs(n int) ([]string, error) {
	given.Lock()
	defer given.Unlock()
	addrs := make([]string, 0, n)
	for tries := 0; len(addrs) < n; tries++ {
		if tries > maxPortTries+n {
			return nil, errors.New("no free loopback ports")
		}
		port := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: lowestPort + rand.IntN(highestPort-lowestPort)}
		if take(port) {
			addrs = append(addrs, port.String())
		}
	}
	return addrs, nil
}

// Take has a port of loopback as Addrs gives it out, when that is free.
func Take(port int) bool {
	given.Lock()
	defer given.Unlock()
	return take(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
}

// take keeps a port until this process ends. It needs the mutex of given.
func take(port *net.TCPAddr) bool {
	mark, err := net.ListenPacket("udp", port.String())
	if err != nil {
		return false
	}
	if _, err := reserve(port); err != nil {
		_ = mark.Close() // nothing was sent
		return false
	}
	given.ports = append(given.ports, mark)
	return true
}

// Free says whether nobody listens on an address.
func Free(addr string) bool {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	return lis.Close() == nil
}
