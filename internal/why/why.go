// Package why carries the words that a caller gives for a change in the metadata
// of its call.
package why

import (
	"context"
	"net/url"

	"github.com/nokv/nokv/internal/oneline"
	"google.golang.org/grpc/metadata"
)

// Key of the metadata. Its value is percent-encoded: metadata is ASCII.
const Key = "nokv-why"

// With returns a context whose outgoing calls say why they are made; empty: they do
// not say.
func With(ctx context.Context, text string) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	if text == "" {
		md.Delete(Key)
	} else {
		md.Set(Key, url.PathEscape(text))
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// Outgoing is what calls with ctx say.
func Outgoing(ctx context.Context) string {
	md, _ := metadata.FromOutgoingContext(ctx)
	return first(md.Get(Key))
}

// Of is what the call that is served with ctx said, in one line; empty: nothing.
func Of(ctx context.Context) string {
	return oneline.Of(first(metadata.ValueFromIncomingContext(ctx, Key)))
}

// Logged are the keys and values that a log line has of who asked, and why: none of
// what is not known.
func Logged(actor, text string) (pairs []any) {
	if actor != "" {
		pairs = append(pairs, "actor", actor)
	}
	if text != "" {
		pairs = append(pairs, "why", text)
	}
	return pairs
}

// first takes what is not encoded as it is.
func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	if text, err := url.PathUnescape(values[0]); err == nil {
		return text
	}
	return values[0]
}
