package member

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

// sick is a listener whose Accept fails in turn, and then has a connection.
type sick struct {
	net.Listener
	errs []error
	conn net.Conn
	over chan struct{}
}

func (s *sick) Accept() (net.Conn, error) {
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	if conn := s.conn; conn != nil {
		s.conn = nil
		return conn, nil
	}
	<-s.over
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: net.ErrClosed}
}

func (s *sick) Close() error {
	close(s.over)
	return nil
}

// Rule 6: a process that serves must not look dead because it has no file descriptors left, or
// whatever passes: the probe answers again when it can, and does not spin until then.
func TestRule6ProbeOutlivesErrorsThatPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		l := &sick{conn: there, over: make(chan struct{})}
		for range 50 {
			l.errs = append(l.errs, syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS, syscall.EPERM)
		}
		p := &probe{listener: l, line: "m1", slots: make(chan struct{}, probes), lost: func(err error) { t.Errorf("given up: %v", err) }}
		p.incarnation.Store(3)
		begin := time.Now()
		p.serving.Go(p.accept)
		if line, err := io.ReadAll(here); string(line) != "nokv-member m1 3\n" || err != nil {
			t.Errorf("the probe says %q, %v", line, err)
		}
		if took := time.Since(begin); took < 10*time.Second || took > 10*time.Minute {
			t.Errorf("250 errors took %v", took)
		}
		p.close()
	})
}

// Rule 6: where the listener is lost for good, whoever asks is refused, which proves a death.
// That is made so: nothing is served behind it.
func TestRule6LostProbe(t *testing.T) {
	for _, why := range []error{syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK} {
		synctest.Test(t, func(t *testing.T) {
			l := &sick{errs: []error{syscall.EMFILE, why}, over: make(chan struct{})}
			var lost error
			p := &probe{listener: l, line: "m1", slots: make(chan struct{}, probes), lost: func(err error) { lost = err }}
			p.serving.Go(p.accept)
			p.serving.Wait()
			if !errors.Is(lost, why) {
				t.Errorf("lost by %v: %v", why, lost)
			}
		})
	}
}
