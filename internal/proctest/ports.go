package proctest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports that Addrs chooses from: below the range that outgoing connections
// get, or a client's socket could take the port of a process that is down.
const (
	lowestPort  = 12000
	highestPort = 30000
)

var given struct {
	sync.Mutex
	// Guarded by the mutex: ports that were handed out in this process.
	ports map[int]bool
}

// Addrs returns loopback addresses with free ports, each one once.
func Addrs(t testing.TB, n int) []string {
	t.Helper()
	given.Lock()
	defer given.Unlock()
	if given.ports == nil {
		given.ports = make(map[int]bool)
	}
	addrs := make([]string, 0, n)
	for tries := 0; len(addrs) < n; tries++ {
		if tries > 1000 {
			t.Fatal("no free loopback ports")
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if given.ports[port] || !Free(addr) {
			continue
		}
		given.ports[port] = true
		addrs = append(addrs, addr)
	}
	return addrs
}

// Free says whether nobody listens on an address.
func Free(addr string) bool {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	return lis.Close() == nil
}
