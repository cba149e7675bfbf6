package chaos

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fault is one bad thing: what, to whom, for how long.
type fault struct {
	kind, target string
	lasts        time.Duration
}

func (f fault) String() string { return fmt.Sprintf("%s %s %s", f.kind, f.target, f.lasts) }

// episode is faults that begin together, so long after everything went well.
type episode struct {
	after  time.Duration
	faults []fault
}

func (e episode) String() string {
	var all []string
	for _, f := range e.faults {
		all = append(all, f.String())
	}
	return fmt.Sprintf("after %s: %s", e.after, strings.Join(all, ", "))
}

// schedule is what happens in a run.
type schedule struct {
	// seed is of the load.
	seed     uint64
	ttl      time.Duration
	episodes []episode
}

// String is the schedule as parse reads it.
func (s *schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\nttl %s\n", s.seed, s.ttl)
	for _, e := range s.episodes {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// parse reads a schedule. Empty lines and lines that begin with # are left out.
func parse(text string) (*schedule, error) {
	s := &schedule{ttl: defaultTTL}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.parseLine(line); err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", n, line, err)
		}
	}
	if len(s.episodes) == 0 {
		return nil, fmt.Errorf("the schedule has no episode: want lines such as %q", episode{time.Second, []fault{{"kill", "leader", time.Second}}})
	}
	if s.has(powerCut) && s.has(movesWorkdirs...) {
		return nil, fmt.Errorf("%s gives each folder a disk of its own, which cannot be moved: not together with any of %v", powerCut, movesWorkdirs)
	}
	return s, nil
}

func (s *schedule) parseLine(line string) (err error) {
	if rest, ok := strings.CutPrefix(line, "seed "); ok {
		_, err = fmt.Sscanf(rest, "%d", &s.seed)
		return err
	}
	if rest, ok := strings.CutPrefix(line, "ttl "); ok {
		s.ttl, err = time.ParseDuration(rest)
		return err
	}
	when, what, ok := strings.Cut(line, ":")
	if !ok || !strings.HasPrefix(when, "after ") {
		return fmt.Errorf("want %q, %q or %q", "seed N", "ttl D", "after D: KIND TARGET D, ...")
	}
	var e episode
	if e.after, err = time.ParseDuration(strings.TrimPrefix(when, "after ")); err != nil {
		return err
	}
	for _, one := range strings.Split(what, ",") {
		words := strings.Fields(one)
		if len(words) != 3 {
			return fmt.Errorf("%q is not KIND TARGET DURATION", one)
		}
		k, ok := kindByName(words[0])
		if !ok {
			return fmt.Errorf("there is no fault %q", words[0])
		}
		f := fault{kind: k.name, target: words[1]}
		if f.lasts, err = time.ParseDuration(words[2]); err != nil {
			return err
		}
		e.faults = append(e.faults, f)
	}
	s.episodes = append(s.episodes, e)
	return nil
}

// kindOfFault says what random schedules may do with a kind, and how often.
type kindOfFault struct {
	name string
	// row is the number of the bad thing in the design that it shows.
	row    string
	weight int
	// targets to choose from; what the fault takes when it is a role or a name.
	targets []string
	// min and max bound how long it lasts.
	min, max time.Duration
	// alone: never together with another fault.
	alone bool
	begin func(*run, fault) *active
}

const (
	ms         = time.Millisecond
	defaultTTL = 200 * ms
)

var (
	anyMember     = []string{"leader", "follower", "holder", "standby"}
	anyRoot       = []string{"leader", "follower"}
	followerOnly  = []string{"follower", "other"}
	holderOrOther = []string{"holder", "standby"}
	whole         = []string{"all"}
)

// kinds are all faults. The order is part of what a seed means.
func kinds() []kindOfFault {
	return []kindOfFault{
		{"kill", "1", 5, anyMember, 20 * ms, 600 * ms, false, beginKill},
		{"kill-both", "1", 2, whole, 50 * ms, 500 * ms, true, beginKillBoth},
		{"kill-all", "1", 1, whole, 50 * ms, 500 * ms, true, beginKillAll},
		{"no-quorum", "35", 1, whole, 1500 * ms, 3000 * ms, true, beginNoQuorum},
		{"stop-orderly", "1", 2, anyMember, 20 * ms, 500 * ms, false, beginOrderly},
		{"pause", "11", 4, anyMember, 100 * ms, 2000 * ms, false, beginPause},
		{"pause-both", "11", 1, whole, 100 * ms, 2000 * ms, true, beginPauseBoth},
		{"leader-alone", "14", 3, whole, 300 * ms, 2000 * ms, false, beginLeaderAlone},
		{"minority", "14", 1, whole, 300 * ms, 2000 * ms, false, beginMinority},
		{"ring", "14", 1, whole, 300 * ms, 2000 * ms, true, beginRing},
		{"bridge", "14", 1, whole, 300 * ms, 2000 * ms, true, beginBridge},
		{"isolate", "14", 2, anyMember, 200 * ms, 2000 * ms, false, beginIsolate},
		{"deafen", "15", 2, anyMember, 300 * ms, 2000 * ms, false, beginDeafen},
		{"mute", "15", 2, anyMember, 300 * ms, 2000 * ms, false, beginMute},
		{"cut-from-root", "16", 3, holderOrOther, 200 * ms, 2000 * ms, false, beginCutFromRoot},
		{"cut-from-clients", "16", 2, holderOrOther, 200 * ms, 2000 * ms, false, beginCutFromClients},
		{"slow", "17", 2, anyMember, 500 * ms, 2000 * ms, false, beginSlow},
		{"unanswered", "18", 2, anyMember, 300 * ms, 2000 * ms, false, beginUnanswered},
		{"reset", "19", 2, anyMember, 200 * ms, 1000 * ms, false, beginReset},
		{"twin", "25", 1, holderOrOther, 300 * ms, 800 * ms, true, beginTwin},
		{"blocked-log", "10", 1, anyMember, 300 * ms, 800 * ms, true, beginBlockedLog},
		{"fsync-error", "6", 2, anyRoot, 100 * ms, 500 * ms, true, beginFsyncError},
		{"fsync-slow", "8", 2, anyRoot, 500 * ms, 2500 * ms, true, beginFsyncSlow},
		{"disk-full", "7", 1, anyRoot, 100 * ms, 500 * ms, true, beginDiskFull},
		{"torn", "4", 1, followerOnly, 50 * ms, 200 * ms, true, beginTorn},
		{"bit-flip", "5", 1, followerOnly, 50 * ms, 200 * ms, true, beginBitFlip},
		{"missing-workdir", "9", 1, followerOnly, 50 * ms, 200 * ms, true, beginMissingWorkdir},
		{"read-only-workdir", "9", 1, followerOnly, 50 * ms, 200 * ms, true, beginReadOnlyWorkdir},
		{"swapped-workdirs", "22", 1, whole, 50 * ms, 200 * ms, true, beginSwappedWorkdirs},
		{powerCut, "3", 1, []string{"all", "two", "leader", "follower"}, 50 * ms, 300 * ms, true, beginPowerCut},
		{"workdir-in-use", "22", 1, anyRoot, 50 * ms, 200 * ms, true, beginWorkdirInUse},
		{"behind", "21", 1, []string{"follower", "standby"}, 100 * ms, 500 * ms, true, beginBehind},
	}
}

