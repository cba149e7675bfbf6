package settings

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Overlay lays protobuf JSON of nokv.root.v1.KeyspaceSettings over settings, as state.MergeSettings does, and
// returns a new message. What the text names and leaves empty, as null, 0, "", false, an empty list or no
// labels, is not set any more.
func Overlay(base *rootv1.KeyspaceSettings, text []byte) (*rootv1.KeyspaceSettings, error) {
	over := &rootv1.KeyspaceSettings{}
	if err := protojson.Unmarshal(text, over); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\u00a0", " "))
	}
	rest := &rootv1.KeyspaceSettings{}
	proto.Merge(rest, base)
	takeBack(rest.ProtoReflect(), over.ProtoReflect(), text)
	return state.MergeSettings(rest, over), nil
}

// takeBack clears the fields that text, which over is made of, names and leaves empty.
func takeBack(in, over protoreflect.Message, text []byte) {
	var named map[string]json.RawMessage
	if json.Unmarshal(text, &named) != nil {
		return // over could not be made of it
	}
	for name, value := range named {
		f := in.Descriptor().Fields().ByJSONName(name)
		if f == nil {
			f = in.Descriptor().Fields().ByTextName(name)
		}
		switch {
		case f == nil:
		case !over.Has(f):
			in.Clear(f)
		case f.Message() != nil && !f.IsMap() && !f.IsList() && in.Has(f):
			takeBack(in.Mutable(f).Message(), over.Get(f).Message(), value)
		}
	}
}
