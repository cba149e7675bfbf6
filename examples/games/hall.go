package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/examples/internal/demo"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

//go:embed page.html
var page []byte

const (
	// mostCores and mostBoards bound what the page may ask for.
	mostCores, mostBoards = 12, 2000
	// shownEvery is the time between two pictures of the page.
	shownEvery = 250 * time.Millisecond
	mostLines  = 12
)

// settings are the command that makes the keyspace: the preset for games, with what a demo cannot wait for. A core
// that joins is given its part 1 s later, also one that failed a moment ago: before that those play on whose core
// has failed; boards that nobody is connected to are
// let go of after 20 s; and hook, if it is not empty, is told how many cores there should be, each one full with
// 100 boards.
func settings(hook string) []string {
	args := []string{
		"keyspace", "create", keyspace, "--preset", "games",
		"--policy-rebalance-spacing", "1s", "--policy-rebalance-settle", "1s", "--policy-rebalance-cooldown", "1s", "--policy-rebalance-in-flight", "64",
		"--guards-no-move-back", "1ms", "--guards-flap-failures", "1000", "--cadence-idle-evict", "20s", "--cadence-idle-scan", "2s",
	}
	if hook != "" {
		args = append(args, "--scaling-enabled", "true", "--scaling-hook-url", hook, "--scaling-spacing", "8s", "--policy-rebalance-absolute-limit", "100")
	}
	return args
}

// hall is what there is beside the cluster: cores, a proxy and players.
type hall struct {
	demo    *demo.Demo
	players *players
	mirror  *client.Mirror

	mu sync.Mutex
	// Guarded by mu.
	cores map[string]*demo.Process
	named int
	lines []string
}

// newHall makes the keyspace and starts a proxy at an address.
func newHall(ctx context.Context, d *demo.Demo, c *client.Client, proxy string, pace time.Duration, keyspaceArgs []string) (*hall, error) {
	if err := os.Mkdir(d.Dir+"/boards", 0o755); err != nil {
		return nil, err
	}
	if _, err := d.NoKV(ctx, keyspaceArgs...); err != nil {
		return nil, err
	}
	if _, err := d.Serve(ctx, "proxy", "proxy", "--keyspace", keyspace, "--key-path", "/boards/{key}", "--claim", "--addr", proxy, "--no-access-log"); err != nil {
		return nil, err
	}
	for { // it takes players as soon as it listens, and holds them until there are cores
		c, err := net.Dial("tcp", proxy)
		if err == nil {
			_ = c.Close()
			break
		}
		if pause(ctx, redialAfter); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return &hall{
		demo: d, players: &players{proxy: proxy, pace: pace}, cores: map[string]*demo.Process{},
		mirror: c.NewMirror(client.MirrorConfig{Keyspace: keyspace, Members: true}),
	}, nil
}

// add starts a core, under a new name if it has none.
func (h *hall) add(ctx context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.cores) >= mostCores {
		return fmt.Errorf("there are %d cores, and more are not for one machine", mostCores)
	}
	if id == "" {
		h.named++
		id = "core-" + strconv.Itoa(h.named)
	}
	p, err := h.demo.Self(ctx, id, "core", "--id", id, "--dir", h.demo.Dir+"/boards")
	if err != nil {
		return err
	}
	h.cores[id] = p
	go func() { // ends with the process
		<-p.Ended()
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.cores[id] == p {
			delete(h.cores, id)
		}
	}()
	return nil
}

// take is a core, which is no more to be counted as one.
func (h *hall) take(id string) (*demo.Process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.cores[id]
	if p == nil {
		return nil, fmt.Errorf("core %q does not run", id)
	}
	delete(h.cores, id)
	return p, nil
}

// kill is kill -9 of a core, and how many boards that are played were there.
func (h *hall) kill(id string) (boards int, err error) {
	p, err := h.take(id)
	if err != nil {
		return 0, err
	}
	boards = h.players.killed(p.PID(), time.Now())
	p.Kill()
	return boards, nil
}

// drain has a core's boards moved to others. It runs on, and gets none.
func (h *hall) drain(ctx context.Context, id string) error {
	_, err := h.demo.NoKV(ctx, "member", "drain", id, "--reason", "asked on the page")
	return err
}

// scale answers the hook of the keyspace: there are to be so many cores as are desired, without the
// victim, which has drained. It may be told twice.
func (h *hall) scale(ctx context.Context, w hook.Wish) error {
	if w.Victim != "" {
		if p, err := h.take(w.Victim); err == nil {
			p.Signal(syscall.SIGTERM)
			h.say(fmt.Sprintf("the hook: %d cores are wanted, and %s has drained: it is ended", w.Desired, w.Victim))
		}
		return nil
	}
	if w.Active < w.Desired {
		h.mu.Lock()
		running := len(h.cores)
		h.mu.Unlock()
		if running < w.Desired {
			h.say(fmt.Sprintf("the hook: cores are %.1f%% full, and %d are wanted: one is started", float64(w.FullPermille)/10, w.Desired))
			return h.add(ctx, "")
		}
	}
	return nil
}

func (h *hall) say(line string) {
	h.demo.Say(line)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, time.Now().Format("15:04:05 ")+line)
	h.lines = slices.Clone(h.lines[max(0, len(h.lines)-mostLines):])
}

// picture is what the page shows.
type picture struct {
	Cores  []shownCore       `json:"cores"`
	Boards map[string]string `json:"boards"` // the core of each; "": nobody has it
	Line   string            `json:"line"`
	Lines  []string          `json:"lines"`
}

