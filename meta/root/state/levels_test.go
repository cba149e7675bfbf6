package state_test

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// taggedLevel is the highest feature level of a version that has a tag. The corpora up to it are
// never written again.
const taggedLevel = 0

var rewriteGolden = flag.Bool("rewrite-golden", false, "write the corpus of feature level state.FeatureLevel anew: only before a version of that level has a tag")

// levelChanged says what to do when a corpus is replayed to something else.
const levelChanged = `feature level %d means something else than when its corpus was written: builds of that level would disagree about a log.
Begin a new level: raise state.FeatureLevel, have what is new depend on it (state/feature.go), and write its corpus, go test ./meta/root/state -run TestLevels -rewrite-golden.
A level above %d, of which no version has a tag yet, may be written anew instead, by the same command.`

// corpus is what a feature level means: logs, what came of each entry, and the states at their ends.
//
//	entries   one a line: the log's name and the entry in hexadecimal
//	outcomes  one a line: the state hash behind the entry, and what became of each command
//	states    one a log: its name, the token, the state hash, and the records in hexadecimal
type corpus struct{ level uint32 }

func (c corpus) path(file string) string {
	return filepath.Join("testdata/levels", fmt.Sprint(c.level), file)
}

func (c corpus) read(t tester, file string) string {
	text, err := os.ReadFile(c.path(file))
	if err != nil {
		t.Fatalf("feature level %d has no corpus: %v. Write it: go test ./meta/root/state -run TestLevels -rewrite-golden", c.level, err)
	}
	return string(text)
}

func (c corpus) write(t *testing.T, file, text string) {
	t.Helper()
	if c.level <= taggedLevel {
		t.Fatalf("a version of feature level %d has a tag: its corpus is never written again. Begin level %d", c.level, taggedLevel+1)
	}
	err := os.MkdirAll(filepath.Dir(c.path(file)), 0o755)
	if err == nil {
		err = os.WriteFile(c.path(file), []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// goldenEntry is an entry of one of the logs of a corpus.
type goldenEntry struct {
	log  string
	data []byte
}

func (c corpus) entries(t tester) []goldenEntry {
	var all []goldenEntry
	for line := range strings.Lines(c.read(t, "entries")) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		data, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("level %d, entry %d: %v", c.level, len(all)+1, err)
		}
		all = append(all, goldenEntry{name, data})
	}
	return all
}

// goldenEntries are those of all levels.
func goldenEntries(t tester) []goldenEntry {
	var all []goldenEntry
	for _, c := range corpora() {
		all = append(all, c.entries(t)...)
	}
	return all
}

func corpora() []corpus {
	var all []corpus
	for level := uint32(state.BaseFeatureLevel); level <= state.FeatureLevel; level++ {
		all = append(all, corpus{level})
	}
	return all
}

// replay applies the logs of a corpus, each to a State of its own.
func (c corpus) replay(t tester) (outcomes, states string) {
	var said, ends strings.Builder
	var s *state.State
	log := ""
	end := func() {
		if s != nil {
			fmt.Fprintf(&ends, "%s %s %016x %x\n", log, s.Token(), s.Hash(), recordsOf(t, s))
		}
	}
	for _, e := range c.entries(t) {
		if e.log != log {
			end()
			s, log = state.New(), e.log
		}
		var out state.Applied
		if err := s.ApplyEntry(1, s.Token().Index+1, e.data, &out); err != nil {
			t.Fatalf("level %d, log %s: %v\n"+levelChanged, c.level, log, err, c.level, taggedLevel)
		}
		fmt.Fprintf(&said, "%s %d %016x", log, s.Token().Index, s.Hash())
		for _, r := range out.Results {
			fmt.Fprintf(&said, " %s", short(r.Outcome.String(), "OUTCOME_"))
			if r.Reject != nil {
				fmt.Fprintf(&said, ":%s", short(r.Reject.GetReason().String(), "REASON_"))
			}
		}
		fmt.Fprintln(&said)
	}
	end()
	return said.String(), ends.String()
}

// recordsOf are the records of a State, each behind its length.
func recordsOf(t tester, s *state.State) []byte {
	var all []byte
	err := s.EncodedRecords(func(record []byte) error {
		all = append(binary.AppendUvarint(all, uint64(len(record))), record...)
		return nil
	})
	if err != nil {
		t.Fatalf("records: %v", err)
	}
	return all
}

// TestLevels: the logs of each feature level give the states, hashes and outcomes that
// they gave when they were written, and checkpoints of those states are restored. A
// failure here is a cluster whose replicas disagree in a rolling upgrade.
func TestLevels(t *testing.T) {
	if *rewriteGolden {
		now := corpus{state.FeatureLevel}
		now.write(t, "entries", scriptedEntries(t))
		outcomes, states := now.replay(t)
		now.write(t, "outcomes", outcomes)
		now.write(t, "states", states)
	}
	for _, c := range corpora() {
		outcomes, states := c.replay(t)
		for file, got := range map[string]string{"outcomes": outcomes, "states": states} {
			if at := firstDifference(got, c.read(t, file)); at != "" {
				t.Errorf("%s: %s\n"+levelChanged, c.path(file), at, c.level, taggedLevel)
			}
		}
		for line := range strings.Lines(c.read(t, "states")) {
			f := strings.Fields(line)
			var at state.Token
			if _, err := fmt.Sscanf(f[1], "%d.%d.%d", &at.Incarnation, &at.Term, &at.Index); err != nil {
				t.Fatal(err)
			}
			s, err := restore(at, recordsFrom(t, f[3]))
			if err != nil || fmt.Sprintf("%016x", s.Hash()) != f[2] {
				t.Errorf("level %d, log %s: the restored state has another hash than %s: %v\n"+levelChanged, c.level, f[0], f[2], err, c.level, taggedLevel)
			}
		}
	}
}

// firstDifference is the first line that differs, shortened; "": none does.
func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(a), len(b)) {
		var x, y string
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return fmt.Sprintf("line %d is\n%.200s\nit was\n%.200s", i+1, x, y)
		}
	}
	return ""
}

