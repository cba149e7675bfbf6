package coordinator

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// maxProbeLine bounds what is read of a line: the longest that a member says.
const maxProbeLine = state.MaxIDBytes + 64

// attemptTime is how long the first attempt of a probe may take; each next one may take
// twice as long. What is lost while a port closes would be sent again after a second only.
const attemptTime = 100 * time.Millisecond

// memberProbe asks who listens at a member's own address. A member says in one line who
// it is. Where connections have certificates, what goes wrong with one proves nothing:
// it may be ours that has ended.
func memberProbe(certs *mtls.Source, dial func(ctx context.Context, address string) (net.Conn, error)) func(context.Context, liveness.Probe) liveness.ProbeResult {
	if dial == nil {
		dial = dialTCP
	}
	return memberProber{certs: certs, dial: dial}.probe
}

// memberProber probes members.
type memberProber struct {
	certs *mtls.Source
	dial  func(ctx context.Context, address string) (net.Conn, error)
}

// probe knocks until there is an answer, or a refusal.
func (k memberProber) probe(ctx context.Context, p liveness.Probe) liveness.ProbeResult {
	wait := attemptTime
	// A process that dies closes its connections a moment before its port.
	for range knocks {
		attempt, cancel := context.WithTimeout(ctx, wait)
		result, ended := k.once(attempt, p)
		late := attempt.Err() != nil
		cancel()
		switch {
		case result != liveness.NoAnswer || ctx.Err() != nil || !ended && !late:
			return result
		case late:
			wait *= 2
			continue
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

// once is one connection. ended: it was accepted, and is over without a word. What is dialled is one
// socket: a name may stand for several, of which one refuses and another is cut off, and an address
// that stands for none of them in particular is answered by this very machine. Such addresses, of
// members that registered before they were refused, prove nothing.
func (k memberProber) once(ctx context.Context, p liveness.Probe) (result liveness.ProbeResult, ended bool) {
	at, err := netip.ParseAddrPort(p.Address)
	if err != nil || at.Addr().Unmap().IsUnspecified() {
		return liveness.NoAnswer, false
	}
	conn, err := k.dial(ctx, at.String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return liveness.Refused, false
	}
	if err != nil {
		return liveness.NoAnswer, errors.Is(err, syscall.ECONNRESET)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if k.certs != nil {
		secure, who, err := k.certs.ClientConn(ctx, conn, mtls.Peer{Role: principal.Member})
		_, plain := errors.AsType[tls.RecordHeaderError](err)
		if _, other := errors.AsType[*mtls.OtherError](err); plain || other {
			return liveness.AnsweredOther, false // no TLS at all, or somebody else of the cluster
		}
		if err != nil {
			return liveness.NoAnswer, over(err)
		}
		defer secure.Close()
		conn = secure
		if result, ended = judgeLine(conn, p); result == liveness.AnsweredSame && who.Name != string(p.Member) {
			result = liveness.NoAnswer // by a certificate of another name, that it is the one that is meant proves nothing
		}
		return result, ended
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
