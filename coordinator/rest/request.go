package rest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nokv/nokv/internal/keytext"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// read makes the message of a request: of its path, its parameters, and its body.
func (c *call) read(r *http.Request, body []byte) (proto.Message, error) {
	msg := c.request()
	params, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, bad("the parameters cannot be read: %v", err)
	}
	if c.changes() {
		for name := range params {
			return nil, bad("parameter %.64q: a POST has its fields in a JSON body", name)
		}
		if err := parse(body, msg); err != nil {
			return nil, err
		}
	}
	m := msg.ProtoReflect()
	for _, name := range c.fields {
		was := proto.Clone(msg).ProtoReflect()
		field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		m.Clear(field)
		if err := set(m, name, []string{r.PathValue(name)}); err != nil {
			return nil, err
		}
		if was.Has(field) && !was.Get(field).Equal(m.Get(field)) {
			return nil, bad("%s: the body says another one than the path", name)
		}
		if params.Has(name) {
			return nil, bad("parameter %s: it is in the path", name)
		}
	}
	for _, name := range names(params) {
		if err := set(m, name, params[name]); err != nil {
			return nil, err
		}
	}
	return msg, nil
}

// names are the names of parameters, in order: what is refused is refused alike each time.
func names(params url.Values) []string {
	all := make([]string, 0, len(params))
	for name := range params {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// parse reads a JSON body; an empty one is that of an empty message.
func parse(body []byte, into proto.Message) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if err := protojson.Unmarshal(body, into); err != nil {
		return bad("body: %s", words(err))
	}
	return nil
}

// parseOwn is parse for bodies that are no message: of fields by their names, each a
// *string, or a *uint64, which may be a number or text as in answers.
func parseOwn(body []byte, fields map[string]any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return bad("body: it is not an object of JSON")
	}
	seen := map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return bad("body: %v", err)
		}
		field := name.(string) // the decoder takes no other
		into := fields[field]
		switch {
		case into == nil:
			return bad("body: unknown field %.64q", field)
		case seen[field]:
			return bad("body: duplicate field %.64q", field)
		}
		seen[field] = true
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return bad("body: %v", err)
		}
		if err := setOwn(field, raw, into); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return bad("body: %v", err)
	}
	if _, end := d.Token(); end != io.EOF { //nolint:errorlint // it is that
		return bad("body: there is more behind it")
	}
	return nil
}

func setOwn(field string, raw json.RawMessage, into any) error {
	text := string(raw)
	if text == "null" { // as in messages
		return nil
	}
	quoted := json.Unmarshal(raw, &text) == nil
	switch into := into.(type) {
	case *string:
		if !quoted {
			return bad("body: %s: %.64s is not text", field, raw)
		}
		*into = text
	case *uint64:
		var err error
		if *into, err = strconv.ParseUint(text, 10, 64); err != nil {
			return bad("body: %s: %.64s is not a number from 0 to 2^64 - 1", field, raw)
		}
	}
	return nil
}

// words is an error of protojson, whose spaces differ from build to build.
func words(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}

// set sets the field that a path or parameter names, field.field for one in a message.
func set(m protoreflect.Message, path string, values []string) error {
	name, rest, deeper := strings.Cut(path, ".")
	field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if field == nil {
		return bad("parameter %.64q: %s has no field %.64q", path, m.Descriptor().Name(), name)
	}
	one := field.Message() == nil || shorthands[field.Message().FullName()] != nil
	switch {
	case deeper && field.Message() != nil && !field.IsList() && !field.IsMap():
		return set(m.Mutable(field).Message(), rest, values)
	case deeper || !one || field.IsMap():
		return bad("parameter %.64q: it cannot be said in a path or parameter", path)
	case field.IsList():
		for _, text := range values {
			v, err := value(field, path, text)
			if err != nil {
				return err
			}
			m.Mutable(field).List().Append(v)
		}
		return nil
	case len(values) != 1:
		return bad("parameter %.64q: it is there %d times, want once", path, len(values))
	}
	v, err := value(field, path, values[0])
	if err == nil {
		m.Set(field, v)
	}
	return err
}

// shorthands are messages that are written in a word, as the command line does.
var shorthands = map[protoreflect.FullName]func(string) (proto.Message, error){
	"nokv.root.v1.RootToken": func(text string) (proto.Message, error) {
		t, err := rooted.ParseToken(text)
		return t.Proto(), err
	},
}

// value reads one value of a field.
func value(field protoreflect.FieldDescriptor, path, text string) (protoreflect.Value, error) {
	wrong := func(want string) (protoreflect.Value, error) {
		return protoreflect.Value{}, bad("%s: %.64q is not %s", path, text, want)
	}
	switch field.Kind() {
	case protoreflect.BoolKind:
		if v, err := strconv.ParseBool(text); err == nil {
			return protoreflect.ValueOfBool(v), nil
		}
		return wrong("true or false")
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		if v, err := strconv.ParseUint(text, 10, 64); err == nil {
			return protoreflect.ValueOfUint64(v), nil
		}
		return wrong("a number from 0 to 2^64 - 1")
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		if v, err := strconv.ParseUint(text, 10, 32); err == nil {
			return protoreflect.ValueOfUint32(uint32(v)), nil
		}
		return wrong("a number from 0 to 2^32 - 1")
	case protoreflect.StringKind:
		if utf8.ValidString(text) {
			return protoreflect.ValueOfString(text), nil
		}
		return wrong("UTF-8")
	case protoreflect.BytesKind:
		key, err := keytext.Parse(text)
		if err != nil {
			return protoreflect.Value{}, bad("%s: %v", path, err)
		}
		return protoreflect.ValueOfBytes(key), nil
	case protoreflect.EnumKind:
		if v := enumValue(field.Enum(), text); v != nil {
			return protoreflect.ValueOfEnum(v.Number()), nil
		}
		return wrong("one of " + strings.Join(enumWords(field.Enum()), ", "))
	case protoreflect.MessageKind:
		v, err := shorthands[field.Message().FullName()](text)
		if err != nil {
			return protoreflect.Value{}, bad("%s: %v", path, err)
		}
		return protoreflect.ValueOfMessage(v.ProtoReflect()), nil
	default:
		return wrong("something that can be said in a path or parameter")
	}
}

// enumValue is the value that a word means: its whole name, or what is its own of it.
func enumValue(e protoreflect.EnumDescriptor, word string) protoreflect.EnumValueDescriptor {
	if v := e.Values().ByName(protoreflect.Name(word)); v != nil {
		return v
	}
	for i := range e.Values().Len() {
		if enumWords(e)[i] == word {
			return e.Values().Get(i)
		}
	}
	return nil
}

// enumWords are the values of an enum as parameters have them: strong for FRESHNESS_STRONG.
func enumWords(e protoreflect.EnumDescriptor) []string {
	var all []string
	prefix, _ := strings.CutSuffix(string(e.Values().Get(0).Name()), "UNSPECIFIED")
	for i := range e.Values().Len() {
		all = append(all, strings.ToLower(strings.TrimPrefix(string(e.Values().Get(i).Name()), prefix)))
	}
	return all
}
