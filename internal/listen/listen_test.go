package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
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
		conn.Close()
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

// accepting accepts connections at a listener with a limit.
func accepting(t *testing.T, limit int) (lis *Listener, accepted chan *admitted, dial func() net.Conn) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis, accepted = Limit(inner, limit), make(chan *admitted, 10)
	var accept sync.WaitGroup
	accept.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			accepted <- c.(*admitted)
		}
	})
	t.Cleanup(func() {
		inner.Close()
		lis.CloseAll()
		accept.Wait()
	})
	return lis, accepted, func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// ends waits until the other side has closed a connection.
func ends(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(proctest.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("it is not closed: %v", err)
	}
}

// One connection more than the limit is closed when something is asked on all; one that
// ends makes room; behind CloseAll there is none.
func TestLimit(t *testing.T) {
	lis, accepted, dial := accepting(t, 2)
	busy := func() *admitted {
		c := <-accepted
		c.SetBusy(true)
		return c
	}
	a := dial()
	first := busy()
	b := dial()
	second := busy()
	ends(t, dial())
	first.Close()
	first.Close()
	c := dial()
	third := busy()
	ends(t, dial())
	if v := lis.Vars(); v.Open != 2 || v.Refused != 2 || v.Evicted != 0 {
		t.Errorf("%+v", v)
	}
	lis.CloseAll()
	for _, c := range []net.Conn{a, b, c, dial()} {
		ends(t, c)
	}
	for _, c := range []net.Conn{second, third} {
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("it is open: %v", err)
		}
	}
}

// Who comes when all places are taken gets that of the connection on which nothing
// is asked, first of those that never asked, then of the one that is silent longest.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	lis, accepted, dial := accepting(t, 4)
	var ours []net.Conn
	var theirs []*admitted
	for range 4 {
		ours = append(ours, dial())
		theirs = append(theirs, <-accepted)
	}
	told := make(chan int, 4)
	for i, c := range theirs {
		c.OnEvict(func() { told <- i })
	}
	theirs[0].SetBusy(true) // stays
	theirs[1].SetBusy(true)
	theirs[1].SetBusy(false)
	for _, want := range []int{2, 3, 1} {
		dial()
		c := <-accepted
		ends(t, ours[want])
		if got := <-told; got != want {
			t.Fatalf("%d made room, want %d", got, want)
		}
		c.SetBusy(true)
	}
	ends(t, dial())
	if v := lis.Vars(); v.Open != 4 || v.Refused != 1 || v.Evicted != 3 {
		t.Errorf("%+v", v)
	}
}

// All listeners of a process together leave it descriptors; one that has silent
// connections gives one of its own up.
func TestListenersShareTheProcess(t *testing.T) {
	_, first, dialFirst := accepting(t, 10)
	second, accepted, dialSecond := accepting(t, 10)
	dialFirst()
	(<-first).SetBusy(true)
	second.mu.Lock()
	second.process = inProcess.Load() + 1
	second.mu.Unlock()
	kept := dialSecond()
	<-accepted
	dialSecond()
	(<-accepted).SetBusy(true)
	ends(t, kept)
	ends(t, dialSecond())
}

// stranger is a connection from another machine.
type stranger struct {
	net.Conn
	from string
}

func (s stranger) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(s.from), Port: 1} }
func (s stranger) Close() error         { return nil }

// One address that is not this machine's has a quarter of the places.
func TestOneAddressHasAQuarter(t *testing.T) {
	lis := Limit(nil, 8)
	var mine []*admitted
	for i := range 3 {
		if c := lis.admit(stranger{from: "192.0.2.1"}); (c != nil) != (i < 2) {
			t.Fatalf("connection %d: %v", i, c)
		} else if c != nil {
			mine = append(mine, c)
		}
	}
	other := lis.admit(stranger{from: "192.0.2.2"})
	if other == nil {
		t.Fatal("another address is refused")
	}
	mine[0].Close()
	again := lis.admit(stranger{from: "192.0.2.1"})
	if again == nil {
		t.Fatal("a place that is given back is lost")
	}
	for _, c := range []*admitted{mine[1], other, again} {
		c.Close()
	}
	if len(lis.from) != 0 || inProcess.Load() != 0 {
		t.Errorf("left: %v, %d", lis.from, inProcess.Load())
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
