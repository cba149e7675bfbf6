package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// TestC46C48C49R24DocumentedRequests: the lines that docs/callers.md shows do what it says:
// with curl where that is installed, otherwise asked for in the same words.
func TestC46C48C49R24DocumentedRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	var health struct {
		Cluster string `json:"cluster"`
		Holder  bool   `json:"holder"`
	}
	base := "http://" + c.MetricsAddrs[len(c.MetricsAddrs)-1]
	proctest.Eventually(t, recoverWithin, func() error {
		body := ask(t, []string{"-sS", base + "/health"})
		if err := json.Unmarshal([]byte(body), &health); err != nil || !health.Holder {
			return fmt.Errorf("/health: %s %v", body, err)
		}
		return nil
	})
	// What the answer of a line that asks for this has.
	wants := []struct{ path, part string }{
		{"/health", `"status":"ok"`},
		{"/v1/keyspaces", `"name":"shop"`},
		{"/v1/keyspaces/shop?read", `SERVING_CLASS_LINEARIZABLE`},
		{"/keys/", `"reason":"not_found"`}, // it has no regions
		{"/regions?", `"regions":[]`},
		{"/lookup", `"region_of_key":[0]`},
		{"/watch", "event: snapshot"},
		{"/v1/timestamps", `"count":"10"`},
		{"/instances", `"members":[]`},
		{"/metrics", `"rounds":[`},
		{"/rebalance", `"operations":0`},
		{"/failover/m1", `"reason":"member_not_found"`},
	}
	lines := documentedRequests(t)
	if len(lines) != len(wants) {
		t.Fatalf("docs/callers.md has %d lines with curl, this test knows %d", len(lines), len(wants))
	}
	for i, line := range lines {
		line = strings.NewReplacer("$REST", base, "$CLUSTER", health.Cluster).Replace(line)
		if !strings.Contains(line, wants[i].path) {
			t.Errorf("%s: want a request of %s", line, wants[i].path)
		}
		tries := proctest.Patience
		if !strings.Contains(line, "--max-time") {
			tries = 0 // once: only what ends by itself may be late on a busy machine
		}
		proctest.Eventually(t, tries, func() error {
			body := ask(t, shellWords(t, line)[1:])
			if plain := strings.ReplaceAll(body, ", ", ","); !strings.Contains(plain, wants[i].part) {
				return fmt.Errorf("%s\n%.800s\nwant %s", line, body, wants[i].part)
			}
			return nil
		})
	}
	c.StopAll()
}

// documentedRequests are the lines with curl in the section about REST.
func documentedRequests(t *testing.T) (lines []string) {
	t.Helper()
	_, text, _ := strings.Cut(readDoc(t, "callers.md"), "## In any language: REST")
	text, _, _ = strings.Cut(text, "\n## ")
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "curl ") {
			lines = append(lines, line)
		}
	}
	return lines
}

var shellWord = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)

// shellWords takes a line apart as a shell does, as far as the documents go.
func shellWords(t *testing.T, line string) (words []string) {
	t.Helper()
	for _, w := range shellWord.FindAllString(line, -1) {
		words = append(words, strings.Trim(w, `'"`))
	}
	return words
}

// ask is what curl with these words prints.
func ask(t *testing.T, words []string) string {
	t.Helper()
	if path, err := exec.LookPath("curl"); err == nil {
		out, err := exec.CommandContext(t.Context(), path, words...).Output()
		if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() != 28 { // the time of a watch
			t.Logf("curl %q: %v %s", words, err, exit.Stderr)
		}
		return string(out)
	}
	verb, url, body, header, within := http.MethodGet, "", "", http.Header{}, time.Minute
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header.Set(name, value)
		case "-d":
			i++
			verb, body = http.MethodPost, words[i]
		case "--max-time":
			i, within = i+1, 2*time.Second
		case "-sS", "-N":
		default:
			url = words[i]
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), verb, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	resp, err := (&http.Client{Timeout: within}).Do(r)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	out, _ := io.ReadAll(bufio.NewReader(resp.Body)) // until the time is over
	return string(out)
}
