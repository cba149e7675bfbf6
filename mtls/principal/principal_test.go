package principal

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/url"
	"testing"

	"google.golang.org/grpc/peer"
)

// certificate has these names, byte for byte.
func certificate(t *testing.T, names ...string) *x509.Certificate {
	t.Helper()
	var san []asn1.RawValue
	for _, s := range names {
		san = append(san, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(s)})
	}
	raw, err := asn1.Marshal(san)
	if err != nil {
		t.Fatal(err)
	}
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: raw}}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// A principal survives its certificate's name; what names no principal, or names
// one in another form than all others, is refused.
func TestNames(t *testing.T) {
	for _, role := range Roles {
		p, err := New("prod-1", role, "a.b_c-9")
		if err != nil {
			t.Fatal(err)
		}
		name := p.URI().String()
		if got, err := Parse(name); err != nil || got != p {
			t.Errorf("%v became %v, %v", p, got, err)
		}
		if got, err := Of(certificate(t, "https://x", name)); err != nil || got != p {
			t.Errorf("%v became %v, %v", p, got, err)
		}
	}
	for _, s := range []string{
		"nokv://prod/king/x", "nokv://prod/none/x", "nokv://prod/member/", "nokv://prod/member", "nokv:///member/x", "nokv://prod/member/x/y",
		"nokv://prod/member/..", "nokv://prod/member/a%20b", "https://prod/member/x", "nokv://u@prod/member/x", "nokv://prod/member/x?y", "nokv://prod:1/member/x", "nokv:member",
		"NOKV://prod/member/x", "Nokv://prod/member/x", "nokv://prod%2fmember/x", "nokv://prod/member%2fx", "nokv://prod/%6dember/x", "nokv://prod/member/%78", "nokv://prod/Member/x",
		"nokv://@prod/member/x", "nokv://prod/member/x#", "nokv://prod/member/x?", "nokv://prod:/member/x", "nokv://prod//member/x", "nokv://prod/member/x/",
	} {
		if p, err := Parse(s); err == nil {
			t.Errorf("%s is %v", s, p)
		}
		if u, err := url.Parse(s); err != nil || u.Host != "prod" {
			continue // no certificate is read that has it
		}
		if p, err := Of(certificate(t, s)); err == nil {
			t.Errorf("a certificate of %s is one of %v", s, p)
		}
	}
	for _, names := range [][]string{nil, {"nokv://c/member/m", "nokv://c/member/m"}, {"nokv://c/member/m", "NOKV://c/operator/o"}} {
		if p, err := Of(certificate(t, names...)); err == nil {
			t.Errorf("a certificate of %q is one of %v", names, p)
		}
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
