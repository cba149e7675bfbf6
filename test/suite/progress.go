package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxTold bounds how many running tests are named.
const maxTold = 4

// silence is how long nothing is told at most while tests run.
const silence = 20 * time.Second

// progress tells which packages have ended, and how long the rest may take.
type progress struct {
	out     io.Writer
	begun   time.Time
	all     float64
	weights map[string]float64

	mu sync.Mutex // guards what follows
	// ended is the weight of the packages that have ended, count their number.
	ended float64
	count int
	told  time.Time
	// running are the tests that run, and since when, by package and name; "" is the package.
	running map[[2]string]time.Time
}

func newProgress(out io.Writer, packages []pkg) *progress {
	p := &progress{out: out, begun: time.Now(), told: time.Now(), weights: make(map[string]float64), running: make(map[[2]string]time.Time)}
	for _, k := range packages {
		p.weights[k.path] = k.weight
		p.all += k.weight
	}
	return p
}

func (p *progress) take(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := [2]string{e.Package, e.Test}
	switch {
	case e.Action == "start" || e.Action == "run" || e.Action == "cont":
		p.running[key] = time.Now()
	case e.Test != "" && (e.ends() || e.Action == "pause"):
		delete(p.running, key)
	case e.Test == "" && e.ends() && e.Package != "":
		p.ended += p.weights[e.Package]
		p.count++
		p.told = time.Now()
		delete(p.running, key)
		word := map[string]string{"pass": "ok", "skip": "none", "fail": "FAILED"}[e.Action]
		fmt.Fprintf(p.out, "[%3d of %d] %-6s %6.1f s  %-36s %s\n", p.count, len(p.weights), word, e.Elapsed, short(e.Package), p.left())
	}
}

// left says how much time has gone and how much may be left.
func (p *progress) left() string {
	gone, done := time.Since(p.begun), p.ended
	for key, since := range p.running {
		if key[1] == "" {
			done += min(time.Since(since).Seconds(), p.weights[key[0]])
		}
	}
	text := gone.Round(time.Second).String() + " gone"
	if done > p.all/10 && p.count < len(p.weights) {
		text += fmt.Sprintf(", about %s left", time.Duration(float64(gone)*(p.all-done)/done).Round(5*time.Second))
	}
	return text
}

// tellOften says what runs when no package has ended for a while, until what it returns is called.
func (p *progress) tellOften() (stop func()) {
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				p.tellRunning()
			}
		}
	})
	return func() {
		close(done)
		telling.Wait()
	}
}

func (p *progress) tellRunning() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.told) < silence {
		return
	}
	p.told = time.Now()
	tests := slices.DeleteFunc(slices.Collect(maps.Keys(p.running)), func(key [2]string) bool { return key[1] == "" || strings.Contains(key[1], "/") })
	slices.SortFunc(tests, func(a, b [2]string) int { return p.running[a].Compare(p.running[b]) })
	names := make([]string, 0, maxTold)
	for _, key := range tests[:min(len(tests), maxTold)] {
		names = append(names, fmt.Sprintf("%s %s (%.0f s)", short(key[0]), key[1], time.Since(p.running[key]).Seconds()))
	}
	switch more := len(tests) - len(names); {
	case len(names) == 0:
		names = []string{"the go command builds"}
	case more > 0:
		names = append(names, fmt.Sprintf("%d more", more))
	}
	fmt.Fprintf(p.out, "[%3d of %d] %s; running: %s\n", p.count, len(p.weights), p.left(), strings.Join(names, ", "))
}

// short is a package's path in the module.
func short(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}
