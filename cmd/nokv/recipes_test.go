package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// Programs in other languages ask the service at NAME, which is at IP, and verify its certificate; FOLDER has their own.
const (
	byNode = `
const [name, ip, port, folder] = process.argv.slice(1), { readFileSync } = require('fs');
const ask = require('https').request({
  host: name, port, path: '/', method: 'POST', headers: { 'X-Game': 'g1' }, timeout: 10000,
  ca: readFileSync(folder + '/ca.crt'), cert: readFileSync(folder + '/tls.crt'), key: readFileSync(folder + '/tls.key'),
  lookup: (host, options, found) => options.all ? found(null, [{ address: ip, family: 4 }]) : found(null, ip, 4),
}, answer => { let body = ''; answer.on('data', part => body += part); answer.on('end', () => console.log(body + answer.statusCode)); });
ask.on('error', e => { console.error(String(e)); process.exit(1); });
ask.end();`
	byPython = `
import http.client, socket, ssl, sys
name, ip, port, folder = sys.argv[1:]
tls = ssl.create_default_context(cafile=folder + "/ca.crt")
tls.verify_flags |= ssl.VERIFY_X509_STRICT
tls.load_cert_chain(folder + "/tls.crt", folder + "/tls.key")
c = http.client.HTTPSConnection(name, int(port), timeout=10, context=tls)
c._create_connection = lambda at, *more: socket.create_connection((ip, at[1]), 10)
c.request("POST", "/", headers={"X-Game": "g1"})
answer = c.getresponse()
print(answer.read().decode() + str(answer.status))`
)

// Whoever follows a recipe, with the certificates of docs/deployment.md, is served: its processes are started as it says,
// on this machine, and curl, Node and Python call the service through nokv proxy. They verify certificates, as they do
// unless they are told not to.
func TestRecipesWithCertificatesServeOtherLanguages(t *testing.T) {
	for _, name := range []string{"curl", "node", "python3"} {
		needProgram(t, name)
	}
	for _, r := range []recipe{
		{
			name: "systemd", lines: systemdRecipe, service: "127.66.0.1", at: "127.66.0.1", coordinator: "127.66.0.1:2379",
			places: []string{"10.0.0.", "127.66.0.", "/etc/nokv/", "$DIR/", "/var/lib/", "$DIR/$WHERE/", "/opt/", "$EXAMPLES/"},
		},
		{
			name: "kubernetes", lines: kubernetesRecipe, service: "proxy", at: "127.67.3.1", coordinator: "127.67.1.1:2379",
			places: []string{
				"root-1.root", "127.67.0.1", "root-2.root", "127.67.0.2", "root-3.root", "127.67.0.3", "coordinator-1.coordinator", "127.67.1.1", "coordinator-2.coordinator", "127.67.1.2",
				"counter-0.counter", "127.67.2.1", "/certs/", "$DIR/certs/", "/data", "$DIR/$WHERE", "/counter.py", "$EXAMPLES/counter.py",
			},
			pods: map[string]string{
				"pod root-1": "127.67.0.1", "pod root-2": "127.67.0.2", "pod root-3": "127.67.0.3", "pod coordinator-1": "127.67.1.1", "pod coordinator-2": "127.67.1.2",
				"pod counter-0": "127.67.2.1", "pod proxy-0": "127.67.3.1",
			},
		},
	} {
		t.Run(r.name, r.walk)
	}
}

// recipe is one that is walked, and where on this machine that is which it has elsewhere.
type recipe struct {
	name  string
	lines func(*testing.T) []*commandLine
	// places are texts of the recipe, each with what stands for it here.
	places []string
	// pods are addresses of pods, which listen at a port of their own address.
	pods map[string]string
	// service is the name in the certificate of the proxy at, and coordinator one of the coordinators.
	service, at, coordinator string
}

var (
	listensAnywhere = regexp.MustCompile(`^(-+[a-z-]+=):(\d+)$`)
	podAddress      = regexp.MustCompile(`\[10\.1\.0\.\d+\]`)
)

// word is a word of a command line as it is on this machine.
func (r *recipe) word(dir, where, word string) string {
	word = strings.NewReplacer(r.places...).Replace(word)
	if ip := r.pods[where]; ip != "" {
		word = podAddress.ReplaceAllString(listensAnywhere.ReplaceAllString(word, "${1}"+ip+":${2}"), ip)
	}
	examples, _ := filepath.Abs("../../examples/sidecar")
	return strings.NewReplacer("$DIR", dir, "$EXAMPLES", examples, "$WHERE", strings.ReplaceAll(where, " ", "-")).Replace(word)
}

