package mtls

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Who waits for the other side keeps nobody from his turn; who waits for his turn
// ends with his time; behind the handshake nothing is waited for.
func TestTurns(t *testing.T) {
	saved := turns
	defer func() { turns = saved }()
	synctest.Test(t, func(t *testing.T) {
		turns = make(chan struct{}, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		pipe := func() (*turn, net.Conn) {
			a, b := net.Pipe()
			t.Cleanup(func() { a.Close(); b.Close() })
			return &turn{Conn: a, ctx: ctx}, b
		}
		buf := make([]byte, 8)
		silent, _ := pipe()
		go func() { _, _ = silent.Read(make([]byte, 8)) }() // holds no turn while it waits
		synctest.Wait()
		first, theirs := pipe()
		go func() { _, _ = io.WriteString(theirs, "hello") }()
		if n, err := first.Read(buf); n != 5 || err != nil || !first.held {
			t.Fatalf("%d, %v, held: %v", n, err, first.held)
		}
		late, theirs := pipe()
		go func() { _, _ = io.WriteString(theirs, "hello") }()
		begun := time.Now()
		if _, err := late.Read(buf); err == nil || time.Since(begun) != time.Second {
			t.Fatalf("without a turn it read within %v: %v", time.Since(begun), err)
		}
		first.end()
		if len(turns) != 0 {
			t.Fatal("a handshake that is over has a turn")
		}
		turns <- struct{}{}
		next, theirs := pipe()
		next.end()
		go func() { _, _ = io.WriteString(theirs, "data") }()
		if n, err := next.Read(buf); n != 4 || err != nil || next.held {
			t.Errorf("behind the handshake: %d, %v", n, err)
		}
	})
}
