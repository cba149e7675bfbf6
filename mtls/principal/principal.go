// Package principal says who is at the other end of a connection.
//
// A principal is a name in a certificate, nokv://CLUSTER/ROLE/NAME. On a
// connection without certificates there is none, and nobody can be told from
// anybody else: what may be done there is for whoever allowed such connections.
package principal

import (
	"context"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"net/url"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Role is what kind of process or person a principal is.
type Role uint8

// Roles. The zero value is that of nobody.
const (
	None Role = iota
	Root
	Coordinator
	Member
	Client
	Operator
	// Proxy stands between callers and members: it may what a Client may, and is dialled.
	Proxy
)

// Roles are all of them, without None.
var Roles = []Role{Root, Coordinator, Member, Client, Operator, Proxy}

var roleNames = [...]string{"none", "root", "coordinator", "member", "client", "operator", "proxy"}

// String is the word that stands in certificates.
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// ParseRole is the role of a word.
func ParseRole(s string) (Role, error) {
	for _, r := range Roles {
		if r.String() == s {
			return r, nil
		}
	}
	return None, fmt.Errorf("role %q: use root, coordinator, member, client, proxy or operator", s)
}

// Scheme is that of the URI which names a principal.
const Scheme = "nokv"

// MaxNameBytes is the longest name of a cluster or principal.
const MaxNameBytes = 128

// Principal is who asks. The zero value is nobody in particular.
type Principal struct {
	// Cluster is the name that the operators gave it when they made its
	// certificates.
	Cluster string
	Role    Role
	// Name is the node id of a root peer, the id of a coordinator or member, and
	// otherwise what the operators chose.
	Name string
}

// Known says that a certificate named the principal.
func (p Principal) Known() bool { return p.Role != None }

// Actor is how changes name the principal: ROLE/NAME; empty for nobody.
func (p Principal) Actor() string {
	if !p.Known() {
		return ""
	}
	return p.Role.String() + "/" + p.Name
}

// String is Actor for people.
func (p Principal) String() string {
	if !p.Known() {
		return "somebody without a certificate"
	}
	return p.Actor()
}

// URI is the name in the certificate.
func (p Principal) URI() *url.URL {
	return &url.URL{Scheme: Scheme, Host: p.Cluster, Path: "/" + p.Role.String() + "/" + p.Name}
}

// New checks the parts of a principal.
func New(cluster string, role Role, name string) (Principal, error) {
	if err := CheckName(cluster); err != nil {
		return Principal{}, fmt.Errorf("cluster %w", err)
	}
	if err := CheckName(name); err != nil {
		return Principal{}, fmt.Errorf("name %w", err)
	}
	if role == None || int(role) >= len(roleNames) {
		return Principal{}, fmt.Errorf("%v is no role of a principal", role)
	}
	return Principal{cluster, role, name}, nil
}

// CheckName says what is wrong with the name of a cluster or principal: letters,
// digits and . _ - are what URIs, files and logs all take as they are.
func CheckName(s string) error {
	if s == "" || len(s) > MaxNameBytes {
		return fmt.Errorf("%q: want 1 to %d bytes", s, MaxNameBytes)
	}
	if strings.Trim(s, ".") == "" {
		return fmt.Errorf("%q: want more than dots", s)
	}
	for _, c := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", c) {
			return fmt.Errorf("%q: %q is not a letter, a digit, or one of . _ -", s, c)
		}
	}
	return nil
}

// Parse is the principal that a URI names, written as URI writes it and in no
// other way: who compares names need know one form alone.
func Parse(uri string) (Principal, error) {
	rest, ok := strings.CutPrefix(uri, Scheme+"://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return Principal{}, fmt.Errorf("%q is no nokv://CLUSTER/ROLE/NAME", uri)
	}
	role, err := ParseRole(parts[1])
	if err != nil {
		return Principal{}, fmt.Errorf("%q: %w", uri, err)
	}
	p, err := New(parts[0], role, parts[2])
	if err != nil {
		return Principal{}, fmt.Errorf("%q: %w", uri, err)
	}
	return p, nil
}

// Of is the principal that a certificate names: exactly one.
func Of(cert *x509.Certificate) (Principal, error) {
	var found []string
	for _, uri := range uris(cert) {
		if len(uri) > len(Scheme) && strings.EqualFold(uri[:len(Scheme)+1], Scheme+":") {
			found = append(found, uri)
		}
	}
	if len(found) != 1 {
		return Principal{}, fmt.Errorf("the certificate of %q has %d names nokv://CLUSTER/ROLE/NAME, want 1", cert.Subject, len(found))
	}
	return Parse(found[0])
}

// Subject alternative names of certificates, and those of them that are URIs: RFC
// 5280, 4.2.1.6.
var alternativeNames = asn1.ObjectIdentifier{2, 5, 29, 17}

const tagURI = 6

// uris are those of a certificate byte for byte: cert.URIs has what became of them
// when they were parsed.
func uris(cert *x509.Certificate) (found []string) {
	for _, e := range cert.Extensions {
		var names []asn1.RawValue
		if !e.Id.Equal(alternativeNames) {
			continue
		}
		if rest, err := asn1.Unmarshal(e.Value, &names); err != nil || len(rest) > 0 {
			continue
		}
		for _, n := range names {
			if n.Class == asn1.ClassContextSpecific && n.Tag == tagURI {
				found = append(found, string(n.Bytes))
			}
		}
	}
	return found
}

// Info is what the credentials of a connection found out. It is the AuthInfo of
// gRPC connections.
type Info struct {
	credentials.CommonAuthInfo
	Principal Principal
}

// AuthType implements credentials.AuthInfo.
func (Info) AuthType() string { return "nokv" }

// FromContext is who called; the zero value when no certificate says so.
func FromContext(ctx context.Context) Principal {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(Info); ok {
			return info.Principal
		}
	}
	return Principal{}
}
