package rest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const (
	// writeWithin is how long a reader of events may take nothing.
	writeWithin = 10 * time.Second
	// judgeEvery is the time between two looks whether a caller still may call.
	judgeEvery = time.Second
)

// watch answers with a stream of server-sent events.
func (h *Handler) watch(c *call) doing {
	return func(w http.ResponseWriter, r *http.Request, a *asked) error {
		if r.Method != http.MethodGet {
			return refuse(http.StatusMethodNotAllowed, "invalid_request", "use GET", "a stream has no end to be told of")
		}
		msg, err := c.read(r, nil)
		if err != nil {
			return err
		}
		req, ctx := msg.(*coordinatorv1.WatchRegionsRequest), r.Context()
		if at := r.Header.Get("Last-Event-ID"); at != "" {
			if ctx, err = resume(ctx, req, at); err != nil {
				return err
			}
		}
		who := a.place()
		if err := h.watches.Enter(who); err != nil {
			return err
		}
		defer h.watches.Leave(who)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := a.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.full)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(req); err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		first := new(coordinatorv1.WatchRegionsResponse)
		if err := stream.RecvMsg(first); err != nil {
			return err // nothing was said yet: it is the answer
		}
		id := h.cfg.Cluster()
		if id == 0 { // its events would have ids that nobody takes
			return refuse(http.StatusServiceUnavailable, reason.Name(rootv1.Reason_REASON_ROOT_UNAVAILABLE), "ask again after Retry-After, or another coordinator",
				"this coordinator has not heard of the root yet: which cluster it is, is not known")
		}
		e := &events{w: w, control: http.NewResponseController(w), asked: a, cluster: clusterid.String(id)}
		h.follow(r, e, stream, first)
		return nil
	}
}

// resume has a watch go on behind the id of an event.
func resume(ctx context.Context, req *coordinatorv1.WatchRegionsRequest, id string) (context.Context, error) {
	position, cluster, named := strings.Cut(id, "@")
	at, err := rooted.ParseToken(position)
	if err == nil && named {
		_, err = clusterid.Parse(cluster)
	}
	if err != nil {
		return nil, bad("Last-Event-ID: %v", err)
	}
	req.After = at.Proto()
	if named {
		ctx = metadata.AppendToOutgoingContext(ctx, clusterid.Key, cluster)
	}
	return ctx, nil
}

// follow passes a stream on until it, its reader, or the right of its caller ends.
func (h *Handler) follow(r *http.Request, e *events, stream grpc.ClientStream, m *coordinatorv1.WatchRegionsResponse) {
	e.begin()
	judged := time.Now()
	for {
		if err := e.send(m); err != nil {
			e.end(err)
			return
		}
		m.Reset()
		if err := stream.RecvMsg(m); err != nil {
			if r.Context().Err() == nil {
				e.end(err)
			}
			return
		}
		if now := time.Now(); now.Sub(judged) >= judgeEvery {
			judged = now
			if p, err := h.cfg.Caller(r); err != nil || p != e.asked.caller {
				e.end(refuse(http.StatusUnauthorized, "permission_denied", wayOut(http.StatusUnauthorized), "what said who asks is not good any more"))
				return
			}
		}
	}
}

// events writes server-sent events.
type events struct {
	w       http.ResponseWriter
	control *http.ResponseController
	asked   *asked
	cluster string
	broken  bool // the reader takes nothing
}

func (e *events) begin() {
	e.w.Header().Set("Content-Type", "text/event-stream")
	e.w.Header().Set("X-Accel-Buffering", "no")
	e.put([]byte("retry: 1000\n\n"))
}

// send writes a message as an event: with the position behind it as its id if all that
// is before that was told.
func (e *events) send(m *coordinatorv1.WatchRegionsResponse) error {
	size := proto.Size(m) * answerCost
	if err := e.asked.out.Take(size); err != nil {
		return err
	}
	defer e.asked.out.Give(size)
	raw, err := encode(m)
	if err != nil {
		return err
	}
	kind := "alive"
	switch {
	case m.GetSnapshot():
		kind = "snapshot"
	case m.GetPartial(), len(m.GetChanges())+len(m.GetKeyspaces())+len(m.GetMembers()) > 0:
		kind = "changes"
	}
	var b bytes.Buffer
	if t := m.GetToken(); t != nil && !m.GetPartial() {
		fmt.Fprintf(&b, "id: %s@%s\n", rooted.TokenFromProto(t), e.cluster)
	}
	fmt.Fprintf(&b, "event: %s\ndata: ", kind)
	b.Write(raw) // one line: protojson escapes those that are in strings
	b.WriteString("\n\n")
	return e.put(b.Bytes())
}

// end tells why nothing more comes.
func (e *events) end(err error) {
	if e.broken {
		return
	}
	e.put(fmt.Appendf(nil, "event: problem\ndata: %s\n\n", problemOf(err).document()))
}

func (e *events) put(b []byte) error {
	_ = e.control.SetWriteDeadline(time.Now().Add(writeWithin))
	_, err := e.w.Write(b)
	if err == nil {
		err = e.control.Flush()
	}
	e.broken = e.broken || err != nil
	return err
}
