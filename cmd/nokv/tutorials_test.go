package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// tutorials are the pages, by name: what has to be installed for them, the words in which they name ports,
// with PORT where the number of a free one stands in the test, and what the commands of each must have said
// at the end. A page's word for several ports behind each other, from the first, has PORTS.
var tutorials = map[string]struct {
	tools []string
	ports [][2]string
	judge func(t *testing.T, said string)
}{
	"any-language.md": {[]string{"pkill", "python3", "curl"}, [][2]string{{"8080", "PORT"}, {"8081", "PORT"}, {"9001", "PORT"}, {"9002", "PORT"}, {"9003", "PORT"}}, judgeAnyLanguage},
	"database.md":     {[]string{"pkill", "sed"}, [][2]string{{"2016$n", "$((PORTS + n))"}, {"2016${owner#store-}", "$((PORTS + ${owner#store-}))"}}, judgeDatabase},
	"actors.md":       {[]string{"pkill", "sed", "curl"}, nil, judgeActors},
	"games.md":        {[]string{"pkill", "curl"}, [][2]string{{"127.0.0.1:8070", "127.0.0.1:PORT"}, {"8071", "PORT"}}, judgeGames},
	"tenantpool.md":   {[]string{"pkill", "curl", "initdb", "postgres"}, [][2]string{{"8090", "PORT"}}, judgeTenantPool},
	"streams.md":      {[]string{"pkill", "sed"}, nil, judgeStreams},
}

// ownPorts puts free ports in the place of those that a page names.
func ownPorts(t *testing.T, script string, ports [][2]string) string {
	t.Helper()
	together := ""
	for _, p := range ports {
		if !strings.Contains(script, p[0]) {
			t.Errorf("the tutorial does not name a port by %s", p[0])
		}
		if strings.Contains(p[1], "PORTS") && together == "" {
			together = fmt.Sprint(freeTogether(t, 1, 2, 3))
		}
		to := strings.ReplaceAll(p[1], "PORTS", together)
		if strings.Contains(to, "PORT") {
			to = strings.ReplaceAll(to, "PORT", fmt.Sprint(freeTogether(t)))
		}
		script = strings.ReplaceAll(script, p[0], to)
		if p[0] == "127.0.0.1:8070" { // which the example asks unless it is told another one
			script = strings.ReplaceAll(script, "./games move", "./games move --proxy "+to)
		}
	}
	return script
}

// Every tutorial, word for word: what it has for a shell is run by one.
func TestTutorials(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(repositoryFile(t, "docs/tutorials") + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	list := readDoc(t, "tutorials/README.md")
	for _, page := range pages {
		name := filepath.Base(page)
		if name == "README.md" {
			continue
		}
		if !strings.Contains(list, "("+name+")") {
			t.Errorf("docs/tutorials/README.md does not have %s", name)
		}
		if _, ok := tutorials[name]; !ok {
			t.Errorf("nothing judges what docs/tutorials/%s says: give it a row here", name)
		}
	}
	for name, c := range tutorials {
		t.Run(name, func(t *testing.T) {
			for _, tool := range c.tools {
				if _, err := exec.LookPath(tool); err != nil {
					if debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + tool); len(debian) == 0 {
						t.Skipf("SKIPPED: the tutorial needs %s: %v", tool, err)
					}
				}
			}
			t.Parallel()
			c.judge(t, followTutorial(t, name, c.ports))
		})
	}
}

var (
	shellBlocks = regexp.MustCompile("(?s)```sh\n(.*?)```")
	loops       = regexp.MustCompile(`(?m)(^|[;&|]\s*)(until|while)\s`)
	builds      = regexp.MustCompile(`(?m)^go build -o (\S+) \./(\S+)\n`)
)

