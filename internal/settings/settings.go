// Package settings names every setting of a keyspace, to be read and written as text.
//
// It owns the names, such as liveness-dead-after, and the form of the values: 5s, epoch,
// true, 16. It promises that what Text gives, Set takes back, and that a field which is new
// in the wire has a name at once. Which values are allowed is meta/root/state's to say.
package settings

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Setting is one setting.
type Setting struct {
	// Name is its path on the wire with dashes, without a unit.
	Name string
	// Takes is a word for its values, Choices are all of them where they are few.
	Takes   string
	Choices []string

	path   []protoreflect.FieldDescriptor
	millis bool
}

// All are the settings in the order of the wire. The layout, labels and label rules have
// forms of their own, and are not among them.
func All() []Setting {
	return under((&rootv1.KeyspaceSettings{}).ProtoReflect().Descriptor(), nil)
}

func under(d protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor) (all []Setting) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		to := append(path[:len(path):len(path)], f)
		switch {
		case f.IsList() || f.IsMap() || len(path) == 0 && (f.Name() == "layout" || f.Name() == "preset"):
		case f.Message() != nil:
			all = append(all, under(f.Message(), to)...)
		default:
			all = append(all, named(to))
		}
	}
	return all
}

func named(path []protoreflect.FieldDescriptor) Setting {
	s := Setting{path: path, Takes: "number"}
	words := make([]string, len(path))
	for i, f := range path {
		words[i] = strings.ReplaceAll(string(f.Name()), "_", "-")
	}
	s.Name = strings.Join(words, "-")
	switch f := s.field(); {
	case f.Kind() == protoreflect.BoolKind:
		s.Takes, s.Choices = "true or false", []string{"true", "false"}
	case f.Enum() != nil:
		values := f.Enum().Values()
		for i := 1; i < values.Len(); i++ { // the first one is that there is none
			s.Choices = append(s.Choices, word(f.Enum(), values.Get(i)))
		}
		s.Takes = "word"
	case f.Kind() == protoreflect.StringKind:
		s.Takes = "text"
	default:
		if s.Name, s.millis = strings.CutSuffix(s.Name, "-millis"); s.millis {
			s.Takes = "time"
		}
	}
	return s
}

func (s *Setting) field() protoreflect.FieldDescriptor { return s.path[len(s.path)-1] }

// word is an enum's value without what all of them begin with.
func word(e protoreflect.EnumDescriptor, v protoreflect.EnumValueDescriptor) string {
	prefix := strings.TrimSuffix(string(e.Values().Get(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}

// Text is the value of a setting; empty: it is not set.
func (s *Setting) Text(of *rootv1.KeyspaceSettings) string {
	m := of.ProtoReflect()
	for _, f := range s.path[:len(s.path)-1] {
		if !m.Has(f) {
			return ""
		}
		m = m.Get(f).Message()
	}
	f := s.field()
	if !m.Has(f) {
		return ""
	}
	switch v := m.Get(f); {
	case s.millis && v.Uint() > math.MaxInt64/uint64(time.Millisecond):
		return strconv.FormatUint(v.Uint(), 10) + "ms"
	case s.millis:
		return (time.Duration(v.Uint()) * time.Millisecond).String()
	case f.Enum() != nil:
		return word(f.Enum(), f.Enum().Values().ByNumber(v.Enum()))
	default:
		return v.String()
	}
}

// Counts is Text, or, where nothing is set, what counts instead.
func (s *Setting) Counts(of *rootv1.KeyspaceSettings) string {
	if text := s.Text(of); text != "" {
		return text
	}
	var scaling *rootv1.Scaling
	var liveness *rootv1.Liveness
	if of.GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED {
		scaling, liveness = state.ScalingOf(of), state.LivenessOf(of)
	}
	return s.Text(&rootv1.KeyspaceSettings{
		Liveness: liveness, Cadence: &rootv1.Cadence{IdleScanMillis: state.IdleScanMillis(of)}, Scaling: scaling, Moves: state.MovesOf(of), Guards: state.GuardsOf(of), Start: state.StartOf(of), Policy: &rootv1.Policy{Rebalance: state.RebalanceOf(of)},
	})
}

// Set writes a value. Of an empty one, or 0, nothing is set any more.
func (s *Setting) Set(in *rootv1.KeyspaceSettings, text string) error {
	v, err := s.parse(text)
	if err != nil {
		return err
	}
	m := in.ProtoReflect()
	for _, f := range s.path[:len(s.path)-1] {
		m = m.Mutable(f).Message()
	}
	if !v.IsValid() {
		m.Clear(s.field())
		return nil
	}
	m.Set(s.field(), v)
	return nil
}

// parse is invalid for what clears.
func (s *Setting) parse(text string) (none protoreflect.Value, err error) {
	f := s.field()
	switch {
	case text == "":
		return none, nil
	case f.Enum() != nil:
		for i, choice := range s.Choices {
			if text == choice {
				return protoreflect.ValueOfEnum(f.Enum().Values().Get(i + 1).Number()), nil
			}
		}
		return none, fmt.Errorf("want %s", strings.Join(s.Choices, ", "))
	case f.Kind() == protoreflect.BoolKind:
		switch text {
		case "true":
			return protoreflect.ValueOfBool(true), nil
		case "false":
			return protoreflect.ValueOfBool(false), nil
		}
		return none, fmt.Errorf("want true or false")
	case s.millis:
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d%time.Millisecond != 0 {
			return none, fmt.Errorf("want a duration such as 500ms or 3s, in whole milliseconds, that is not negative")
		}
		return protoreflect.ValueOfUint64(uint64(d / time.Millisecond)), nil
	case f.Kind() == protoreflect.StringKind:
		return protoreflect.ValueOfString(text), nil
	case f.Kind() == protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return none, fmt.Errorf("want a whole number, 4,294,967,295 at most")
		}
		return protoreflect.ValueOfUint32(uint32(n)), nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return none, fmt.Errorf("want a whole number that is not negative")
	}
	return protoreflect.ValueOfUint64(n), nil
}

// Change is a setting that is another one than before. Empty: it is not set.
type Change struct{ Name, From, To string }

// Diff is what differs.
func Diff(before, after *rootv1.KeyspaceSettings) (changes []Change) {
	for _, s := range All() {
		if from, to := s.Counts(before), s.Counts(after); from != to {
			changes = append(changes, Change{s.Name, from, to})
		}
	}
	if from, to := labels(before.GetLabels()), labels(after.GetLabels()); from != to {
		changes = append(changes, Change{"labels", from, to})
	}
	if from, to := rules(before), rules(after); from != to {
		changes = append(changes, Change{"policy-label-rules", from, to})
	}
	return changes
}

func labels(all map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		words = append(words, name+"="+all[name])
	}
	return strings.Join(words, " ")
}

func rules(of *rootv1.KeyspaceSettings) string {
	var words []string
	for _, rule := range of.GetPolicy().GetLabelRules() {
		words = append(words, fmt.Sprintf("%q: %s", rule.GetKeyPrefix(), labels(rule.GetLabels())))
	}
	return strings.Join(words, ", ")
}
