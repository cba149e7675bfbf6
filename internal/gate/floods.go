package gate

import (
	"sync"
	"time"
)

// floods remembers where connections came from that were closed for a flood: the
// next ones from there begin with fewer credits, half for each flood lately. Who
// comes back after each flood would otherwise have a flood a connection.
type floods struct {
	mu   sync.Mutex
	seen map[string]floodsOf // guarded by mu
}

type floodsOf struct {
	n  int
	at int64 // of the last one
}

const (
	// rememberFlood is how long a flood is remembered behind the last one.
	rememberFlood = 10 * time.Second
	// leastCredits are enough for what a client does before its first call.
	leastCredits = 100
	maxOrigins   = 1024
)

// note counts a flood.
func (f *floods) note(origin string, now int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.seen) >= maxOrigins {
		clear(f.seen) // Floods from so many places are held up by other bounds.
	}
	if f.seen == nil {
		f.seen = map[string]floodsOf{}
	}
	of := f.seen[origin]
	if now-of.at > int64(rememberFlood) {
		of.n = 0
	}
	f.seen[origin] = floodsOf{of.n + 1, now}
}

// credits are what a new connection begins with.
func (f *floods) credits(origin string, now int64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	of, ok := f.seen[origin]
	switch {
	case !ok:
		return firstCredits
	case now-of.at > int64(rememberFlood):
		delete(f.seen, origin)
		return firstCredits
	}
	return max(firstCredits>>min(of.n, 16), leastCredits)
}
