package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// caller is a way to ask the process.
type caller interface {
	// ask makes a call and waits for what becomes of it, until ctx ends. *Refused: it did
	// not do it. Any other error: what became of it is not known.
	ask(ctx context.Context, c Call) (Answer, error)
	// answers says whether the process answers anything, within ctx; nil: it does.
	answers(ctx context.Context) error
}

// Refused says that the process did not do what it was asked.
type Refused struct{ Said string }

// Error implements error.
func (e *Refused) Error() string { return e.Said }

// app is a process that listens.
type app struct {
	base   *url.URL
	token  string
	client *http.Client
}

// How long the kernel of this machine may take to connect, and the longest head of an answer.
const (
	dialTime  = 2 * time.Second
	maxHeader = 16 << 10
)

func newApp(base *url.URL, token string) *app {
	return &app{base: base, token: token, client: &http.Client{
		// A connection for each call: one that was kept may be closed by the process while a
		// call is on its way, whose outcome would then not be known.
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			DialContext: (&net.Dialer{Timeout: dialTime}).DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (a *app) url(path string) string { return a.base.JoinPath("nokv", path).String() }

// ask implements caller.
func (a *app) ask(ctx context.Context, c Call) (Answer, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return Answer{}, err
	}
	status, body, err := a.do(ctx, http.MethodPost, a.url(c.Call), body)
	switch {
	case err != nil:
		return Answer{}, err
	case status == http.StatusNotFound || status == http.StatusNotImplemented:
		return Answer{Unsupported: true}, nil
	case status >= 400:
		return Answer{}, &Refused{Said: fmt.Sprintf("POST %s was answered with status %d: %s", a.url(c.Call), status, said(body))}
	case status >= 300:
		return Answer{}, fmt.Errorf("POST %s was answered with status %d, and redirects are not followed", a.url(c.Call), status)
	}
	answer, err := parseAnswer(body)
	if err == nil {
		err = answer.check(c.Call)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("POST %s: %w", a.url(c.Call), err)
	}
	if answer = answer.bounded(); answer.Error != "" {
		return Answer{}, &Refused{Said: answer.Error}
	}
	return answer, nil
}

// do asks, and reads what is answered. Behind an error the status is that of an answer whose
// body is none, or 0: nothing came.
func (a *app) do(ctx context.Context, method, to string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+a.token)
	resp, err := a.client.Do(req)
	if err != nil {
		var e *url.Error
		if errors.As(err, &e) {
			err = e.Err
		}
		return 0, nil, fmt.Errorf("%s %s: %w", method, to, err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return resp.StatusCode, nil, fmt.Errorf("%s %s was answered with status %d and half a body: %w", method, to, resp.StatusCode, err)
	case len(body) > maxAnswer:
		return resp.StatusCode, nil, fmt.Errorf("%s %s was answered with a body of more than %d bytes", method, to, maxAnswer)
	}
	return resp.StatusCode, body, nil
}

// answers implements caller: any answer of HTTP is one, but that to a member that wants to join
// has to be 200.
func (a *app) answers(ctx context.Context) error {
	status, _, err := a.do(ctx, http.MethodGet, a.url("ready"), nil)
	if status != 0 {
		return nil
	}
	return err
}

// ready says whether the process wants to be a member.
func (a *app) ready(ctx context.Context) error {
	status, body, err := a.do(ctx, http.MethodGet, a.url("ready"), nil)
	switch status {
	case 0:
	case http.StatusOK:
		return nil
	default:
		err = fmt.Errorf("GET %s was answered with status %d, not 200: %s", a.url("ready"), status, said(body))
	}
	return err
}

// checkBase judges where a process is asked.
func checkBase(text string, anywhere bool) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("%q: want http://HOST:PORT, with a path before /nokv/ if there is one", text)
	}
	if ip := net.ParseIP(u.Hostname()); !anywhere && u.Hostname() != "localhost" && !ip.IsLoopback() {
		return nil, fmt.Errorf("%s is not this machine's loopback: whoever is there could say that the member serves what it does not; --insecure allows it", u.Host)
	}
	return u, nil
}