func kindByName(name string) (kindOfFault, bool) {
	for _, k := range kinds() {
		if k.name == name {
			return k, true
		}
	}
	return kindOfFault{}, false
}

// episodesPerRun is how many episodes a random schedule has.
const episodesPerRun = 7

// randomSchedule is the schedule of a seed.
func randomSchedule(seed uint64) *schedule {
	rng := rand.New(rand.NewPCG(seed, 0))
	s := &schedule{seed: seed, ttl: []time.Duration{defaultTTL, defaultTTL, 0}[rng.IntN(3)]}
	for range episodesPerRun {
		e := episode{after: between(rng, 50*ms, 400*ms)}
		first, k := randomFault(rng)
		e.faults = append(e.faults, first)
		if !k.alone && rng.IntN(3) == 0 {
			if second, k := randomFault(rng); !k.alone && sideOf(second) != sideOf(first) {
				e.faults = append(e.faults, second)
			}
		}
		s.episodes = append(s.episodes, e)
	}
	if s.has(powerCut) {
		s.episodes = slices.DeleteFunc(s.episodes, func(e episode) bool { return slices.Contains(movesWorkdirs, e.faults[0].kind) })
	}
	return s
}

func randomFault(rng *rand.Rand) (fault, kindOfFault) {
	total := 0
	for _, k := range kinds() {
		total += k.weight
	}
	pick := rng.IntN(total)
	for _, k := range kinds() {
		if pick -= k.weight; pick < 0 {
			return fault{k.name, k.targets[rng.IntN(len(k.targets))], between(rng, k.min, k.max)}, k
		}
	}
	panic("chaos: no kind of fault was picked")
}

// sideOf says whom a fault is about: two faults at a time must not take each
// other's victim away.
func sideOf(f fault) string {
	if f.target == "holder" || f.target == "standby" {
		return "coordinators"
	}
	return "roots"
}

func between(rng *rand.Rand, lo, hi time.Duration) time.Duration {
	return (lo + time.Duration(rng.Int64N(int64(hi-lo)))).Round(10 * ms)
}

// A schedule is what it prints.
func TestScheduleRoundTrips(t *testing.T) {
	used := make(map[string]int)
	for seed := range uint64(500) {
		s := randomSchedule(seed)
		again, err := parse(s.String())
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, s)
		}
		if again.String() != s.String() || randomSchedule(seed).String() != s.String() {
			t.Fatalf("seed %d: another schedule when it is read\n%s\n%s", seed, s, again)
		}
		for _, e := range s.episodes {
			for _, f := range e.faults {
				used[f.kind]++
			}
		}
	}
	for _, k := range kinds() {
		if used[k.name] == 0 {
			t.Errorf("500 seeds have no %s", k.name)
		}
	}
}

func TestWrongSchedulesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "no episode",
		"seed 3":                  "no episode",
		"after 1s: kil leader 1s": `no fault "kil"`,
		"after 1s: kill leader":   "is not KIND TARGET DURATION",
		"after 1: kill leader 1s": "missing unit",
		"after 1s: power-cut all 1s\nafter 1s: missing-workdir follower 1s": "cannot be moved",
		"kill leader 1s":                 "want",
		"ttl soon":                       "invalid duration",
		"after 1s: kill leader 1s, kill": "is not KIND TARGET DURATION",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The scripts can be read, and have every kind of fault.
func TestScriptsHaveEveryKind(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	var scripts []*schedule
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse(string(raw))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		scripts = append(scripts, s)
	}
	for _, k := range kinds() {
		if !slices.ContainsFunc(scripts, func(s *schedule) bool { return s.has(k.name) }) {
			t.Errorf("no script has %s", k.name)
		}
	}
}
