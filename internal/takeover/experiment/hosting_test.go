package experiment

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/takeover"
)

// Two processes that act for one region at one epoch are found, whichever of them says so
// first; one process that says it twice is not, nor is a region's next epoch.
func TestTwoOwnersOfAnEpochAreFound(t *testing.T) {
	dir := t.TempDir()
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	o := owners{by: map[string]string{}}
	speak := func(id, lines string) *worker {
		w := newWorker(dir, "", "w", "")
		w.id, w.log = "w", filepath.Join(dir, id)
		if err := os.WriteFile(w.log, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := w.hear(start, &o); err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := speak("one", `{"time":"2026-11-22T12:00:01Z","event":"starts"}
{"time":"2026-11-22T12:00:02Z","event":"acquired","region":7,"epoch":"1.1"}
{"time":"2026-11-22T12:00:03Z","event":"acquired","region":7,"epoch":"1.1"}
a line of a panic
{"time":"2026-11-22T12:00:04Z","event":"acquired","region":8,"epoch":"1.1"}
{"time":"2026-11-22T12:00:05Z","event":"released","region":8,"epoch":"1.1"}
{"time":"2026-11-22T12:00:06Z","event":"acq`)
	if len(w.held) != 1 || len(w.since(3*time.Second)) != 2 || len(o.broken) != 0 {
		t.Fatalf("it has %v, acquired %v; broken: %q", w.held, w.served, o.broken)
	}
	raw, _ := os.ReadFile(w.log)
	if err := os.WriteFile(w.log, append(raw, `uired","region":9,"epoch":"1.1"}
{"time":"2026-11-22T12:00:07Z","event":"starts"}
{"time":"2026-11-22T12:00:08Z","event":"acquired","region":7,"epoch":"1.2"}
`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.hear(start, &o); err != nil || len(w.held) != 1 || w.held[7] != "1.2" || len(o.broken) != 0 {
		t.Fatalf("it has %v behind its restart, %v; broken: %q", w.held, err, o.broken)
	}
	if err := os.WriteFile(w.log, append(raw, `uired","region":9,"epoch":"1.1"}
{"time":"2026-11-22T12:00:07Z","event":"starts"}
{"time":"2026-11-22T12:00:08Z","event":"acquired","region":7,"epoch":"1.2"}
{"time":"2026-11-22T12:00:09Z","event":"acquired","region":8,"epoch":"1.1"}
`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.hear(start, &o); err != nil || len(o.broken) != 1 {
		t.Errorf("another process acquired a region at an old epoch, %v; broken: %q", err, o.broken)
	}
}

// A region that somebody has before whoever had it let go was not handed over.
func TestHandedOver(t *testing.T) {
	at := func(n time.Duration, region uint64) served { return served{n * time.Second, region, ""} }
	a := &worker{id: "a", served: []served{at(1, 7), at(1, 8)}, let: []served{at(3, 7), at(5, 8)}}
	b := &worker{id: "b", served: []served{at(3, 7), at(4, 8)}}
	if broken := handedOver([]*worker{b, a}); len(broken) != 1 || broken[0] != "region 8 was acquired by b while a had it" {
		t.Errorf("broken: %q", broken)
	}
}

// What cannot be measured is refused in words.
func TestHostingIsChecked(t *testing.T) {
	good := MemberConfig{
		Hosting: Hosting{Members: 4, Regions: 10, Readers: 1, Coordinators: 2, Preset: "games", TTL: 200 * time.Millisecond},
		Action:  takeover.Kill, Victim: takeover.All, Rounds: 1, Steady: time.Second,
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*MemberConfig){
		"no preset":          func(c *MemberConfig) { c.Preset = "game" },
		"shared":             func(c *MemberConfig) { c.Preset = "tenants" },
		"reported":           func(c *MemberConfig) { c.Preset = "kv" },
		"slots":              func(c *MemberConfig) { c.Preset = "partitions" },
		"nobody left":        func(c *MemberConfig) { c.Members = 1 },
		"no regions":         func(c *MemberConfig) { c.Regions = 0 },
		"no other holder":    func(c *MemberConfig) { c.Coordinators = 1 },
		"all of them hang":   func(c *MemberConfig) { c.Action = takeover.Hang },
		"restart":            func(c *MemberConfig) { c.Action = takeover.Restart },
		"a fence of a micro": func(c *MemberConfig) { c.FenceTTL = time.Microsecond },
	} {
		c := good
		spoil(&c)
		if c.Validate() == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}
