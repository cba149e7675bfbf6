// Package dial connects to processes that may be ending.
//
// What reaches the port of a process while it ends may be dropped without a
// word, and TCP repeats it only after 200 ms to 1 s: as long as a takeover. It
// promises that a connection that is lost in this way is tried again in
// milliseconds, and that a closed port is told as soon as one attempt finds it
// closed.
package dial

import (
	"context"
	"net"
	"time"
)

// firstPause is the time before the second attempt; it doubles with each
// further one. Connecting within a data centre takes less.
const firstPause = 25 * time.Millisecond

// TCP connects to host:port. While no attempt has an outcome it begins further
// ones beside it, and the first outcome counts. It is a dialer for gRPC.
func TCP(ctx context.Context, address string) (net.Conn, error) {
	return race(ctx, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	})
}

// outcome of an attempt.
type outcome struct {
	conn net.Conn
	err  error
}

func race(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, over := make(chan outcome), ctx.Done()
	attempt := func() {
		conn, err := dial(ctx)
		select {
		case first <- outcome{conn, err}:
		case <-over:
			if conn != nil {
				_ = conn.Close() // another attempt has been taken
			}
		}
	}
	go attempt()
	pause := firstPause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case o := <-first:
			return o.conn, o.err
		case <-timer.C:
			go attempt()
			pause *= 2
			timer.Reset(pause)
		case <-over:
			return nil, context.Cause(ctx)
		}
	}
}
