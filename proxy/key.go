package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/nokv/nokv/internal/headers"
	"github.com/nokv/nokv/rooted"
)

// Key finds the key of a request, whose body it may not read.
type Key func(*http.Request) ([]byte, error)

// Header takes the key from a header, which a request must have once, and not as a trailer. Application servers that make
// variables of headers write the same one for X-Game, X_Game and X.Game: a request that has two of these is refused, because its
// member might read another key.
func Header(name string) Key {
	name = http.CanonicalHeaderKey(name)
	plain := headers.Plain(name)
	like := func(other string) bool { return headers.Is(other, plain) }
	return func(r *http.Request) ([]byte, error) {
		for other := range r.Header {
			if other != name && like(other) {
				return nil, fmt.Errorf("the header %.80q may be read as %s, which has the key: leave it out", other, name)
			}
		}
		for other := range r.Trailer {
			if like(other) {
				return nil, fmt.Errorf("the trailer %.80q may be read as the header %s, which has the key: leave it out", other, name)
			}
		}
		return only("header "+name, r.Header[name])
	}
}

// Query takes the key from a parameter of the query, which a request must have once.
func Query(name string) Key {
	return func(r *http.Request) ([]byte, error) {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return nil, fmt.Errorf("the query cannot be read: %.200s", err)
		}
		return only("query parameter "+name, values[name])
	}
}

func only(what string, values []string) ([]byte, error) {
	if len(values) != 1 {
		return nil, fmt.Errorf("want the key in one %s, there are %d", what, len(values))
	}
	return []byte(values[0]), nil
}

// Path takes the key from the path, by a pattern such as /tables/{key}/rows: {key} is one
// segment with a value, {key...}, at the end, the whole rest, * any segment, and /...,
// at the end, whatever follows. Segments are compared as they are when decoded. Paths with
// a segment "." or ".." are refused: the member might take them for another path.
func Path(pattern string) (Key, error) {
	rest, ok := strings.CutPrefix(pattern, "/")
	if !ok {
		return nil, fmt.Errorf("pattern %.200q: want one that begins with a slash, such as /tables/{key}/rows", pattern)
	}
	want := strings.Split(rest, "/")
	keys := 0
	for i, s := range want {
		last := i == len(want)-1
		switch {
		case s == "{key}":
			keys++
		case s == "{key...}" && last:
			keys++
		case s == "..." && last, s == "*":
		case strings.ContainsAny(s, "{}") || s == "...":
			return nil, fmt.Errorf("pattern %.200q: %q is none of {key}, * and, at the end, {key...} and the three dots", pattern, s)
		}
	}
	if keys != 1 {
		return nil, fmt.Errorf("pattern %.200q: want {key} or {key...} in it once", pattern)
	}
	return func(r *http.Request) ([]byte, error) {
		key, err := match(want, strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/"))
		if err != nil {
			return nil, fmt.Errorf("the path is not of the form %s: %w", pattern, err)
		}
		return key, nil
	}, nil
}

func match(want, have []string) (key []byte, err error) {
	for i, s := range have {
		if have[i], err = url.PathUnescape(s); err != nil {
			return nil, err
		}
		for part := range strings.SplitSeq(have[i], "/") {
			if part == "." || part == ".." {
				return nil, fmt.Errorf("segment %q is not taken", part)
			}
		}
	}
	for i, w := range want {
		switch {
		case w == "...":
			return key, nil
		case i >= len(have):
			return nil, fmt.Errorf("it ends before %q", w)
		case w == "{key...}":
			return []byte(strings.Join(have[i:], "/")), nil
		case w == "{key}":
			key = []byte(have[i])
		case w != "*" && w != have[i]:
			return nil, fmt.Errorf("%.80q is not %q", have[i], w)
		}
	}
	if len(have) > len(want) {
		return nil, fmt.Errorf("it goes on behind its end")
	}
	return key, nil
}

// keyOf is the key of a request, with what is wrong with it.
func (p *Proxy) keyOf(r *http.Request) ([]byte, error) {
	key, err := p.cfg.Key(r)
	if err == nil && (len(key) == 0 || len(key) > rooted.MaxKeyBytes) {
		err = fmt.Errorf("the key has %d bytes, not 1 to %d", len(key), rooted.MaxKeyBytes)
	}
	if err != nil {
		return nil, &badRequest{http.StatusBadRequest, err.Error()}
	}
	return key, nil
}

// badRequest is what is the caller's fault.
type badRequest struct {
	status int
	said   string
}

func (e *badRequest) Error() string { return e.said }
