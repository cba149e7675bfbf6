package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a call asked for: the values of Call.Op.
const (
	OpTSO     = "tso"
	OpID      = "id"
	OpRoute   = "route"
	OpPublish = "publish"
)

// maxLine bounds a line of a recorded history, in bytes.
const maxLine = 64 << 10

// Call is one call of a recorded history, a line of JSON. All calls of a file
// are timed by one clock. A zero field that is not needed is left out.
type Call struct {
	// Client names the caller, Endpoint the address that it asked.
	Client   string `json:"client,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	// Op is OpTSO, OpID, OpRoute or OpPublish.
	Op string `json:"op"`
	// CallNS is when the request was sent, ReturnNS when the reply was there, in
	// nanoseconds. ReturnNS 0: it never came.
	CallNS   int64 `json:"call_ns"`
	ReturnNS int64 `json:"return_ns"`
	// First and Count are the values given out: [First, First+Count).
	First uint64 `json:"first,omitempty"`
	Count uint64 `json:"count,omitempty"`
	// Era is the era of the reply.
	Era uint64 `json:"era,omitempty"`
	// Holder and Incarnation are the process that replied. Holder "" and
	// Incarnation 0: not known.
	Holder      string `json:"holder,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty"`
	// WallMS is true Unix milliseconds when the reply was there. 0: not known.
	WallMS uint64 `json:"wall_ms,omitempty"`
	// Err is why the call gave nothing. "": it succeeded, or never returned.
	Err string `json:"err,omitempty"`
}

// Writer writes calls as they end. It is safe for concurrent use. What Flush
// did not write may be lost.
type Writer struct {
	mu  sync.Mutex
	buf *bufio.Writer
	err error
}

// NewWriter returns a Writer of w, which stays the caller's to close.
func NewWriter(w io.Writer) *Writer {
	return &Writer{buf: bufio.NewWriterSize(w, 1<<16)}
}

// Write adds a call. A call that Read would refuse is refused and not written.
// An error of the file beneath stays: every later Write and Flush returns it.
func (w *Writer) Write(c Call) error {
	if err := c.check(); err != nil {
		return err
	}
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode call: %w", err)
	}
	if len(line) >= maxLine {
		return fmt.Errorf("a call of %d bytes, the most is %d", len(line), maxLine-1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		_, w.err = w.buf.Write(append(line, '\n'))
	}
	return w.err
}

// Flush hands what was written to the file beneath.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.buf.Flush()
	}
	return w.err
}

// Read reads a recorded history to its end. An error names the line: one that
// is cut off, has an unknown field, or is no possible call.
func Read(r io.Reader) ([]Call, error) {
	lines := bufio.NewReaderSize(r, maxLine)
	var calls []Call
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return calls, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("line %d is cut off", n)
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d is longer than %d bytes", n, maxLine)
		case err != nil:
			return nil, fmt.Errorf("read line %d: %w", n, err)
		}
		c, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		calls = append(calls, c)
	}
}

func parse(line []byte) (Call, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	var c Call
	if err := d.Decode(&c); err != nil {
		return Call{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Call{}, errors.New("more than one value")
	}
	return c, c.check()
}

// check says whether c is a possible call.
func (c *Call) check() error {
	switch c.Op {
	case OpTSO, OpID, OpRoute, OpPublish:
	default:
		return fmt.Errorf("op is %q: want %s, %s, %s or %s", c.Op, OpTSO, OpID, OpRoute, OpPublish)
	}
	if c.CallNS < 0 || c.ReturnNS < 0 || c.ReturnNS != 0 && c.ReturnNS < c.CallNS {
		return fmt.Errorf("called at %d ns, returned at %d ns", c.CallNS, c.ReturnNS)
	}
	if c.Err != "" && c.Count != 0 {
		return fmt.Errorf("%d values with an error", c.Count)
	}
	if c.Count != 0 && c.First+(c.Count-1) < c.First {
		return fmt.Errorf("%d values from %d on pass the end of 64 bits", c.Count, c.First)
	}
	gives := c.Op == OpTSO || c.Op == OpID
	if gives && c.Err == "" && c.ReturnNS != 0 && (c.Count == 0 || c.First == 0 || c.Era == 0) {
		return errors.New("a reply of values needs first, count and era")
	}
	return nil
}

// FromCalls returns what the calls gave out. Calls that failed, gave nothing,
// or asked for no values are no Grants. Tenures, root ids and bounds are the
// caller's to add.
func FromCalls(calls []Call) *History {
	h := &History{}
	for i := range calls {
		c := &calls[i]
		m := rootv1.Mandate_MANDATE_ALLOC_ID
		if c.Op == OpTSO {
			m = rootv1.Mandate_MANDATE_TSO
		} else if c.Op != OpID {
			continue
		}
		if c.Count == 0 {
			continue
		}
		g := &Grant{
			Mandate: m, First: c.First, Count: c.Count, Era: c.Era, Holder: c.Holder, Incarnation: c.Incarnation,
			Called: time.Duration(c.CallNS), Returned: time.Duration(c.ReturnNS), Wall: c.WallMS,
		}
		if c.ReturnNS == 0 {
			g.Returned = Never
		}
		h.Grants = append(h.Grants, g)
	}
	return h
}
