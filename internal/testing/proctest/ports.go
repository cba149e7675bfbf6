package proctest

import (
	"testing"

	"github.com/nokv/nokv/internal/procs"
)

// Addrs returns loopback addresses with free ports, each one once.
func Addrs(t testing.TB, n int) []string {
	t.Helper()
	addrs, err := procs.Addrs(n)
	if err != nil {
		t.Fatal(err)
	}
	return addrs
}

// Free says whether nobody listens on an address.
func Free(addr string) bool { return procs.Free(addr) }
