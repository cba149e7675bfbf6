// Package access says who may call what on the servers of a secure cluster.
//
// It owns two tables, calls and kinds (table.go), how they are judged, and counts
// of what was refused. It promises:
//
//  1. what has no row in a table is refused;
//  2. whom a certificate does not name may do nothing;
//  3. a refusal is REASON_PERMISSION_DENIED, says who may, and changed nothing;
//  4. a call that is allowed costs a lookup and no allocation;
//  5. a change that is remembered is let through: what became of it is the root's
//     to say, also when its sender could not make it today;
//  6. what it remembers of callers is bounded: see MaxPrincipals;
//  7. what is not there is nobody's own and in no keyspace of a grant: a command is
//     applied later than it is judged, and what it names may be somebody's by then.
//
// A server without certificates has no Gate: nobody can be told from anybody else
// there, everything is allowed, and changes have no actor.
package access

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// Gate judges the callers of one server. A nil *Gate is that of a server without
// certificates. Make it with New.
type Gate struct{ counts counts }

// New makes a Gate.
func New() *Gate { return &Gate{} }

// Options are the interceptors, to be chained behind those that count.
func (g *Gate) Options() []grpc.ServerOption {
	if g == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(g.unary), grpc.ChainStreamInterceptor(g.stream)}
}

// unary is a grpc.UnaryServerInterceptor.
func (g *Gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	p := principal.FromContext(ctx)
	g.counts.met(p)
	err := admit(p, info.FullMethod)
	if err == nil {
		err = ownName(p, info.FullMethod, req)
	}
	if err != nil {
		return nil, g.refused(p, err)
	}
	resp, err := handler(ctx, req)
	return resp, g.refused(p, err)
}

// stream is a grpc.StreamServerInterceptor.
func (g *Gate) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	p := principal.FromContext(stream.Context())
	g.counts.met(p)
	if err := admit(p, info.FullMethod); err != nil {
		return g.refused(p, err)
	}
	if calls[info.FullMethod][p.Role] == Own {
		stream = &ownStream{stream, p, info.FullMethod}
	}
	return g.refused(p, handler(srv, stream))
}

// ownStream is a stream whose requests may speak for its caller only.
type ownStream struct {
	grpc.ServerStream
	p      principal.Principal
	method string
}

// RecvMsg refuses a request that speaks for somebody else.
func (s *ownStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return ownName(s.p, s.method, m)
}

// admit judges a call by its row.
func admit(p principal.Principal, method string) error {
	r := calls[method]
	if r[p.Role] != No {
		return nil
	}
	return denied("%v may not call %s: %s", p, short(method), whoMay(r))
}

// ownName judges whom a request speaks for.
func ownName(p principal.Principal, method string, request any) error {
	if calls[method][p.Role] != Own {
		return nil
	}
	if name, ok := named(request, p.Role); ok && name != p.Name {
		return denied("%v may call %s for itself only, not for %.64q", p, short(method), name)
	}
	return nil
}

func denied(format string, args ...any) error {
	return reason.New(rootv1.Reason_REASON_PERMISSION_DENIED, format, args...)
}

// short is the last word of a method's full name.
func short(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

// whoMay says which roles have something in a row.
func whoMay(r rules) string {
	var who []string
	for _, role := range principal.Roles {
		all := role.String() + "s"
		if role == principal.Proxy {
			all = "proxies"
		}
		switch r[role] {
		case Own:
			who = append(who, all+" for what is their own")
		case Granted:
			who = append(who, all+" by a grant")
		case Allowed:
			who = append(who, all)
		}
	}
	switch n := len(who); n {
	case 0:
		return "nobody may"
	case 1:
		return who[0] + " may"
	default:
		return strings.Join(who[:n-1], ", ") + " and " + who[n-1] + " may"
	}
}

// May says why a caller may not do something in a keyspace, by the grants of a
// state; nil: it may. An empty name is that of the default keyspace.
func (g *Gate) May(ctx context.Context, st *state.State, verb rootv1.Verb, keyspace string) error {
	if g == nil {
		return nil
	}
	return may(principal.FromContext(ctx), st, verb, cmp.Or(keyspace, defaultKeyspace))
}

// defaultKeyspace is the keyspace of requests that name none.
const defaultKeyspace = "default"

func may(p principal.Principal, st *state.State, verb rootv1.Verb, keyspace string) error {
	a := st.Access(p.Role.String(), p.Name, verb, keyspace)
	if a.Allowed {
		return nil
	}
	word := verbWord(verb)
	if a.Closed {
		return denied("%v may not %s keyspace %q: it is closed, and no grant of %s there names it", p, word, keyspace, word)
	}
	return denied("%v may not %s keyspace %q: that needs a grant", p, word, keyspace)
}

func verbWord(verb rootv1.Verb) string {
	return strings.ToLower(strings.TrimPrefix(verb.String(), "VERB_"))
}

// everything is the pattern of all keyspaces that there are or will be.
const everything = "*"

// MayAll is May for all keyspaces that there are or will be: where no grant was made,
// or by one for all of them.
func (g *Gate) MayAll(ctx context.Context, st *state.State, verb rootv1.Verb) error {
	if g == nil {
		return nil
	}
	p := principal.FromContext(ctx)
	err := may(p, st, verb, everything)
	if err != nil || p.Role == principal.Operator {
		return err
	}
	closed := st.Access(p.Role.String(), p.Name, verb, everything).Grant == nil
	if closed {
		closed = false
		st.Grants("", "", func(*rootv1.Grant) bool {
			closed = true
			return false
		})
	}
	if closed {
		return denied("%v may not follow all keyspaces: some are closed, and no grant for %q names it; name one keyspace", p, everything)
	}
	return nil
}

// actor reads what Principal.Actor wrote.
func actor(s string) (principal.Principal, error) {
	word, name, _ := strings.Cut(s, "/")
	role, err := principal.ParseRole(word)
	if err == nil {
		err = principal.CheckName(name)
	}
	if err != nil {
		return principal.Principal{}, fmt.Errorf("actor %.64q: want ROLE/NAME", s)
	}
	return principal.Principal{Role: role, Name: name}, nil
}
