package client

import (
	"errors"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
)

// sendable refuses a request that no coordinator would get: text in it is not
// UTF-8. Every call asks it before anything is sent. What is no message was
// encoded from parts that checkLookup has seen.
func sendable(op string, req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	if _, err := proto.Marshal(m); err != nil {
		return notText(op, m, err)
	}
	return nil
}

var errFound = errors.New("found")

// notText names the text for which a message could not be encoded.
func notText(op string, m proto.Message, err error) error {
	var where, text string
	look := func(p protopath.Values) error {
		at := p.Index(-1)
		values := []any{at.Value.Interface()}
		if at.Step.Kind() == protopath.MapIndexStep {
			values = append(values, at.Step.MapIndex().Interface())
		}
		for _, v := range values {
			if s, ok := v.(string); ok && !utf8.ValidString(s) {
				_, where, _ = strings.Cut(p.Path.String(), ").")
				text = s
				return errFound
			}
		}
		return nil
	}
	if protorange.Range(m.ProtoReflect(), look) == nil {
		return invalid(op, "the request cannot be encoded: %v", err)
	}
	return invalid(op, "%s is %.80q, which is not UTF-8", where, text)
}
