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
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.Address)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return liveness.Refused
		}
		if err != nil {
			return liveness.NoAnswer
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		if certs != nil {
			secure, _, err := certs.ClientConn(ctx, conn, principal.Member)
			if record := (tls.RecordHeaderError{}); errors.As(err, &record) {
				return liveness.AnsweredOther // no TLS at all
			}
			if err != nil {
				return liveness.NoAnswer
			}
			defer secure.Close()
			conn = secure
		}
		return judgeLine(conn, p)
	}
}

// judgeLine reads what is said. Less than a whole line, and that without an end which is
// longer than a member's could be, is no answer.
func judgeLine(r io.Reader, p liveness.Probe) liveness.ProbeResult {
	line, err := bufio.NewReaderSize(io.LimitReader(r, maxProbeLine), maxProbeLine).ReadString('\n')
	switch own := fmt.Sprintf("nokv-member %s %d\n", p.Member, p.Incarnation); {
	case line == own:
		return liveness.AnsweredSame
	case err == nil, line != "" && !strings.HasPrefix("nokv-member ", line[:min(len(line), len("nokv-member "))]):
		return liveness.AnsweredOther
	default:
		return liveness.NoAnswer
	}
}
