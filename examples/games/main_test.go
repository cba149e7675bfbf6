package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// Whatever a board is called, a move is made on that one, and on no other.
func TestAMoveIsOfTheBoardThatIsNamed(t *testing.T) {
	asked := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /boards/{key}", func(w http.ResponseWriter, req *http.Request) {
		asked <- req.PathValue("key")
		c, err := websocket.Accept(w, req, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		var m Move
		if wsjson.Write(req.Context(), c, Message{}) == nil && wsjson.Read(req.Context(), c, &m) == nil {
			_ = wsjson.Write(req.Context(), c, Message{State: State{Turn: 1, Game: 1, Moves: fmt.Sprint(m.Column)}})
			_ = wsjson.Read(req.Context(), c, &m) // until it has ended
		}
	})
	proxy := httptest.NewServer(mux)
	defer proxy.Close()
	for _, name := range []string{
		"ann", "a b", "a/b", "a//b", "a?b", "a#b", "a%2Fb", "a%b", "%", "a+b", "a;b", `a"b`, `a\b`, "<b>hi</b>", "é", "\xff\xfe", "a\nb", strings.Repeat("x", 4096),
	} {
		if err := run(t.Context(), []string{"move", "--proxy", proxy.Listener.Addr().String(), name, "3"}); err != nil {
			t.Errorf("%.40q: %v", name, err)
		} else if got := <-asked; got != name {
			t.Errorf("%.40q is %.40q to the proxy", name, got)
		}
	}
}

// A move that was said and not acknowledged is told, also when Ctrl-C ends the wait: it may be made.
func TestAMoveThatIsNotAcknowledgedIsTold(t *testing.T) {
	ctx, ctrlC := context.WithCancel(t.Context())
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, err := websocket.Accept(w, req, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		var m Move
		if wsjson.Write(req.Context(), c, Message{}) == nil && wsjson.Read(req.Context(), c, &m) == nil {
			ctrlC()
			_ = wsjson.Read(req.Context(), c, &m)
		}
	}))
	defer proxy.Close()
	err := moveOnce(ctx, proxy.Listener.Addr().String(), "ann", 3)
	if err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "turn 1 of ann is not acknowledged, and may be made") {
		t.Errorf("it says %v", err)
	}
}

func TestCommandsSayWhatIsWrong(t *testing.T) {
	t.Setenv("NOKV_COORDINATOR_ADDR", "")
	proxy := httptest.NewServer(http.NotFoundHandler())
	defer proxy.Close()
	dir := t.TempDir()
	core := "core --id c --coordinator-addr 127.0.0.1:1 --dir "
	for args, want := range map[string]string{
		"moves":           `there is no "moves"`,
		"--boards 2001":   "0 to 2000 boards",
		"--boards -1":     "0 to 2000 boards",
		"--pace 0s":       "a time above 0",
		"--pace 2000000h": "up to an hour",
		"--pace 1s more":  `"more" is one word too many`,
		"--page nowhere":  "say with --page where else",
		"--page " + proxy.Listener.Addr().String(): "say with --page where else",
		"core more":                       `"more" is one word too many`,
		"core":                            "--id, --dir, --coordinator-addr",
		core + filepath.Join(dir, "none"): "name the folder that the cores share",
		core + "/dev/null":                "name the folder that the cores share",
		"move ann":                        "say which board and which column",
		"move ann three":                  "say which board and which column",
		"move ann 3 4":                    `"4" is one word too many`,
		"move --proxy " + proctest.Addrs(t, 1)[0] + " ann 3":        "say with --proxy where nokv proxy is",
		"move --proxy 127.0.0.1:99999 ann 3":                        "say with --proxy where nokv proxy is",
		"move --proxy " + proxy.Listener.Addr().String() + " ann 3": "the proxy answers 404: 404 page not found",
	} {
		t.Run(args, func(t *testing.T) {
			if err := run(t.Context(), strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: it does not say %q", err, want)
			}
		})
	}
	if err := run(t.Context(), []string{"move", "", "3"}); err == nil {
		t.Error("a move is made on a board without a name")
	}
	if err := run(t.Context(), []string{"core", "--help"}); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
}