type shownCore struct {
	ID     string `json:"id"`
	PID    int    `json:"pid"` // 0: it does not run
	State  string `json:"state"`
	Boards int    `json:"boards"`
}

// owned are the boards by their key, and how many each core has.
func (h *hall) owned() (boards map[string]string, cores map[string]int) {
	boards, cores = map[string]string{}, map[string]int{}
	for r := range h.mirror.All() {
		boards[r.Start] = ""
		for _, o := range r.Owners {
			boards[r.Start] = string(o.Member)
			cores[string(o.Member)]++
		}
	}
	return boards, cores
}

func (h *hall) picture() picture {
	boards, counts := h.owned()
	states := map[string]string{}
	for _, m := range h.mirror.Members() {
		if m.GetState() != rootv1.MemberState_MEMBER_STATE_REMOVED {
			states[m.GetId()] = strings.ToLower(strings.TrimPrefix(m.GetState().String(), "MEMBER_STATE_"))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p := picture{Boards: boards, Lines: slices.Clone(h.lines)}
	for id := range h.cores {
		if states[id] == "" {
			states[id] = "starts"
		}
	}
	for _, id := range slices.Sorted(maps.Keys(states)) {
		c := shownCore{ID: id, State: states[id], Boards: counts[id]}
		if running := h.cores[id]; running != nil {
			c.PID = running.PID()
		} else if c.Boards == 0 {
			continue // it has ended, and its boards are others'
		}
		p.Cores = append(p.Cores, c)
	}
	return p
}

// routes are the page, what it asks for, and the hook. Other sites' pages may ask for nothing.
func (h *hall) routes(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("GET /events", h.events)
	act := func(pattern string, do func(*http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			if err := do(req); err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		})
	}
	act("POST /cores", func(*http.Request) error { return h.add(ctx, "") })
	act("POST /cores/{id}/kill", func(req *http.Request) error {
		id := req.PathValue("id")
		n, err := h.kill(id)
		if err == nil {
			h.say(fmt.Sprintf("kill -9 of %s, where %d of the boards are that are played", id, n))
		}
		return err
	})
	act("POST /cores/{id}/drain", func(req *http.Request) error {
		h.say(req.PathValue("id") + " is drained")
		return h.drain(req.Context(), req.PathValue("id"))
	})
	act("POST /boards", func(req *http.Request) error {
		n, err := strconv.Atoi(req.FormValue("n"))
		if err != nil || n < 0 || n > mostBoards {
			return fmt.Errorf("%q boards: want 0 to %d", req.FormValue("n"), mostBoards)
		}
		h.say(fmt.Sprintf("%d boards are played", n))
		h.players.play(ctx, n)
		return nil
	})
	act("POST /scale", func(req *http.Request) error {
		var wish hook.Wish
		if err := json.NewDecoder(http.MaxBytesReader(nil, req.Body, 64<<10)).Decode(&wish); err != nil {
			return err
		}
		return h.scale(ctx, wish)
	})
	return http.NewCrossOriginProtection().Handler(mux)
}

// events are pictures, as server-sent events. A page that does not read is cut.
func (h *hall) events(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	before, at := h.players.moves.Load(), time.Now()
	line := ""
	for tick := time.NewTicker(shownEvery); ; {
		p := h.picture()
		if in := time.Since(at); in > time.Second {
			line = h.players.line(before, in)
			before, at = h.players.moves.Load(), time.Now()
		}
		p.Line = line
		raw, err := json.Marshal(p)
		if err != nil {
			return
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeWithin))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", raw); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-req.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// show is all of it: a cluster, cores, players and the page.
func show(ctx context.Context, address string, boards int, pace time.Duration) error {
	if boards < 0 || boards > mostBoards || pace <= 0 || pace > time.Hour {
		return fmt.Errorf("--boards %d, --pace %v: want 0 to %d boards, and a time above 0, up to an hour", boards, pace, mostBoards)
	}
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("the page: %w: say with --page where else", err)
	}
	defer lis.Close()
	d, err := demo.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer d.Stop()
	c, err := client.New(client.Config{Endpoints: strings.Split(d.Coordinators, ",")})
	if err != nil {
		return err
	}
	defer c.Close()
	proxy, err := demo.FreeAddress()
	if err != nil {
		return err
	}
	h, err := newHall(ctx, d, c, proxy, pace, settings("http://"+lis.Addr().String()+"/scale"))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	server := &http.Server{Handler: h.routes(ctx), ReadHeaderTimeout: 10 * time.Second}
	defer server.Close()
	all.Go(func() { ended <- h.mirror.Run(ctx) })
	all.Go(func() { ended <- server.Serve(lis) })
	for range 4 {
		if err := h.add(ctx, ""); err != nil {
			return err
		}
	}
	h.players.play(ctx, boards)
	defer h.players.play(ctx, 0)
	d.Say("the page is http://" + lis.Addr().String() + "; boards are at http://" + proxy + "/boards/NAME, also for curl")
	before := h.players.moves.Load()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return errors.Join(errors.New("the page or the watch of the cluster ended"), err)
		case <-tick.C:
		}
		now := h.players.moves.Load()
		d.Say(h.players.line(before, time.Second))
		before = now
		if gaps := h.players.gapsAgain(); len(gaps) > 0 {
			h.say(fmt.Sprintf("%d boards go on elsewhere: from kill to the next move %v in the middle, %v the longest", len(gaps), percentile(gaps, 50), percentile(gaps, 100)))
		}
	}
}
