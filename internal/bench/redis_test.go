package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// registry is a server that answers as Redis does, and counts.
type registry struct {
	addr string
	mu   sync.Mutex
	// Guarded by mu.
	sets   map[string]string
	asked  map[string]int
	answer string // instead of the right one, to what is looked up
}

func startRegistry(t *testing.T) *registry {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &registry{addr: lis.Addr().String(), sets: map[string]string{}, asked: map[string]int{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				for in := bufio.NewReader(conn); ; {
					var n int
					if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
						return
					}
					words := make([]string, n)
					for i := range words {
						var size int
						if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
							return
						}
						b := make([]byte, size+2)
						if _, err := io.ReadFull(in, b); err != nil {
							return
						}
						words[i] = string(b[:size])
					}
					if _, err := io.WriteString(conn, o.say(words)); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = lis.Close(); all.Wait() })
	return o
}

func (o *registry) say(words []string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked[words[0]]++
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	lookup := words[0] == "SMEMBERS" || words[0] == "HGET"
	switch {
	case lookup && o.answer != "":
		return o.answer
	case lookup && o.sets[words[1]] == "":
		return "$-1\r\n"
	}
	switch words[0] {
	case "PING":
		return "+PONG\r\n"
	case "SADD":
		o.sets[words[1]] = words[2]
	case "HSET":
		o.sets[words[1]] = words[3]
	case "DEL":
		delete(o.sets, words[1])
	case "SMEMBERS":
		return "*1\r\n" + bulk(o.sets[words[1]])
	case "HGET":
		return bulk(o.sets[words[1]])
	case "INFO":
		return bulk("# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_user:0.25\r\nused_cpu_user_children:9\r\n")
	}
	return ":1\r\n"
}

// A lookup is two reads, one after the other; nothing is left behind, and the processor
// time of the other side counts.
func TestAgainstRedis(t *testing.T) {
	o := startRegistry(t)
	c := Config{Workload: "route", Mode: "unary", Regions: 1200, Concurrency: 2, Batch: 1, Duration: time.Second, Against: "redis=" + o.addr}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	op, end, err := c.prepare(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if n, err := op(t.Context(), i%2); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if o.asked["SMEMBERS"] != 10 || o.asked["HGET"] != 10 || o.asked["SADD"] != 1200 {
		t.Errorf("asked %v", o.asked)
	}
	if got := c.others(); got != 1750*time.Millisecond {
		t.Errorf("%v of processor time", got)
	}
	for answer, want := range map[string]string{
		"*0\r\n":                  "not found",
		"-MOVED 1\r\n":            "redis refused: MOVED 1",
		"*99999999\r\n":           "a list of",
		"*1\r\n$99999999999\r\n":  "a text of",
		"*1\r\n*1\r\n":            "a list of",
		"?\r\n":                   "answers with",
		"\r\n":                    "an empty line",
		strings.Repeat("x", 5000): "buffer full",
	} {
		o.mu.Lock()
		o.answer = answer
		o.mu.Unlock()
		one := Config{Workload: "route", Regions: 1, Concurrency: 1, Against: "redis=" + o.addr}
		bad, stop, err := one.prepare(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bad(t.Context(), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", answer, err)
		}
		stop()
	}
	end()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked["DEL"] < 1204 {
		t.Errorf("%d removed", o.asked["DEL"])
	}
}
