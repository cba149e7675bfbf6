package server_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A proxy asks what its callers may do: of one whom no certificate names, too, whom no grant lets in, not even one for
// every client.
func TestProxiesAskWhatTheirCallersMay(t *testing.T) {
	w := secureWorld(t)
	operator, proxy := w.caller(t, impersonate.Client(impersonate.Named(principal.Operator, "o"))), w.caller(t, impersonate.Client(impersonate.Named(principal.Proxy, "p")))
	ctx := within(t)
	for _, grant := range [][2]string{{"client/*", "closed"}, {"proxy/p", "closed"}, {"client/*", "secret"}} {
		if _, err := operator.GrantAccess(ctx, grant[0], grant[1], rootv1.Verb_VERB_READ); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		who, keyspace string
		verb          rootv1.Verb
		want          bool
	}{
		{"client/a", "closed", rootv1.Verb_VERB_READ, true},
		{"client/a", "closed", rootv1.Verb_VERB_CLAIM, false},
		{"client/a", "secret", rootv1.Verb_VERB_READ, false}, // the proxy itself may not
		{"proxy/p", "closed", rootv1.Verb_VERB_READ, true},
		{"nobody", "closed", rootv1.Verb_VERB_READ, false},
		{"nobody", "open", rootv1.Verb_VERB_READ, true},
		{"nobody", "open", rootv1.Verb_VERB_CLAIM, true},
		{"nobody", "open", rootv1.Verb_VERB_PUBLISH, false},
	} {
		if a, err := proxy.CheckAccess(ctx, c.who, c.verb, c.keyspace, client.Strong()); err != nil || a.GetAllowed() != c.want || (a.GetWhy() == "") != c.want && c.keyspace != "open" || a.GetGrant() != nil {
			t.Errorf("%s, %s in %s: %v, %v", c.who, c.verb, c.keyspace, a, err)
		}
	}
	made, err := operator.CreateToken(ctx, "client", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, keyspace := range []string{"closed", "secret"} {
		want := keyspace == "closed" // the proxy itself may not read the other one
		if a, err := proxy.CheckToken(ctx, made.GetToken(), rootv1.Verb_VERB_READ, keyspace, client.Strong()); err != nil || a.GetAllowed() != want || a.GetBearer() != "client/a" || a.GetGrant() != nil {
			t.Errorf("a token of client/a, in %s: %v, %v", keyspace, a, err)
		}
	}
	if _, err := operator.RevokeToken(ctx, made.GetId()); err != nil {
		t.Fatal(err)
	}
	for token, why := range map[string]string{made.GetToken(): "was revoked", "nokv_x": "no token of NoKV"} {
		if a, err := proxy.CheckToken(ctx, token, rootv1.Verb_VERB_READ, "open", client.Strong()); err != nil || a.GetAllowed() || a.GetBearer() != "" || !strings.Contains(a.GetWhy(), why) {
			t.Errorf("a token that does not count: %v, %v, want %q", a, err, why)
		}
	}
	if _, err := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Proxy, "p"))).CheckAccess(ctx, &coordinatorv1.CheckAccessRequest{
		Principal: "client/a", BearerToken: made.GetToken(), Verb: rootv1.Verb_VERB_READ, Keyspace: "open",
	}); reason.Of(reason.FromGRPC(err)) != rootv1.Reason_REASON_INVALID_REQUEST {
		t.Errorf("a token and a name: %v", err)
	}
	if _, err := w.caller(t, impersonate.Client(impersonate.Named(principal.Client, "a"))).CheckAccess(ctx, "client/a", rootv1.Verb_VERB_READ, "open"); !errors.Is(err, client.ErrPermissionDenied) {
		t.Errorf("a client asks for itself: %v", err)
	}
}

// Who may not read a keyspace any more holds no routes of it, and holds them again when it may.
func TestRoutesGoWithTheGrant(t *testing.T) {
	w := secureWorld(t)
	for _, who := range []string{"client/a", "client/b"} { // whose grant keeps the keyspace closed
		w.grant(t, who, "t", rootv1.Verb_VERB_READ)
	}
	routes := w.caller(t, impersonate.Client(impersonate.Named(principal.Client, "a"))).NewCache(client.CacheConfig{Keyspace: "t"})
	run := func() <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- routes.Run(within(t)) }()
		return ended
	}
	ended := run()
	<-routes.Ready()
	if _, ok := routes.Lookup([]byte("a")); !ok || routes.Len() != 2 {
		t.Fatalf("%d routes are held", routes.Len())
	}
	before, _ := routes.At()
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "client/a", Keyspace: "t"}}})
	if err := <-ended; !errors.Is(err, client.ErrPermissionDenied) {
		t.Errorf("the watch ends with %v", err)
	}
	if err := <-run(); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the next one ends with %v", err)
	}
	if _, ok := routes.Lookup([]byte("a")); ok || routes.Len() != 0 || routes.Bytes() != 0 {
		t.Errorf("%d routes of %d bytes are held without a grant", routes.Len(), routes.Bytes())
	}
	if _, err := routes.Route(within(t), []byte("a")); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a route is asked for: %v", err)
	}
	w.grant(t, "client/a", "t", rootv1.Verb_VERB_READ)
	changed := routes.Changed()
	run()
	<-changed
	if at, _ := routes.At(); routes.Len() != 2 || at.Token.Compare(before.Token) < 0 {
		t.Errorf("%d routes are held at %v, which were held at %v before", routes.Len(), at, before)
	}
}

