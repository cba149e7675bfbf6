package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// failing fails as told before it accepts.
type failing struct {
	errs []error
	conn net.Conn
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: err}
	}
	return f.conn, nil
}
func (f *failing) Close() error   { return nil }
func (f *failing) Addr() net.Addr { return &net.TCPAddr{} }

// What the process lacks at the moment is waited for, longer each time; what says
// that the listener is no more is told.
func TestErrorsThatPassAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, _ := net.Pipe()
		var errs []error
		for range 20 {
			errs = append(errs, os.NewSyscallError("accept4", syscall.EMFILE))
		}
		errs = append(errs, os.NewSyscallError("accept4", syscall.ECONNABORTED), os.NewSyscallError("accept4", syscall.ENFILE))
		start := time.Now()
		conn, err := Limit(&failing{errs: errs, conn: ours}, 1).Accept()
		if err != nil || conn.(*admitted).Conn != ours {
			t.Fatalf("%v, %v", conn, err)
		}
		if took := time.Since(start); took < 10*maxPause || took > 25*maxPause {
			t.Errorf("22 failures took %v", took)
		}
	})
	for _, final := range []error{net.ErrClosed, os.ErrDeadlineExceeded, os.NewSyscallError("accept4", syscall.EINVAL)} {
		if _, err := Accept(&failing{errs: []error{final}}); !errors.Is(err, final) {
			t.Errorf("%v became %v", final, err)
		}
	}
}

// One connection more than the limit is closed; one that ends makes room; behind
// CloseAll there is none.
func TestLimit(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	lis := Limit(inner, 2)
	accepted := make(chan net.Conn, 10)
	go func() {
		defer close(accepted)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ends := func(c net.Conn) {
		t.Helper()
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("it is not closed: %v", err)
		}
	}
	a, b := dial(), dial()
	first, second := <-accepted, <-accepted
	ends(dial())
	first.Close()
	first.Close()
	c := dial()
	third := <-accepted
	ends(dial())
	lis.CloseAll()
	for _, c := range []net.Conn{a, b, c, dial()} {
		ends(c)
	}
	for _, c := range []net.Conn{second, third} {
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("it is open: %v", err)
		}
	}
}

// What a process may accept leaves descriptors for its files, however few it has.
func TestConnections(t *testing.T) {
	for files, want := range map[uint64]int{0: 0, 40: 10, 96: 32, 1024: 960, 1 << 40: 1 << 20} {
		if got := connections(files); got != want {
			t.Errorf("of %d files %d are connections, want %d", files, got, want)
		}
	}
	if got := Connections(); got < 1 {
		t.Errorf("%d connections", got)
	}
}
