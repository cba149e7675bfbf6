package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls/principal"
)

// Whoever shows a token has no certificate: every process judges the token, from its
// own state, until it hears that it is revoked. Keys are sealed where the processes
// have a secret file; one without it, and one with another, say so and serve the rest.
func TestBearerTokens(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2).Secure()
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, bytes.Repeat([]byte(name), 16), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, other := file("good"), file("other")
	without, wrong := 1, c.Roots()+1
	c.CommandLine = func(member int) []string {
		switch member {
		case without:
			return c.Args(member)
		case wrong:
			return append(c.Args(member), "-secret-file", other)
		}
		return append(c.Args(member), "-secret-file", good)
	}
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	run := func(args ...string) string {
		t.Helper()
		r := c.Run(args...)
		if r.Code != exitOK || r.Stderr != "" {
			t.Fatalf("nokv %s: exit status %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
		}
		return r.Stdout
	}
	run(append([]string{"root", "upgrade"}, c.RootFlags()...)...)
	at := []string{"--coordinator-addr", c.CoordinatorAddrs[0], "--why", "drill"}
	create := func(role string) (out createdToken) {
		t.Helper()
		text := run(append([]string{"token", "create", "--role", role, "--name", "ann", "--ttl", "1h", "-o", "json"}, at...)...)
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	operator, reader := create("operator"), create("client")
	if plain := run(append([]string{"token", "create", "--role", "client", "--name", "bob"}, at...)...); !strings.HasPrefix(plain, "nokv_") || strings.Count(plain, "\n") != 1 || strings.ContainsAny(strings.TrimSpace(plain), " \t") {
		t.Errorf("nokv token create prints %d lines, want the token alone", strings.Count(plain, "\n"))
	}

	want := func(member int, path, token string, status int, words string) {
		t.Helper()
		proctest.Eventually(t, recoverWithin, func() error { return getWith(c.Certs.Roots(), c.MetricsAddrs[member]+path, token, status, words) })
	}
	forged := operator.Token[:len(operator.Token)-2] + "AA"
	if forged == operator.Token {
		forged = operator.Token[:len(operator.Token)-2] + "BB"
	}
	for member := range c.Size() {
		switch member {
		case without:
			want(member, "/debug/vars", operator.Token, http.StatusUnauthorized, seal.ErrNoFile.Error())
		case wrong:
			want(member, "/debug/vars", operator.Token, http.StatusUnauthorized, seal.ErrWrongFile.Error())
		default:
			want(member, "/debug/vars", operator.Token, http.StatusOK, "uptime_millis")
			want(member, "/debug/pprof/", operator.Token, http.StatusOK, "")
			want(member, "/debug/vars", reader.Token, http.StatusForbidden, "this is for operators")
			want(member, "/debug/vars", forged, http.StatusUnauthorized, "did not make that token")
			if member >= c.Roots() { // REST is for whom the table of gRPC lets in
				want(member, "/v1/status", operator.Token, http.StatusOK, "coordinator_id")
				want(member, "/v1/status", reader.Token, http.StatusOK, "coordinator_id")
				want(member, "/v1/grants", reader.Token, http.StatusForbidden, "permission_denied")
				want(member, "/v1/status", forged, http.StatusUnauthorized, "did not make that token")
				want(member, "/v1/status", "", http.StatusUnauthorized, "nobody says who asks")
				want(member, "/health", "", http.StatusOK, `{"status":"ok"}`)
			}
		}
		want(member, "/debug/vars", "", http.StatusForbidden, "this is for operators")
		want(member, "/healthz", "", http.StatusOK, "ok")
	}
	r := c.Run("token", "create", "--role", "client", "--name", "a", "--coordinator-addr", c.CoordinatorAddrs[1])
	if r.Code == exitOK || r.Stdout != "" {
		t.Errorf("a coordinator with another secret file made a token: %q", r.Stdout)
	}
	wantWords(t, "a coordinator with another secret file", r.Stderr, seal.ErrWrongFile.Error())

	// A proxy that takes tokens judges by them, and by nothing where there is none.
	addrs, err := procs.Addrs(1)
	if err != nil {
		t.Fatal(err)
	}
	run(append([]string{"keyspace", "create", "games", "--preset", "games"}, at...)...)
	for _, who := range []string{"client/ann", "proxy/p"} {
		run(append([]string{"access", "grant", who, "read", "games"}, at...)...)
	}
	proctest.Start(t, proctest.Options{Name: "proxy", Path: nokvPath(t), Env: nokvEnv(t), Args: []string{
		"proxy", "--keyspace", "games", "--key-query", "key", "--addr", addrs[0], "--callers", "token", "--coordinator-addr", c.CoordinatorAddrs[0], "--certs", c.Certs.Of(principal.Proxy, "p"),
	}})
	through := func(token string, status int, words string) {
		t.Helper()
		proctest.Eventually(t, recoverWithin, func() error { return getWith(c.Certs.Roots(), addrs[0]+"/?key=k", token, status, words) })
	}
	through(reader.Token, http.StatusNotFound, "no region has the key")
	through(forged, http.StatusUnauthorized, "did not make that token")
	through("", http.StatusForbidden, "nobody may not read")

	run(append([]string{"token", "revoke", operator.ID}, at...)...)
	for _, member := range []int{0, 2, c.Roots()} {
		want(member, "/debug/vars", operator.Token, http.StatusUnauthorized, "token "+operator.ID+" was revoked")
	}
	want(c.Roots(), "/v1/status", operator.Token, http.StatusUnauthorized, "was revoked")
	run(append([]string{"token", "rotate"}, at...)...)
	want(0, "/debug/vars", reader.Token, http.StatusForbidden, "this is for operators")
	run(append([]string{"token", "rotate"}, at...)...)
	want(0, "/debug/vars", reader.Token, http.StatusUnauthorized, "it was rotated away")
	through(reader.Token, http.StatusUnauthorized, "it was rotated away")

	// What others find: who did it and why, and nothing of a token or a key.
	events := run(append([]string{"root", "events", "-o", "json"}, c.RootFlags()...)...)
	wantWords(t, "nokv root events", events, "token_key_rotated", "token_revoked", "drill", "operator/test")
	if strings.Contains(events, `"secret"`) {
		t.Error("nokv root events shows a secret")
	}
	logs := ""
	for member := range c.Size() {
		logs += c.Process(member).Log()
	}
	wantWords(t, "the logs", logs, "token made", operator.ID)
	for _, token := range []string{operator.Token, reader.Token} {
		if strings.Contains(logs, token[:24]) || strings.Contains(events, token[:24]) {
			t.Error("a token is in logs or events")
		}
	}
	if r := c.Run(append([]string{"token", "create", "--role", "client", "--name", "a", "--certs", c.Certs.Of(principal.Client, "web")}, at...)...); r.Code == exitOK {
		t.Error("a client made a token")
	}
	for member := range c.Size() {
		if r := c.RunProcess(append(c.Args(member), "-secret-file", filepath.Join(dir, "none"))...); r.Code == exitOK {
			t.Errorf("%s starts without the secret file that it is given", c.Name(member))
		}
	}
}

// getWith asks without a certificate, and says what is not as wanted.
func getWith(roots *x509.CertPool, address, token string, status int, words string) error {
	web := http.Client{Timeout: recoverWithin, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer web.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, "https://"+address, http.NoBody)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != status || !strings.Contains(string(body), words)) {
		err = fmt.Errorf("%s answers %s %.200q, want %d %q", address, resp.Status, body, status, words)
	}
	return err
}
