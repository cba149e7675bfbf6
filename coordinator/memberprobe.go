package coordinator

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/principal"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
)

// maxProbeLine bounds what is read of a line: the longest that a member says.
const maxProbeLine = state.MaxIDBytes + 64

// memberProbe asks who listens at a member's own address. A member says in one line who
// it is. Where connections have certificates, what goes wrong with one proves nothing:
// it may be ours that has ended.
func memberProbe(certs *mtls.Source) func(context.Context, liveness.Probe) liveness.ProbeResult {
	return func(ctx context.Context, p liveness.Probe) liveness.ProbeResult {
		// A process that dies closes its connections a moment before its port.
		for range knocks {
			if result, ended := probeOnce(ctx, certs, p); !ended {
				return result
			}
			pause := time.NewTimer(knockPause)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
				return liveness.NoAnswer
			}
		}
		return liveness.NoAnswer
	}
}

// probeOnce is one connection. ended: it was accepted, and is over without a word.
func probeOnce(ctx context.Context, certs *mtls.Source, p liveness.Probe) (result liveness.ProbeResult, ended bool) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.Address)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return liveness.Refused, false
	}
	if err != nil {
		return liveness.NoAnswer, errors.Is(err, syscall.ECONNRESET)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if certs != nil {
		secure, _, err := certs.ClientConn(ctx, conn, principal.Member)
		if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
			return liveness.AnsweredOther, false // no TLS at all
		}
		if err != nil {
			return liveness.NoAnswer, over(err)
		}
		defer secure.Close()
		conn = secure
	}
	return judgeLine(conn, p)
}

// over reports whether a connection was ended by the other side's process or machine.
func over(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// judgeLine reads what is said. A part of a line that may be the beginning of a
// member's is no answer.
func judgeLine(r io.Reader, p liveness.Probe) (result liveness.ProbeResult, ended bool) {
	const first = "nokv-member "
	line, err := bufio.NewReaderSize(io.LimitReader(r, maxProbeLine), maxProbeLine).ReadString('\n')
	switch {
	case line == fmt.Sprintf("%s%s %d\n", first, p.Member, p.Incarnation):
		return liveness.AnsweredSame, false
	case err == nil || !strings.HasPrefix(first, line[:min(len(line), len(first))]):
		return liveness.AnsweredOther, false
	default:
		return liveness.NoAnswer, line == "" && over(err)
	}
}
