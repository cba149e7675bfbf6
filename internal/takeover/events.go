package takeover

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Kind is what a process logged.
type Kind string

// Kinds of events. The Number of an event is the era, or the raft term where
// root peers are concerned; of LeaderFound, PeerGone and LeaderChanged it is the
// node id.
const (
	Starts Kind = "starts"
	// Resumes is not logged: a process that hung goes on.
	Resumes Kind = "resumes"
	Stops   Kind = "stops"
	Suspect Kind = "suspect"
	Claims  Kind = "claims"
	// Refused: the root said how long to wait before the next claim.
	Refused     Kind = "refused"
	Begins      Kind = "begins"
	Serves      Kind = "serves"
	Ends        Kind = "ends"
	Retired     Kind = "retired"
	LeaderFound Kind = "leader found"

	PeerGone      Kind = "peer gone"
	Leads         Kind = "leads"
	LeaderChanged Kind = "leader changed"

	// Judges: a coordinator passes the verdict that a member has failed. It has no
	// Number.
	Judges Kind = "judges"
)

// messages are the log lines that are events.
var messages = map[string]Kind{
	"coordinator starts":  Starts,
	"root peer starts":    Starts,
	"coordinator stopped": Stops,
	"root peer stopped":   Stops,
	"holder is suspect":   Suspect,
	"claiming":            Claims,
	"claim answered":      Refused,
	"era begins":          Begins,
	"era serves":          Serves,
	"era ends":            Ends,
	"era retired":         Retired,
	"root leader found":   LeaderFound,
	"root peer is gone":   PeerGone,
	"leading":             Leads,
	"leader changed":      LeaderChanged,
	"member has failed":   Judges,
}

// Event is something that a process logged.
type Event struct {
	At     time.Duration
	Who    string
	Kind   Kind
	Number uint64
}

// line is what is read of a line of a log; logs are JSON, as `-o json` writes them.
type line struct {
	Message string `json:"@message"`
	Time    string `json:"@timestamp"`
	Era     uint64 `json:"era"`
	Term    uint64 `json:"term"`
	Peer    uint64 `json:"peer"`
	Leader  uint64 `json:"leader"`
	Wait    uint64 `json:"retry_after_millis"`
}

// maxLogLine bounds a line of a log, in bytes; longer ones are passed over.
const maxLogLine = 1 << 20

// ParseLog reads the events from the log of one process, over all its starts.
// Lines that are no JSON, such as a panic, are passed over; times are
// since epoch.
func ParseLog(r io.Reader, who string, epoch time.Time) ([]Event, error) {
	lines := bufio.NewReaderSize(r, maxLogLine)
	var events []Event
	for n := 1; ; n++ {
		raw, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return events, nil // what has no end yet is half a line
		}
		if err != nil {
			return nil, fmt.Errorf("log of %s, line %d: %w", who, n, err)
		}
		if e, ok := parseLine(raw, who, epoch); ok {
			events = append(events, e)
		}
	}
}

func parseLine(raw []byte, who string, epoch time.Time) (Event, bool) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		return Event{}, false
	}
	var head struct {
		Message string `json:"@message"`
	}
	if json.Unmarshal(raw, &head) != nil {
		return Event{}, false
	}
	kind, ok := messages[head.Message]
	if !ok {
		return Event{}, false
	}
	var l line
	if json.Unmarshal(raw, &l) != nil {
		return Event{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, l.Time)
	if err != nil {
		return Event{}, false
	}
	e := Event{At: at.Sub(epoch), Who: who, Kind: kind, Number: l.Era}
	switch kind {
	case Refused:
		if l.Wait == 0 {
			return Event{}, false
		}
	case Leads:
		e.Number = l.Term
	case PeerGone, LeaderFound:
		e.Number = l.Peer
	case LeaderChanged:
		e.Number = l.Leader
	}
	return e, true
}