// followTutorial runs a page's commands in an empty folder, and returns what they said. What they build is
// built before: nokv is this binary.
func followTutorial(t *testing.T, name string, ports [][2]string) string {
	t.Helper()
	dir := t.TempDir()
	script, waits := "set -e\n", ""
	for _, block := range shellBlocks.FindAllStringSubmatch(readDoc(t, "tutorials/"+name), -1) {
		script += block[1]
	}
	for line := range strings.Lines(script) {
		if loops.MatchString(line) {
			t.Errorf("%q waits for ever when something is wrong: use await, as the other pages do", line)
		}
		if strings.HasPrefix(line, "await() ") {
			waits = line
		}
	}
	if said, err := exec.Command("/bin/bash", "-c", "sleep() { :; }\n"+waits+"await 'test 1 = 2'").CombinedOutput(); err == nil || !strings.Contains(string(said), "test 1 = 2") {
		t.Errorf("await ends with %v and says %q for what does not come", err, said)
	}
	built := false
	for _, b := range builds.FindAllStringSubmatch(script, -1) {
		if to := filepath.Join(dir, b[1]); b[2] == "cmd/nokv" {
			built = true
			if err := os.Symlink(nokvPath(t), to); err != nil {
				t.Fatal(err)
			}
		} else if out, err := exec.Command("go", "run", "-exec", "cp", "github.com/nokv/nokv/"+b[2], to).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", b[2], err, out)
		}
	}
	if !built {
		t.Fatal("the tutorial does not build nokv")
	}
	if err := os.Symlink(repositoryFile(t, "examples"), filepath.Join(dir, "examples")); err != nil {
		t.Fatal(err)
	}
	script = ownPorts(t, builds.ReplaceAllString(script, ""), ports)
	p := proctest.Start(t, proctest.Options{Name: "tutorial", Path: "/bin/bash", Env: nokvEnv(t), Dir: dir, Parent: true, Args: []string{"-c", script}})
	if code := p.Wait(2 * proctest.Patience); code != 0 { // its own waits are of a minute each
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		for _, log := range logs { // they end with the test
			said, _ := os.ReadFile(log)
			t.Logf("the end of %s:\n%s", filepath.Base(log), said[max(0, len(said)-2000):])
		}
		t.Fatalf("exit status %d", code)
	}
	return p.Log()
}

// oneOf is the only group of a pattern in what was said, which must be there.
func oneOf(t *testing.T, said, pattern string) string {
	t.Helper()
	got := regexp.MustCompile(pattern).FindStringSubmatch(said)
	if got == nil {
		t.Fatalf("nothing said %s", pattern)
	}
	return got[len(got)-1]
}

func judgeAnyLanguage(t *testing.T, said string) {
	var members []string
	for n := 1; n <= 3; n++ {
		members = append(members, oneOf(t, said, fmt.Sprintf(`"count": %d, "member": "(g[1-3])"`, n)))
	}
	if members[0] != members[1] || members[1] == members[2] {
		t.Errorf("%v counted", members)
	}
	oneOf(t, said, `ended by signal 9`)
	oneOf(t, said, `the owner has failed`)
}

func judgeDatabase(t *testing.T, said string) {
	if n := strings.Count(said, "60 accounts have 60000"); n != 2 {
		t.Errorf("%d audits found 60000, want 2", n)
	}
	oneOf(t, said, `[1-9]\d* transfers .*[1-9]\d* snapshots, all of them of 60000`)
	oneOf(t, said, `(?m)^a (split|merge)|to lead the region`)
}

func judgeActors(t *testing.T, said string) {
	before := oneOf(t, said, `"node":"([abc])".*"began":"(?:anew|moved from .)"`)
	if now := oneOf(t, said, `"node":"([abc])".*"began":"from checkpoint 1\.\d+-\d+"`); now == before {
		t.Errorf("the actor is at node %s, who was killed", now)
	}
	if n := len(regexp.MustCompile(` 512 +live`).FindAllString(said, -1)); n != 2 {
		t.Errorf("%d nodes have 512 slots, want 2", n)
	}
	oneOf(t, said, `the owner has failed`)
	oneOf(t, said, `[1-9]\d* changes lost, 0 answers wrong|0 changes lost, 0 answers wrong`)
}

func judgeStreams(t *testing.T, said string) {
	oneOf(t, said, `partition \d+ at 1\.\d+ from offset [1-9]`)
	oneOf(t, said, `the owner has failed`)
	if strings.Contains(said, "WRONG") || strings.Count(said, "all counts are exact") != 2 {
		t.Error("counts are not exact")
	}
}

func judgeGames(t *testing.T, said string) {
	var cores []string
	for _, want := range []string{"turn 1 of ann is made: game 1, moves 3", "turn 2 of ann is made: game 1, moves 34", "turn 3 of ann is made: game 1, moves 343"} {
		cores = append(cores, oneOf(t, said, regexp.QuoteMeta(want)+`, won by nobody; core (core-[1-3]), process`))
	}
	if cores[0] != cores[1] || cores[1] == cores[2] {
		t.Errorf("moves were made at %v", cores)
	}
	oneOf(t, said, `the owner has failed`)
}

func judgeTenantPool(t *testing.T, said string) {
	rows := regexp.MustCompile(`\{"pod":"(p[1-3])","id":(\d+),"text":"(\w+)"\}`).FindAllStringSubmatch(said, -1)
	var got []string
	for _, r := range rows {
		got = append(got, r[2]+" "+r[3])
	}
	if fmt.Sprint(got) != "[1 one 1 one 1 one 2 two 1 one 3 three]" {
		t.Fatalf("it says %q", got)
	}
	if rows[0][1] != rows[1][1] || rows[0][1] == rows[2][1] || rows[3][1] != rows[0][1] || rows[4][1] == rows[0][1] || rows[5][1] == rows[0][1] {
		t.Errorf("pods are %q", rows)
	}
	oneOf(t, said, `there is no such row`)
	oneOf(t, said, `"reason":"pin_lost"`)
}