// recordsFrom reads what recordsOf wrote.
func recordsFrom(t *testing.T, digits string) []*rootv1.Record {
	t.Helper()
	rest, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	var records []*rootv1.Record
	for len(rest) > 0 {
		size, n := binary.Uvarint(rest)
		r := &rootv1.Record{}
		if err := proto.Unmarshal(rest[n:n+int(size)], r); err != nil {
			t.Fatal(err)
		}
		records, rest = append(records, r), rest[n+int(size):]
	}
	return records
}

// scriptedEntries are the commands of the scripts, one an entry, with their identities and
// conditions; those of one script come once more in a single entry, which has a date.
// Of what is repeated there are sixteen. Scripts about a level to come are left out.
func scriptedEntries(t *testing.T) string {
	paths, err := filepath.Glob("testdata/scripts/*")
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, path := range paths {
		name, commands := filepath.Base(path), scripted(t, path)
		for _, c := range commands {
			fmt.Fprintf(&lines, "%s %x\n", name, encode(t, c))
		}
		if name == "transition" {
			data, err := proto.Marshal(&rootv1.Entry{Commands: commands, UnixMillis: 1})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&lines, "%s-at-once %x\n", name, data)
		}
	}
	return lines.String()
}

// scripted are the commands that a script applies.
func scripted(t *testing.T, path string) []*rootv1.Command {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []*rootv1.Command
	for _, block := range strings.Split("\n"+string(text), "\n\n") {
		if strings.Contains("\n"+block, "\ntrial ") {
			return nil
		}
		args, rest, ok := strings.Cut(strings.TrimLeft(uncommented(block), "\n"), "\n")
		input, _, _ := strings.Cut(rest, "\n----")
		verb, args, _ := strings.Cut(args, " ")
		switch {
		case ok && verb == "apply":
			c := &rootv1.Command{Events: parseEvents(t, input)}
			readArgs(t, c, args)
			all = append(all, c)
		case ok && verb == "repeat":
			n, err := strconv.Atoi(strings.TrimPrefix(args, "n="))
			if err != nil {
				t.Fatal(err)
			}
			for i := range min(n, 16) {
				all = append(all, &rootv1.Command{Events: parseEvents(t, strings.ReplaceAll(input, "$i", fmt.Sprint(i+1)))})
			}
		}
	}
	return all
}

// uncommented is a block of a script without its comments.
func uncommented(block string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(block, "\n"), func(line string) bool { return strings.HasPrefix(line, "#") }), "\n")
}

