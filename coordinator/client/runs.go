package client

import (
	"fmt"
	"sync/atomic"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// runs merges callers who want runs of numbers, timestamps or ids, onto one
// stream.
type runs struct {
	c      *Client
	name   string
	merger *merger
	pipe   *pipe[runRequest, runReply]
	// ordered: each run is above those before it.
	ordered bool
	last    uint64 // highest served; under pipe.mu

	requests, callers *atomic.Uint64
}

// newRuns makes the merged side of a stream of the service.
func newRuns[Q, R any](c *Client, name string, most uint64, ordered bool, connect streamOf[Q, R], requests, callers *atomic.Uint64) *runs {
	t := &runs{c: c, name: name, ordered: ordered, requests: requests, callers: callers}
	t.pipe = &pipe[runRequest, runReply]{
		c: c, op: operation{name: name, authority: true},
		connect: wired[runRequest, runReply](connect),
		match:   first[runRequest, runReply],
		judge:   t.judge,
		work:    make(chan struct{}, 1),
	}
	t.merger = newMerger(most, 1, t.launch)
	return t
}

func (t *runs) launch(b *batch) {
	if b.deserted() {
		t.merger.finish(b, 0, 0, errGaveUp)
		return
	}
	t.requests.Add(1)
	t.callers.Add(b.callers)
	t.pipe.send(&request[runRequest, runReply]{
		msg:      &runRequest{b.count},
		expires:  b.expires(t.c.cfg.DefaultTimeout),
		deserted: b.deserted,
		finish: func(reply *runReply, err error) {
			if err != nil {
				reply = &runReply{}
			}
			t.merger.finish(b, reply.first, reply.era, err)
		},
	})
}

// judge is promises (4) and (6): an era that is not over, and timestamps above
// all that were given out.
func (t *runs) judge(e *endpoint, r *request[runRequest, runReply], reply *runReply) error {
	if reply.refusal != nil {
		return refused(reply.refusal)
	}
	if err := t.c.acceptRun(e, reply); err != nil {
		return err
	}
	first, end := reply.first, reply.first+r.msg.count
	if reply.count != r.msg.count || first == 0 || end < first {
		return fmt.Errorf("%w: %d numbers from %d for a request of %d", errUnfit, reply.count, first, r.msg.count)
	}
	if !t.ordered {
		return nil
	}
	if first <= t.last {
		t.c.count.orderViolations.Add(1)
		t.c.log.Error("timestamps went back", "first", first, "last", t.last, "era", reply.era)
		return fmt.Errorf("%w: timestamp %d is not above %d", errUnfit, first, t.last)
	}
	t.last = end - 1
	return nil
}

// runRequest is a TsoRequest or an AllocIDRequest, runReply its answer.
type runRequest struct{ count uint64 }

type runReply struct {
	first, count, era, cluster uint64
	refusal                    *rootv1.ErrorDetail
}

func (r *runRequest) encoded() []byte {
	return protowire.AppendVarint(protowire.AppendTag(make([]byte, 0, 8), 1, protowire.VarintType), r.count)
}

func (r *runReply) decode(data []byte) error {
	return fields(data, func(n protowire.Number, v uint64, b []byte) error {
		switch n {
		case 1:
			r.first = v
		case 2:
			r.count = v
		case 3:
			r.era = v
		case 4:
			r.cluster = v
		case 5:
			r.refusal = &rootv1.ErrorDetail{}
			return proto.Unmarshal(b, r.refusal)
		}
		return nil
	})
}
