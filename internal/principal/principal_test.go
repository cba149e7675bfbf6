package principal

import (
	"context"
	"crypto/x509"
	"net/url"
	"testing"

	"google.golang.org/grpc/peer"
)

// A principal survives its certificate's name; what names no principal is refused.
func TestNames(t *testing.T) {
	for _, role := range Roles {
		p, err := New("prod-1", role, "a.b_c-9")
		if err != nil {
			t.Fatal(err)
		}
		again, err := url.Parse(p.URI().String())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(again); err != nil || got != p {
			t.Errorf("%v became %v, %v", p, got, err)
		}
		if got, err := Of(&x509.Certificate{URIs: []*url.URL{{Scheme: "https", Host: "x"}, again}}); err != nil || got != p {
			t.Errorf("%v became %v, %v", p, got, err)
		}
	}
	for _, s := range []string{
		"nokv://prod/king/x", "nokv://prod/none/x", "nokv://prod/member/", "nokv://prod/member", "nokv:///member/x", "nokv://prod/member/x/y",
		"nokv://prod/member/..", "nokv://prod/member/a%20b", "https://prod/member/x", "nokv://u@prod/member/x", "nokv://prod/member/x?y", "nokv://prod:1/member/x", "nokv:member",
	} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := Parse(u); err == nil {
			t.Errorf("%s is %v", s, p)
		}
	}
	u := &url.URL{Scheme: Scheme, Host: "c", Path: "/member/m"}
	if _, err := Of(&x509.Certificate{URIs: []*url.URL{u, u}}); err == nil {
		t.Error("two names were taken")
	}
	if _, err := Of(&x509.Certificate{}); err == nil {
		t.Error("no name was taken")
	}
}

// Who called is what the connection's credentials say, and nobody without them.
func TestFromContext(t *testing.T) {
	p := Principal{"c", Member, "m1"}
	ctx := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: Info{Principal: p}})
	if got := FromContext(ctx); got != p || !got.Known() || got.Actor() != "member/m1" {
		t.Errorf("got %v", got)
	}
	for _, ctx := range []context.Context{context.Background(), peer.NewContext(context.Background(), &peer.Peer{})} {
		if got := FromContext(ctx); got.Known() || got.Actor() != "" {
			t.Errorf("got %v", got)
		}
	}
}