// readArgs reads what stands behind apply.
func readArgs(t *testing.T, c *rootv1.Command, args string) {
	id := &rootv1.CommandIdentity{}
	var keyspace, version uint64
	into := map[string]*uint64{"require-era": &c.RequireEra, "require-keyspace": &keyspace, "at-version": &version, "origin": &id.Origin, "seq": &id.Sequence, "known": &id.KnownIndex}
	for _, arg := range strings.Fields(args) {
		key, value, _ := strings.Cut(arg, "=")
		if text := map[string]*string{"actor": &c.Actor, "via": &c.Via, "why": &c.Why}[key]; text != nil {
			*text = value
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil || into[key] == nil {
			t.Fatalf("apply %s: %q", args, arg)
		}
		*into[key] = n
	}
	if id.Origin != 0 {
		c.Identity = id
	}
	if keyspace != 0 {
		c.RequireKeyspaces = []*rootv1.KeyspaceVersion{{KeyspaceId: uint32(keyspace), Version: version}}
	}
}

// TestLevelsHaveEverything: each kind of event is applied and rejected in the corpora, and what a command
// has beside its events is in them. They are the seeds of the fuzzers too.
func TestLevelsHaveEverything(t *testing.T) {
	missing := map[string]bool{}
	for _, what := range []string{
		"an identity", "an era", "versions of keyspaces", "who asked", "through whom", "a date", "commands in one entry", "a repetition", "a join that follows", "a secret", "guards",
		"a probe address", "a plan's entry", "an actor refused at its first event", "an actor refused behind its first event", "a record of every kind",
	} {
		missing[what] = true
	}
	kinds := (&rootv1.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		name := string(kinds.Get(i).Name())
		// A raise applies in the corpus of the second level for the first time.
		if missing[name+" rejected"] = true; name != "feature_level_raised" || state.FeatureLevel > 1 {
			missing[name+" applied"] = true
		}
	}
	found := func(what string, there bool) {
		if there {
			delete(missing, what)
		}
	}
	records := map[protoreflect.Name]bool{}
	var s *state.State
	log := ""
	for _, g := range goldenEntries(t) {
		if g.log != log {
			s, log = state.New(), g.log
		}
		var entry rootv1.Entry
		var out state.Applied
		if err := cmp.Or(proto.Unmarshal(g.data, &entry), s.ApplyEntry(1, s.Token().Index+1, g.data, &out)); err != nil {
			t.Fatal(err)
		}
		found("a date", entry.GetUnixMillis() > 0)
		found("commands in one entry", len(entry.GetCommands()) > 1)
		for i, c := range entry.GetCommands() {
			findIn(c, out.Results[i], found)
		}
		if err := s.Records(func(r *rootv1.Record) error {
			records[r.ProtoReflect().WhichOneof(r.ProtoReflect().Descriptor().Oneofs().ByName("kind")).Name()] = true
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	of := (&rootv1.Record{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	found("a record of every kind", len(records) == of.Len())
	for what := range missing {
		t.Errorf("no corpus has %s: add it to a script, and write the corpus of a level that has no tag yet anew", what)
	}
}

// findIn says what a command of a corpus, and what became of it, show.
func findIn(c *rootv1.Command, r state.Result, found func(what string, there bool)) {
	found("an identity", c.GetIdentity() != nil)
	found("an era", c.GetRequireEra() != 0)
	found("versions of keyspaces", c.GetRequireKeyspaces() != nil)
	found("who asked", c.GetActor() != "" && c.GetWhy() != "")
	found("through whom", c.GetVia() != "")
	found("a repetition", r.Repetition)
	denied := r.Reject.GetReason() == rootv1.Reason_REASON_PERMISSION_DENIED
	behind := strings.HasPrefix(r.Reject.GetMessage(), "event ")
	found("an actor refused at its first event", denied && !behind)
	found("an actor refused behind its first event", denied && behind)
	for _, e := range c.GetEvents() {
		m := e.ProtoReflect()
		kind := string(m.WhichOneof(m.Descriptor().Oneofs().ByName("kind")).Name())
		found(kind+" applied", r.Outcome == rootv1.Outcome_OUTCOME_APPLIED)
		found(kind+" rejected", r.Reject != nil && len(c.GetEvents()) == 1)
		found("a join that follows", e.GetMemberJoined().GetFollows() > 0 || e.GetCoordinatorJoined().GetFollows() > 0)
		found("a secret", len(e.GetTenureRetired().GetRetireSecret()) > 0)
		found("guards", e.GetKeyspaceUpdated().GetSettings().GetGuards() != nil)
		found("a probe address", e.GetMemberJoined().GetMember().GetProbeAddress() != "")
		found("a plan's entry", e.GetMoveReady().GetPlannedAt() > 0)
	}
}
