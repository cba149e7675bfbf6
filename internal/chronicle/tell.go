package chronicle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// pieces are what there is to tell of the n-th event of a command.
func (s *scene) pieces(e *rootv1.Event, n int) []piece {
	kind := KindOf(e)
	pieces := s.ofMember(e, n)
	if pieces == nil {
		pieces = s.ofRegions(e, n)
	}
	if pieces == nil {
		pieces = s.ofKeyspace(e)
	}
	if pieces == nil {
		pieces = []piece{s.ofCluster(e)}
	}
	for i := range pieces {
		pieces[i].kind = kind
		if pieces[i].key != "" {
			pieces[i].key = kind + " " + pieces[i].key
		}
	}
	return pieces
}

// KindOf is an event's name on the wire, such as "region_published".
func KindOf(e *rootv1.Event) string {
	m := e.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("kind"))
	if field == nil {
		return "unknown"
	}
	return string(field.Name())
}

// result is what the n-th event made; nothing where that is not known.
func (s *scene) result(n int) state.EventResult {
	if n < len(s.results) {
		return s.results[n]
	}
	return state.EventResult{}
}

// said is a sentence that is the same for all pieces.
func said(format string, args ...any) func([]piece) string {
	text := fmt.Sprintf(format, args...)
	return func([]piece) string { return text }
}

// keyspace is the name of a keyspace, as far as it is known.
func (s *scene) keyspace(id uint32) string {
	for _, st := range []*state.State{s.before, s.after} {
		if k := st.Keyspace(state.KeyspaceID(id)); k != nil {
			return k.GetName()
		}
	}
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("keyspace %d", id)
}

// region is a region as it was, or is; nil: it is known no more.
func (s *scene) region(id uint64) *state.Region {
	for _, st := range []*state.State{s.before, s.after} {
		if r := st.Region(state.RegionID(id)); r != nil {
			return r
		}
	}
	return nil
}

// of fills in a piece which region it is about.
func (s *scene) of(p piece, id uint64) piece {
	p.region, p.place = id, fmt.Sprintf("region %d", id)
	if r := s.region(id); r != nil {
		p.keyspace = s.keyspace(uint32(r.Keyspace))
		where := strconv.Quote(r.Start)
		if k := s.after.Keyspace(r.Keyspace); k.GetSettings().GetLayout().GetSlots() != nil && len(r.Start) == 8 {
			where = fmt.Sprintf("slot %d", rooted.SlotAt(r.Start))
		}
		p.place += fmt.Sprintf(" (%s) of %s", where, p.keyspace)
	}
	if p.key != "" {
		p.key += " " + p.keyspace
	}
	return p
}

// places are the regions of pieces: the only one, or how many of the keyspace that they share.
func places(all []piece) string {
	switch {
	case len(all) == 1:
		return all[0].place
	case all[0].keyspace == "":
		return fmt.Sprintf("%d regions", len(all))
	}
	return fmt.Sprintf("%d regions of %s", len(all), all[0].keyspace)
}

// goes is the form of a verb for one region or several.
func goes(all []piece, one, many string) string {
	if len(all) == 1 {
		return one
	}
	return many
}

// shares are the members that pieces go to, with how many if there are several.
func shares(all []piece) string {
	count := map[string]int{}
	var names []string
	for i := range all {
		to := strings.Join(all[i].to, "+")
		if count[to] == 0 {
			names = append(names, to)
		}
		count[to]++
	}
	slices.Sort(names)
	if len(names) > 1 {
		for i, name := range names {
			names[i] = fmt.Sprintf("%s (%d)", name, count[name])
		}
	}
	return and(names)
}

// and joins words.
func and(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}

// regions is a number of them.
func regions(n int) string {
	if n == 1 {
		return "1 region"
	}
	return strconv.Itoa(n) + " regions"
}

// because is a text behind a sentence, if there is one.
func because(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

func ownersOf(owners []*rootv1.Owner) (ids []string) {
	for _, o := range owners {
		ids = append(ids, o.GetMemberId())
	}
	return ids
}

var causes = map[rootv1.OperationReason]string{
	rootv1.OperationReason_OPERATION_REASON_OPERATOR:        "somebody asked for it",
	rootv1.OperationReason_OPERATION_REASON_FIRST_TOUCH:     "there was no owner",
	rootv1.OperationReason_OPERATION_REASON_ORPHANED:        "the owner's process is over",
	rootv1.OperationReason_OPERATION_REASON_MEMBER_FAILED:   "the owner has failed",
	rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING: "the owner drains",
	rootv1.OperationReason_OPERATION_REASON_COUNT:           "the owner has more regions than others",
	rootv1.OperationReason_OPERATION_REASON_LOAD:            "the owner has more load than others",
	rootv1.OperationReason_OPERATION_REASON_SATURATED:       "the owner is saturated",
	rootv1.OperationReason_OPERATION_REASON_LIMIT:           "a limit of the keyspace",
	rootv1.OperationReason_OPERATION_REASON_LABEL_RULE:      "a label rule",
	rootv1.OperationReason_OPERATION_REASON_IDLE:            "nobody used it",
	rootv1.OperationReason_OPERATION_REASON_HOT:             "it is hot",
	rootv1.OperationReason_OPERATION_REASON_COLD:            "it is cold",
	rootv1.OperationReason_OPERATION_REASON_NOT_SERVED:      "its owner fails to acquire it",
	rootv1.OperationReason_OPERATION_REASON_NOT_ACCEPTED:    "its owner may not have it",
}

// Cause is a reason of an operation in words; empty: there is none.
func Cause(r rootv1.OperationReason) string { return causes[r] }
