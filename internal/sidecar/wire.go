package sidecar

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/member"
)

// What the process says is bounded: an answer to a call, and a report of load.
const (
	maxAnswer = 64 << 10
	maxReport = 1 << 20
	// maxSaid is how much of what it says is repeated to people.
	maxSaid = 512
)

// Call is what the process is asked, as JSON. The field names stay.
type Call struct {
	// ID is the call's, the same when it is handed out again.
	ID   string `json:"id"`
	Call string `json:"call"`
	// Keyspace that it is about, and the region; stop and resume have none.
	Keyspace string `json:"keyspace,omitempty"`
	*RegionJSON
	// From is who has the region while it is prepared.
	From *PeerJSON `json:"from,omitempty"`
	// Right is the other region of a merge.
	Right *RegionJSON `json:"right,omitempty"`
	// To is the member that is to lead.
	To string `json:"to,omitempty"`
	// Reason and DeadlineMillis of drain.
	Reason         string `json:"reason,omitempty"`
	DeadlineMillis int64  `json:"deadline_millis,omitempty"`
}

// RegionJSON is a region as the process is told of it. Numbers that use 64 bits are text.
type RegionJSON struct {
	Region   string `json:"region"`
	Keyspace string `json:"keyspace"`
	Epoch    string `json:"epoch"`
	// Key is the one key of a point, if it is text; Start and End are route keys in base64,
	// and an empty End is the end of the keyspace.
	Key   string `json:"key,omitempty"`
	Start string `json:"start_key"`
	End   string `json:"end_key"`
	// Frontier is how far the owner before got; FrontierBytes the same in base64, if it is no
	// text.
	Frontier      string `json:"frontier"`
	FrontierBytes string `json:"frontier_base64,omitempty"`
	// Owners of a region that several share.
	Owners []string `json:"owners,omitempty"`
}

// PeerJSON is another member.
type PeerJSON struct {
	Member  string `json:"member"`
	Address string `json:"address"`
	Epoch   string `json:"epoch"`
}

// Answer is what the process answers. What is not known in it is passed over.
type Answer struct {
	// Error is why it did not; by HTTP the status says so, and this why.
	Error string `json:"error,omitempty"`
	// Frontier is how far the region got, which release, checkpoint and merge have to say, "" too;
	// FrontierBytes the same, if it is no text.
	Frontier      *string `json:"frontier,omitempty"`
	FrontierBytes *[]byte `json:"frontier_base64,omitempty"`
	Idle          bool    `json:"idle,omitempty"`
	// Unsupported: it does not know this call.
	Unsupported bool `json:"unsupported,omitempty"`
}

func regionJSON(r member.Region) *RegionJSON {
	j := &RegionJSON{
		Region: strconv.FormatUint(uint64(r.ID), 10), Epoch: r.Epoch.String(), Keyspace: r.Keyspace,
		Start: base64.StdEncoding.EncodeToString([]byte(r.Start)), End: base64.StdEncoding.EncodeToString([]byte(r.End)),
	}
	if r.End == r.Start+"\x00" && utf8.ValidString(r.Start) {
		j.Key = r.Start
	}
	if isText(r.Frontier) {
		j.Frontier = r.Frontier
	} else {
		j.FrontierBytes = base64.StdEncoding.EncodeToString([]byte(r.Frontier))
	}
	for i, o := range r.Owners {
		if len(r.Owners) > 1 && i < 256 {
			j.Owners = append(j.Owners, string(o.Member))
		}
	}
	return j
}

// errGarbled is an answer that is none: what became of the call is not known.
var errGarbled = errors.New("what it answered is not the JSON of docs/callers.md")

// errNoFrontier is an answer that would have the region begin anew.
var errNoFrontier = errors.New(`the answer does not say how far the region got: want {"frontier": "..."}, with "" if that is nothing, or {"error": "..."} if it was not done`)

// parseAnswer reads an answer. Nothing at all is an answer too: it is done.
func parseAnswer(body []byte) (a Answer, err error) {
	if len(body) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("%w: %s: %s", errGarbled, err, said(body))
	}
	if a.Frontier != nil && !isText(*a.Frontier) {
		return a, fmt.Errorf("%w: the frontier is no text in UTF-8: say it in frontier_base64: %s", errGarbled, said(body))
	}
	return a, nil
}

// isText says whether a frontier comes through JSON as it is: bytes that are no UTF-8, and halves of
// surrogate pairs, are read as the replacement character, which therefore is no text either.
func isText(frontier string) bool {
	return utf8.ValidString(frontier) && !strings.ContainsRune(frontier, utf8.RuneError)
}

// check judges what was answered to a call. Behind an error it is no answer.
func (a *Answer) check(call string) error {
	switch call {
	case "release", "checkpoint", "merge":
		if a.Error == "" && !a.Unsupported && a.Frontier == nil && a.FrontierBytes == nil {
			return errNoFrontier
		}
	}
	return nil
}

// bounded is what is taken of an answer: nothing in it is longer than it may be.
func (a Answer) bounded() Answer {
	if a.FrontierBytes != nil && len(*a.FrontierBytes) > 0 {
		a.Frontier = nil // it is not looked at
	}
	if n := len(a.frontier()); n > held.MaxFrontierBytes {
		a = Answer{Error: fmt.Sprintf("the frontier has %d bytes, %d at most", n, held.MaxFrontierBytes)}
	}
	a.Error = a.Error[:min(len(a.Error), maxSaid)]
	return a
}

func (a *Answer) frontier() []byte {
	switch {
	case a.FrontierBytes != nil && len(*a.FrontierBytes) > 0:
		return *a.FrontierBytes
	case a.Frontier != nil:
		return []byte(*a.Frontier)
	}
	return nil
}

// said is what people are shown of an answer.
func said(body []byte) string { return strconv.Quote(string(body[:min(len(body), maxSaid)])) }
