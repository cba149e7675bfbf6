package why_test

import (
	"context"
	"testing"

	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/internal/why"
	"google.golang.org/grpc/metadata"
)

// What a caller says arrives, whatever letters it has; the last word counts.
func TestWordsArrive(t *testing.T) {
	for _, text := range []string{"", "upgrade", "für 100% Müll: a/b+c", "a\nb"} {
		ctx := why.With(why.With(metadata.AppendToOutgoingContext(context.Background(), "other", "x"), "before"), text)
		if got := why.Outgoing(ctx); got != text {
			t.Errorf("%q goes out as %q", text, got)
		}
		md, _ := metadata.FromOutgoingContext(ctx)
		for _, v := range md.Get(why.Key) {
			for _, c := range []byte(v) {
				if c < ' ' || c > '~' {
					t.Errorf("%q has the byte %x", v, c)
				}
			}
		}
		if got, want := why.Of(metadata.NewIncomingContext(context.Background(), md)), oneline.Of(text); got != want || len(md.Get("other")) != 1 {
			t.Errorf("%q arrives as %q in %v", text, got, md)
		}
	}
	if got := why.Of(metadata.NewIncomingContext(context.Background(), metadata.Pairs(why.Key, "100%"))); got != "100%" {
		t.Errorf("what is not encoded arrives as %q", got)
	}
}

func TestNothingIsNotLogged(t *testing.T) {
	if got := why.Logged("", ""); len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
	if got := why.Logged("operator/o", "drill"); len(got) != 4 || got[1] != "operator/o" || got[3] != "drill" {
		t.Errorf("logged %q", got)
	}
}
