package transport

import (
	"context"
	"net"
	"slices"
	"sync"

	"github.com/nokv/nokv/internal/listen"
)

// maxStrangers bounds connections that have not said who they are, or an eighth of
// what the process may accept.
const maxStrangers = 64

// lobby holds the connections that have not said who they are. When it is full
// whoever comes takes the place of the one that is there longest, of the source that
// has the most: who holds connections open in silence keeps out himself alone,
// and a peer, which says at once who it is, gets in.
type lobby struct {
	limit int

	mu      sync.Mutex // guards what follows
	waiting []*visitor // in the order of arrival
}

// open takes in everybody who comes to lis, until ctx ends or accepting fails. meet
// has the connection until it returns; who has said who he is leaves the lobby.
func (l *lobby) open(ctx context.Context, lis net.Listener, meet func(*visitor)) error {
	var meeting sync.WaitGroup
	defer meeting.Wait()
	for {
		conn, err := listen.Accept(lis)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		v := l.enter(conn)
		meeting.Go(func() {
			defer conn.Close()
			defer l.leave(v)
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			meet(v)
		})
	}
}

// visitor is a connection in the lobby.
type visitor struct {
	net.Conn
	source string
}

func newLobby() *lobby { return &lobby{limit: max(1, min(maxStrangers, listen.Connections()/8))} }

// enter takes a connection in, and ends another one when there is no room.
func (l *lobby) enter(conn net.Conn) *visitor {
	v := &visitor{Conn: conn, source: conn.RemoteAddr().String()}
	if host, _, err := net.SplitHostPort(v.source); err == nil {
		v.source = host
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= l.limit {
		l.evict()
	}
	l.waiting = append(l.waiting, v)
	return v
}

// evict ends one visitor. The lock is held.
func (l *lobby) evict() {
	have := map[string]int{}
	for _, v := range l.waiting {
		have[v.source]++
	}
	oldest := 0
	for i, v := range l.waiting {
		if have[v.source] > have[l.waiting[oldest].source] {
			oldest = i
		}
	}
	_ = l.waiting[oldest].Close() // It is told nothing.
	l.waiting = slices.Delete(l.waiting, oldest, oldest+1)
}

// leave ends a visit, if it has not been ended before.
func (l *lobby) leave(v *visitor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(other *visitor) bool { return other == v })
}
