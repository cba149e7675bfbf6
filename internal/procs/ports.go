package procs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports that Addrs chooses from: below the range that outgoing connections
// get, or a client's socket could take the port of a process that is down.
const (
	lowestPort  = 12000
	highestPort = 30000
)

// maxPortTries bounds the search for free ports.
const maxPortTries = 1000

var given struct {
	sync.Mutex
	// Guarded by the mutex: ports that were handed out in this process.
	ports map[int]bool
}

// Addrs returns n loopback addresses, host:port, with free ports, each one once
// in the life of this process.
func Addrs(n int) ([]string, error) {
	given.Lock()
	defer given.Unlock()
	if given.ports == nil {
		given.ports = make(map[int]bool)
	}
	addrs := make([]string, 0, n)
	for tries := 0; len(addrs) < n; tries++ {
		if tries > maxPortTries+n {
			return nil, errors.New("no free loopback ports")
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if given.ports[port] || !Free(addr) {
			continue
		}
		given.ports[port] = true
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// Free says whether nobody listens on an address.
func Free(addr string) bool {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	return lis.Close() == nil
}
