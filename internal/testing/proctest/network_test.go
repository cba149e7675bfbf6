package proctest_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// soon bounds what should take no time; held is how long nothing must come.
const (
	soon = proctest.Patience
	held = 50 * time.Millisecond
)

// echo listens and sends back what it is sent.
func echo(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return lis.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a word and returns what comes back within a time.
func ask(t *testing.T, conn net.Conn, word string, within time.Duration) error {
	t.Helper()
	if word != "" {
		if _, err := io.WriteString(conn, word); err != nil {
			return err
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(within))
	got := make([]byte, 4)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != "word" {
		t.Fatalf("got %q", got)
	}
	return nil
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestNetworkCutsEachDirection(t *testing.T) {
	for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
		n := proctest.NewNetwork(t)
		door := n.Door("a", "b", echo(t))
		conn := dial(t, door)
		if err := ask(t, conn, "word", soon); err != nil {
			t.Fatal(err)
		}
		n.Set(way[0], way[1], proctest.Condition{Cut: true})
		if err := ask(t, conn, "word", held); !timedOut(err) {
			t.Errorf("%v cut: %v", way, err)
		}
		fresh := dial(t, door)
		if err := ask(t, fresh, "word", held); !timedOut(err) {
			t.Errorf("%v cut: a new connection: %v", way, err)
		}
		proctest.Eventually(t, soon, func() error { // the proxy may be slow
			if c := n.Counts(way[0], way[1]); c.Held < 2 || c.Faults() != c.Held {
				return fmt.Errorf("%v cut: %+v", way, c)
			}
			return nil
		})
		n.Heal()
		for _, c := range []net.Conn{conn, fresh} {
			if err := ask(t, c, "", soon); err != nil {
				t.Errorf("%v mended: %v", way, err)
			}
		}
	}
}

func TestNetworkDelays(t *testing.T) {
	n := proctest.NewNetwork(t)
	conn := dial(t, n.Door("a", "b", echo(t)))
	const late = 100 * time.Millisecond
	n.Set("b", "a", proctest.Condition{Delay: late})
	begun := time.Now()
	if err := ask(t, conn, "word", soon); err != nil || time.Since(begun) < late {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
	if n.Counts("b", "a").Late == 0 || n.Counts("a", "b").Late != 0 || n.Counts("a", "b").Bytes != 4 {
		t.Errorf("%+v, %+v", n.Counts("a", "b"), n.Counts("b", "a"))
	}
}

func TestNetworkBreaksAndRefuses(t *testing.T) {
	n := proctest.NewNetwork(t)
	door := n.Door("a", "b", echo(t))
	conn := dial(t, door)
	if err := ask(t, conn, "word", soon); err != nil {
		t.Fatal(err)
	}
	n.Set("b", "a", proctest.Condition{Broken: true})
	if err := ask(t, conn, "", soon); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("an old connection: %v", err)
	}
	if fresh, err := net.Dial("tcp", door); err == nil { // or it was reset at once
		if err := ask(t, fresh, "", soon); err == nil || timedOut(err) {
			t.Errorf("a new connection: %v", err)
		}
		_ = fresh.Close()
	}
	n.Heal()
	n.Close("b")
	if _, err := net.Dial("tcp", door); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed door: %v", err)
	}
	n.Open("b")
	if err := ask(t, dial(t, door), "word", soon); err != nil {
		t.Errorf("an open door: %v", err)
	}
}

func TestNetworkIsDeaf(t *testing.T) {
	n := proctest.NewNetwork(t)
	door := n.Door("a", "b", echo(t))
	old := dial(t, door)
	if err := ask(t, old, "word", soon); err != nil {
		t.Fatal(err)
	}
	n.Set("a", "b", proctest.Condition{Deaf: true})
	fresh := dial(t, door)
	if err := ask(t, fresh, "word", held); !timedOut(err) {
		t.Errorf("a new connection: %v", err)
	}
	proctest.Eventually(t, soon, func() error { // the proxy may be slow
		if n.Counts("a", "b").Unanswered == 0 {
			return errors.New("nobody took the new connection")
		}
		return nil
	})
	if err := ask(t, old, "word", soon); err != nil {
		t.Errorf("an old connection: %v", err)
	}
	n.Heal()
	if err := ask(t, fresh, "", soon); err == nil || timedOut(err) {
		t.Errorf("the unanswered connection: %v", err)
	}
}

// A common door knows who comes by what is said first, and passes it on.
func TestNetworkTellsVisitorsApart(t *testing.T) {
	n := proctest.NewNetwork(t)
	door := n.CommonDoor("b", echo(t), 4, func(head []byte) string {
		if string(head) != "word" {
			return ""
		}
		return "a"
	})
	if err := ask(t, dial(t, door), "word", soon); err != nil {
		t.Fatal(err)
	}
	if n.Counts("a", "b").Bytes != 4 {
		t.Errorf("%+v", n.Counts("a", "b"))
	}
	if err := ask(t, dial(t, door), "what", soon); err == nil || timedOut(err) {
		t.Errorf("a stranger: %v", err)
	}
}
