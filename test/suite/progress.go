package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

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
	// running are the tests that run, and since when, by package and name.
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
	case e.Action == "run" || e.Action == "cont":
		p.running[key] = time.Now()
	case e.Test != "" && (e.ends() || e.Action == "pause"):
		delete(p.running, key)
	case e.Test == "" && e.ends() && e.Package != "":
		p.ended += p.weights[e.Package]
		p.count++
		p.told = time.Now()
		word := map[string]string{"pass": "ok", "skip": "none", "fail": "FAILED"}[e.Action]
		fmt.Fprintf(p.out, "[%3d of %d] %-6s %6.1f s  %-36s %s\n", p.count, len(p.weights), word, e.Elapsed, short(e.Package), p.left())
	}
}

// left says how much time has gone and how much may be left.
func (p *progress) left() string {
	gone := time.Since(p.begun)
	text := gone.Round(time.Second).String() + " gone"
	if p.ended > p.all/20 && p.count < len(p.weights) {
		text += fmt.Sprintf(", about %s left", time.Duration(float64(gone)*(p.all-p.ended)/p.ended).Round(5*time.Second))
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
	var names []string
	for key, since := range p.running {
		if !strings.Contains(key[1], "/") {
			names = append(names, fmt.Sprintf("%s %s (%.0f s)", short(key[0]), key[1], time.Since(since).Seconds()))
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		names = []string{"the go command builds"}
	}
	fmt.Fprintf(p.out, "[%3d of %d] %s; running: %s\n", p.count, len(p.weights), p.left(), strings.Join(names, ", "))
}

// short is a package's path in the module.
func short(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}