func (r *recipe) walk(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(nokvPath(t), filepath.Join(dir, "nokv")); err != nil {
		t.Fatal(err)
	}
	script := "set -e\nPATH=$PWD:$PATH\n"
	for _, block := range shellBlocks.FindAllStringSubmatch(readDoc(t, "deployment.md"), -1) {
		script += r.word(dir, "", block[1])
	}
	env := nokvEnv(t)
	if made := proctest.Run(t, proctest.Options{Path: "/bin/bash", Env: env, Dir: dir, Args: []string{"-c", script}}); made.Code != 0 {
		t.Fatalf("exit status %d: %s", made.Code, made.Stderr)
	}
	// One member and one proxy are enough for an answer: where they are several, each is on a machine of its own.
	begun := map[string]int{}
	for _, l := range r.lines(t) {
		if errs := l.resolve(); len(errs) > 0 {
			t.Fatal(errs)
		}
		kind := l.args[0]
		if begun[kind]++; begun[kind] > 1 && slices.Contains([]string{"sidecar", "proxy"}, kind) {
			continue
		}
		args := make([]string, len(l.args))
		for i, word := range l.args {
			if args[i] = r.word(dir, l.where, word); strings.Contains(args[i], dir) { // systemd and Kubernetes make the folder that it writes in
				if err := os.MkdirAll(filepath.Dir(args[i][strings.Index(args[i], dir):]), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}
		at := "NOKV_COORDINATOR_ADDR=" + r.word(dir, l.where, l.env["NOKV_COORDINATOR_ADDR"])
		p := proctest.Start(t, proctest.Options{Name: l.where, Path: nokvPath(t), Args: args, Env: append(slices.Clone(env), at), Parent: kind == "sidecar"})
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s: nokv %q\n%s", l.where, args, p.Tail())
			}
		})
	}
	proctest.Eventually(t, hostedWithin, func() error {
		made := proctest.Run(t, proctest.Options{Path: nokvPath(t), Env: env, Args: []string{
			"keyspace", "create", "games", "--preset", "games", "--certs", filepath.Join(dir, "certs/operator-alice"), "--coordinator-addr", r.coordinator, "--timeout", "10s",
		}})
		if made.Code != 0 {
			return fmt.Errorf("the keyspace is not made: %s", made.Stderr)
		}
		return nil
	})
	own := filepath.Join(dir, "certs/client-web")
	curl := []string{"curl", "-sS", "--max-time", "10", "--connect-to", r.service + ":8443:" + r.at + ":8443", "--cacert", own + "/ca.crt", "-X", "POST", "-H", "X-Game: g1", "-w", "%{http_code}", "https://" + r.service + ":8443/"}
	known := slices.Concat(curl, []string{"--cert", own + "/tls.crt", "--key", own + "/tls.key"})
	proctest.Eventually(t, hostedWithin, func() error { return answers200(t, known...) }) // the first one waits for members
	for _, program := range [][]string{known, {"node", "-e", byNode, "--", r.service, r.at, "8443", own}, {"python3", "-c", byPython, r.service, r.at, "8443", own}} {
		if err := answers200(t, program...); err != nil {
			t.Error(err)
		}
	}
	if err := answers200(t, curl...); err == nil {
		t.Error("who shows no certificate is answered")
	}
	// The proxy lends nobody its authority: where grants close the keyspace, its own does not let its callers in.
	operate := func(args ...string) {
		t.Helper()
		args = append(args, "--certs", filepath.Join(dir, "certs/operator-alice"), "--coordinator-addr", r.coordinator)
		if did := proctest.Run(t, proctest.Options{Path: nokvPath(t), Env: env, Args: args}); did.Code != 0 {
			t.Fatalf("nokv %q: %s", args, did.Stderr)
		}
	}
	for _, grant := range [][]string{{"member/*", "host"}, {"proxy/*", "read,claim"}} {
		operate("access", "grant", grant[0], grant[1], "games")
	}
	denied := func() error {
		if err := answers200(t, known...); err == nil || !strings.Contains(err.Error(), "client/web may not read") || !strings.HasSuffix(err.Error(), "403") {
			return fmt.Errorf("a caller whom no grant names is told: %v", err)
		}
		return nil
	}
	proctest.Eventually(t, hostedWithin, denied)
	operate("access", "grant", "client/web", "read", "games")
	proctest.Eventually(t, hostedWithin, func() error { return answers200(t, known...) })
	operate("access", "revoke", "client/web", "games")
	proctest.Eventually(t, hostedWithin, denied)
}

// answers200 says what is wrong with what a program says of its request: an answer of the counter, and the status behind it.
func answers200(t *testing.T, program ...string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program[0], program[1:]...).CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil || !strings.HasSuffix(text, "200") || !strings.Contains(text, `"count"`) {
		return fmt.Errorf("%s: %v: %s", program[0], err, text)
	}
	return nil
}