// Grants are made, listed page by page, asked for and taken back by the Go client.
func TestGrantsByTheGoClient(t *testing.T) {
	w := secureWorld(t)
	c, ctx := w.caller(t, impersonate.Client(impersonate.Named(principal.Operator, "o"))), within(t)
	for i := range 3 {
		for again := range 2 {
			r, err := c.GrantAccess(ctx, fmt.Sprintf("client/%d", i), "k*", rootv1.Verb_VERB_READ)
			if err != nil || r.GetChanged() != (again == 0) || len(r.GetGrant().GetVerbs()) != 1 {
				t.Fatalf("grant %d: %v, %v", i, r, err)
			}
		}
	}
	for keyspace, want := range map[string]string{"k*": "", "default": "", "defualt": `there is no keyspace "defualt" yet`} {
		if r, err := c.GrantAccess(ctx, "client/h", keyspace, rootv1.Verb_VERB_ADMIN); err != nil || r.GetHint() != want {
			t.Errorf("%s: hint %q, %v, want %q", keyspace, r.GetHint(), err, want)
		}
		if a, err := c.CheckAccess(ctx, "client/h", rootv1.Verb_VERB_READ, "k1", client.Strong()); keyspace == "k*" && (err != nil || a.GetWhy() != "client/h is granted admin on k*, which implies read") {
			t.Errorf("read by admin: %v, %v", a, err)
		}
		open := map[bool]string{true: fmt.Sprintf("no grant names %q any more: every client may read and claim there, and every member own regions", keyspace)}[keyspace != "k*"]
		if r, err := c.RevokeAccess(ctx, "client/h", keyspace); err != nil || r.GetHint() != open {
			t.Errorf("%s: taken back with hint %q, %v, want %q", keyspace, r.GetHint(), err, open)
		}
	}
	var listed []string
	for g, err := range c.ListGrants(ctx, client.Strong()) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, g.GetPrincipal())
	}
	if fmt.Sprint(listed) != "[client/0 client/1 client/2]" {
		t.Errorf("listed %q", listed)
	}
	for who, want := range map[string]bool{"client/1": true, "client/9": false, "operator/o": true} {
		if a, err := c.CheckAccess(ctx, who, rootv1.Verb_VERB_READ, "k1", client.Strong()); err != nil || a.GetAllowed() != want || a.GetWhy() == "" {
			t.Errorf("%s: %v, %v", who, a, err)
		}
	}
	for again := range 2 {
		if r, err := c.RevokeAccess(ctx, "client/1", "k*"); err != nil || r.GetChanged() != (again == 0) || len(r.GetGrant().GetVerbs()) != 0 {
			t.Errorf("revoke: %v, %v", r, err)
		}
	}
	if _, err := c.GrantAccess(ctx, "operator/o", "k", rootv1.Verb_VERB_READ); !errors.Is(err, client.ErrInvalidRequest) {
		t.Errorf("a grant that nobody needs: %v", err)
	}
}

// Whoever ends an era says why, in any letters, and finds it in the Tenure.
func TestEndTenureByTheGoClient(t *testing.T) {
	w := start(t)
	c, ctx := w.caller(t), client.WithWhy(within(t), "zur Übung: 100%")
	if _, err := c.EndTenure(ctx, 0); !errors.Is(err, client.ErrNotFound) {
		t.Fatalf("before the first era: %v", err)
	}
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c9", HolderIncarnation: 9, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO},
	}}})
	if _, err := c.EndTenure(ctx, 7); !errors.Is(err, client.ErrEraStale) {
		t.Fatalf("an era that is not active: %v", err)
	}
	r, err := c.EndTenure(ctx, 0)
	if err != nil || r.GetTenure().GetEra() != 1 || r.GetTenure().GetEnd().GetWhy() != "zur Übung: 100%" || r.GetTenure().GetRetired() {
		t.Fatalf("%v, %v", r, err)
	}
}

// An era that has just begun is not ended: whoever held the one before may leave the
// Tenure to others still. One that was asked to end before is answered.
func TestYoungEraIsNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at clock.Clock
		w := start(t, func(c *server.Config) { at = c.Clock })
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: "c9", HolderIncarnation: 9, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO},
		}}})
		c, now := coordinatorv1.NewCoordinatorClient(w.conn), at.Now()
		end := func(age time.Duration, asked *rootv1.TenureEnd) error {
			w.authority.status.Store(&tenure.Status{Tenure: &rootv1.Tenure{Era: 1, End: asked}, TenureAt: now.Add(-age)})
			_, err := c.EndTenure(within(t), &coordinatorv1.EndTenureRequest{Era: 1})
			return err
		}
		err := end(0, nil)
		refused(t, err, rootv1.Reason_REASON_OVERLOADED)
		if wait := reason.From(err).GetRetryAfterMillis(); wait == 0 || wait > 5001 {
			t.Errorf("come back in %d ms", wait)
		}
		if err := end(tenure.LeastEra, nil); err != nil {
			t.Errorf("an era that is old enough: %v", err)
		}
		if err := end(0, &rootv1.TenureEnd{}); err != nil {
			t.Errorf("an era that was asked to end: %v", err)
		}
	})
}
