package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls"
	"gopkg.in/yaml.v3"
)

// Kubernetes objects, as far as the recipes use them: what is not here is refused.
type kubeObject struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   kubeMeta `yaml:"metadata"`
	Spec       struct {
		ClusterIP                string     `yaml:"clusterIP"`
		PublishNotReadyAddresses bool       `yaml:"publishNotReadyAddresses"`
		Selector                 yaml.Node  `yaml:"selector"`
		Ports                    []kubePort `yaml:"ports"`
		MaxUnavailable           int        `yaml:"maxUnavailable"`
		ServiceName              string     `yaml:"serviceName"`
		Replicas                 int        `yaml:"replicas"`
		Ordinals                 struct {
			Start int `yaml:"start"`
		} `yaml:"ordinals"`
		PodManagementPolicy string `yaml:"podManagementPolicy"`
		Template            struct {
			Metadata kubeMeta `yaml:"metadata"`
			Spec     struct {
				TerminationGracePeriodSeconds int             `yaml:"terminationGracePeriodSeconds"`
				SecurityContext               yaml.Node       `yaml:"securityContext"`
				Affinity                      yaml.Node       `yaml:"affinity"`
				Containers                    []kubeContainer `yaml:"containers"`
				Volumes                       []struct {
					Name   string `yaml:"name"`
					Secret struct {
						SecretName  string `yaml:"secretName"`
						DefaultMode int    `yaml:"defaultMode"`
						Items       []struct{ Key, Path string }
					} `yaml:"secret"`
					Claim yaml.Node `yaml:"persistentVolumeClaim"`
				} `yaml:"volumes"`
			} `yaml:"spec"`
		} `yaml:"template"`
		VolumeClaimTemplates []struct {
			Metadata kubeMeta  `yaml:"metadata"`
			Spec     yaml.Node `yaml:"spec"`
		} `yaml:"volumeClaimTemplates"`
	} `yaml:"spec"`
}

type kubeMeta struct {
	Name   string            `yaml:"name"`
	Labels map[string]string `yaml:"labels"`
}

type kubePort struct {
	Name          string `yaml:"name"`
	Port          int    `yaml:"port"`
	ContainerPort int    `yaml:"containerPort"`
}

type kubeContainer struct {
	Name  string `yaml:"name"`
	Image string `yaml:"image"`
	Env   []struct {
		Name      string `yaml:"name"`
		ValueFrom struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	} `yaml:"env"`
	Args      []string `yaml:"args"`
	Resources struct {
		Requests, Limits map[string]string
	} `yaml:"resources"`
	Ports          []kubePort `yaml:"ports"`
	ReadinessProbe struct {
		HTTPGet struct {
			Path   string `yaml:"path"`
			Port   int    `yaml:"port"`
			Scheme string `yaml:"scheme"`
		} `yaml:"httpGet"`
		TimeoutSeconds int `yaml:"timeoutSeconds"`
	} `yaml:"readinessProbe"`
	VolumeMounts []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

// selects are the labels that something selects, with or without matchLabels.
func selects(t *testing.T, n yaml.Node) map[string]string {
	t.Helper()
	var match struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	if err := n.Decode(&match); err == nil && match.MatchLabels != nil {
		return match.MatchLabels
	}
	var plain map[string]string
	if err := n.Decode(&plain); err != nil {
		t.Fatal(err)
	}
	return plain
}

// kubernetesRecipe is a command line for each pod.
func kubernetesRecipe(t *testing.T) (lines []*commandLine) {
	t.Helper()
	files, err := filepath.Glob(repositoryFile(t, "deploy/kubernetes") + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		objects := map[string]kubeObject{}
		d := yaml.NewDecoder(bytes.NewReader(readWhole(t, file)))
		d.KnownFields(true)
		for {
			var o kubeObject
			if err := d.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			objects[o.APIVersion+" "+o.Kind] = o
		}
		set, service, budget := objects["apps/v1 StatefulSet"], objects["v1 Service"], objects["policy/v1 PodDisruptionBudget"]
		if len(objects) != 3 || set.Kind == "" || service.Kind == "" || budget.Kind == "" {
			t.Fatalf("%s has %v, want a Service, a StatefulSet and a PodDisruptionBudget", file, slices.Sorted(maps.Keys(objects)))
		}
		labels := set.Spec.Template.Metadata.Labels
		for what, n := range map[string]yaml.Node{"Service": service.Spec.Selector, "StatefulSet": set.Spec.Selector, "PodDisruptionBudget": budget.Spec.Selector} {
			if len(labels) == 0 || !maps.Equal(selects(t, n), labels) {
				t.Errorf("%s: the %s selects %v, pods have %v", file, what, selects(t, n), labels)
			}
		}
		if set.Spec.ServiceName != service.Metadata.Name || service.Spec.ClusterIP != "None" || budget.Spec.MaxUnavailable != 1 || set.Spec.PodManagementPolicy != "Parallel" {
			t.Errorf("%s: pods have no names of their own, or more than one may go at a time", file)
		}
		// Without the root nobody is ready, and all are asked on.
		if !service.Spec.PublishNotReadyAddresses {
			t.Errorf("%s: the name of a pod that is not ready is nowhere", file)
		}
		for n := range set.Spec.Replicas {
			lines = append(lines, podLines(t, set, service, n+set.Spec.Ordinals.Start)...)
		}
	}
	return lines
}

// podLines are the command lines of a pod of a StatefulSet.
func podLines(t *testing.T, set, service kubeObject, ordinal int) (lines []*commandLine) {
	t.Helper()
	pod := set.Spec.Template.Spec
	name := fmt.Sprintf("%s-%d", set.Metadata.Name, ordinal)
	fields := map[string]string{"metadata.name": name, "status.podIP": fmt.Sprint("10.1.0.", ordinal+1), "metadata.labels['apps.kubernetes.io/pod-index']": fmt.Sprint(ordinal)}
	for _, c := range pod.Containers {
		l := &commandLine{where: "pod " + name, args: slices.Clone(c.Args), env: map[string]string{}, probed: map[string]string{}, stopped: time.Duration(pod.TerminationGracePeriodSeconds) * time.Second}
		for _, e := range c.Env {
			value, ok := fields[e.ValueFrom.FieldRef.FieldPath]
			if !ok {
				t.Errorf("%s: there is no field %q", name, e.ValueFrom.FieldRef.FieldPath)
			}
			l.env[e.Name] = value
		}
		if c.Resources.Requests["cpu"] == "" || c.Resources.Requests["memory"] == "" || c.Resources.Limits["memory"] == "" {
			t.Errorf("%s: resources are %v", name, c.Resources)
		}
		get := c.ReadinessProbe.HTTPGet
		if get.Scheme != "HTTPS" { // all of them have certificates
			t.Errorf("%s: a probe asks %s in plain text", name, get.Path)
		}
		l.probed[fmt.Sprint(get.Port)] = get.Path
		for _, p := range slices.Concat(c.Ports, service.Spec.Ports) {
			l.published = append(l.published, fmt.Sprint(p.Port+p.ContainerPort))
		}
		// The certificates of this pod are where it looks for them, and its folders are volumes.
		there := map[string]bool{}
		for _, v := range pod.Volumes {
			if mode := v.Secret.DefaultMode; v.Secret.SecretName != "" && (mode == 0 || mode&0o006 != 0) {
				t.Errorf("%s: every process reads the keys of volume %s, of mode %04o: they are refused", name, v.Name, mode)
			}
			for _, item := range v.Secret.Items {
				there["/"+v.Name+"/"+item.Path] = true
			}
		}
		mounted := map[string]bool{}
		for _, m := range c.VolumeMounts {
			mounted[m.MountPath] = true
		}
		lines = append(lines, l)
		if errs := l.resolve(); len(errs) > 0 {
			continue // they are found again
		}
		for _, word := range l.args {
			folder, ok := strings.CutPrefix(strings.TrimLeft(word, "-"), "certs=")
			for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
				if ok && (!there[folder+"/"+file] || !mounted[filepath.Dir(folder)]) {
					t.Errorf("%s: nothing puts %s/%s there", name, folder, file)
				}
			}
			if folder, ok := strings.CutPrefix(strings.TrimLeft(word, "-"), "workdir="); ok && !mounted[filepath.Dir(folder)] {
				t.Errorf("%s: %s is on no volume", name, folder)
			}
		}
	}
	return lines
}

func readWhole(t *testing.T, file string) []byte {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// composeRecipe is a command line for each service.
func composeRecipe(t *testing.T) (lines []*commandLine) {
	t.Helper()
	type service struct {
		Image, Hostname, Command, Restart string
		StopGrace                         string `yaml:"stop_grace_period"`
		Build                             struct {
			Context, Dockerfile string
			More                map[string]string `yaml:"additional_contexts"`
		}
		Volumes, Ports []string
	}
	var file struct {
		Name     string
		Services map[string]service
		Volumes  map[string]struct{}
	}
	d := yaml.NewDecoder(bytes.NewReader(readWhole(t, repositoryFile(t, "deploy/compose.yaml"))))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	for name, s := range file.Services {
		// An image that another one is made from is made before it.
		if from, member := file.Services[strings.TrimPrefix(s.Build.More["nokv"], "service:")], s.Build.Dockerfile == "deploy/Dockerfile.member"; member && from.Build.Dockerfile != "deploy/Dockerfile" {
			t.Errorf("%s is built of an image that nothing here builds", name)
		}
		l := &commandLine{where: "service " + name, args: strings.Fields(s.Command)}
		if s.StopGrace != "" {
			var err error
			if l.stopped, err = time.ParseDuration(s.StopGrace); err != nil {
				t.Error(err)
			}
		}
		for _, p := range s.Ports {
			l.published = append(l.published, p[strings.LastIndex(p, ":")+1:])
		}
		for _, v := range s.Volumes {
			if from, _, _ := strings.Cut(v, ":"); !has(file.Volumes, from) {
				t.Errorf("%s: there is no volume %s", name, from)
			}
		}
		// Its own addresses are of its own name, which is written out.
		for _, word := range l.args {
			if host, port, err := net.SplitHostPort(word); err == nil && host != "" && !strings.Contains(word, ",") && !strings.Contains(port, "=") && host != name {
				if !strings.Contains(word, "=") {
					t.Errorf("%s has the address %s", name, word)
				}
			}
		}
		if s.Hostname != name && l.args[0] != "keyspace" {
			t.Errorf("%s has the host name %q", name, s.Hostname)
		}
		// What is refused for good is not asked for ever: a keyspace whose settings were changed since.
		if _, most, bounded := strings.Cut(s.Restart, "on-failure:"); bounded != (l.args[0] == "keyspace") || bounded && most == "" || s.Restart == "" {
			t.Errorf("%s: restart is %q", name, s.Restart)
		}
		lines = append(lines, l)
	}
	return lines
}

func has[V any](m map[string]V, key string) bool { _, ok := m[key]; return ok }

// systemdRecipe is a command line for each unit of three machines.
func systemdRecipe(t *testing.T) (lines []*commandLine) {
	t.Helper()
	units, err := filepath.Glob(repositoryFile(t, "deploy/systemd") + "/*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("no units: %v", err)
	}
	first := map[string]string{}
	for line := range strings.Lines(string(readWhole(t, repositoryFile(t, "deploy/systemd/nokv.env")))) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			first[name] = value
		}
	}
	known := map[string][]string{
		"Unit":    {"Description", "Wants", "After", "StartLimitIntervalSec"},
		"Service": {"User", "EnvironmentFile", "StateDirectory", "ExecStart", "Restart", "RestartSec", "TimeoutStopSec", "LimitNOFILE", "KillMode"},
		"Install": {"WantedBy"},
	}
	for _, unit := range units {
		said, section := map[string]string{}, ""
		for line := range strings.Lines(string(readWhole(t, unit))) {
			line = strings.TrimSpace(line)
			name, value, ok := strings.Cut(line, "=")
			switch {
			case line == "" || strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, "["):
				section = strings.Trim(line, "[]")
			case !ok || !slices.Contains(known[section], name):
				t.Errorf("%s: %q in [%s]", unit, line, section)
			default:
				said[name] = value
			}
		}
		args, ok := strings.CutPrefix(said["ExecStart"], "/usr/local/bin/nokv ")
		stop, err := time.ParseDuration(said["TimeoutStopSec"] + "s")
		if !ok || err != nil || said["EnvironmentFile"] != "/etc/nokv/nokv.env" || said["Restart"] == "" || said["StartLimitIntervalSec"] != "0" || said["WantedBy"] == "" {
			t.Errorf("%s says %v", unit, said)
		}
		for n := range 3 {
			env := maps.Clone(first)
			env["NUMBER"], env["ADDRESS"] = fmt.Sprint(n+1), fmt.Sprintf("10.0.0.%d", n+1)
			lines = append(lines, &commandLine{where: fmt.Sprintf("%s of machine %d", filepath.Base(unit), n+1), args: strings.Fields(args), env: env, stopped: stop})
		}
	}
	return lines
}

// The recipes of deploy/ start what the program is: every command line of nokv in them is one, their peers are
// the same three, their probes ask pages that there are at ports that are open.
func TestP66P70RecipesAreOfThisProgram(t *testing.T) {
	for name, recipe := range map[string]func(*testing.T) []*commandLine{"kubernetes": kubernetesRecipe, "compose": composeRecipe, "systemd": systemdRecipe} {
		t.Run(name, func(t *testing.T) {
			lines := recipe(t)
			kinds := map[string]int{}
			for _, l := range lines {
				for _, err := range l.judge() {
					t.Errorf("%s: %v", l.where, err)
				}
				if l.set != nil {
					kinds[l.set.Name()]++
				}
			}
			if kinds["nokv meta-root"] != 3 || kinds["nokv coordinator"] < 2 || kinds["nokv sidecar"] < 3 {
				t.Errorf("it starts %v", kinds)
			}
			for _, err := range slices.Concat(agree(lines), coordinatorsKnown(lines)) {
				t.Error(err)
			}
		})
	}
}

// What the judge is for: each of these is found.
func TestP70WrongRecipesAreFound(t *testing.T) {
	root := "meta-root -node-id 1 -workdir /d -insecure -addr a:2380 -transport-addr a:3380 -metrics-addr :9380 -peer 1=a:3380 -peer 2=b:3380 -peer 3=c:3380"
	for _, c := range []struct {
		line, want string
		probed     map[string]string
		published  []string
	}{
		{"meta-rot", "no command", nil, nil},
		{root + " -colour red", "no flag", nil, nil},
		{strings.Replace(root, "-workdir /d ", "", 1), "--workdir is missing", nil, nil},
		{strings.Replace(root, "-insecure ", "", 1), "neither certificates", nil, nil},
		{strings.Replace(root, "a:2380", ":2380", 1), "-advertise-addr", nil, nil},
		{strings.Replace(root, ":9380", ":2380", 1), "have one port", nil, nil},
		{strings.Replace(root, "/d", "$(NOBODY)", 1), "nothing sets $(NOBODY)", nil, nil},
		{root, "does not open port 80", nil, []string{"80"}},
		{root, "/readyz is not for probes", map[string]string{"9380": "/readyz"}, nil},
		{root, "tells no health", map[string]string{"2380": "/healthz"}, nil},
		{"sidecar --id a --address a:1 -- true", "is killed after 0s", nil, nil},
		{"sidecar --id a --address a:1 --certs c -- counter 1 0.0.0.0", "in plain text at 0.0.0.0", nil, nil},
		{"keyspace create games --present games", "no flag", nil, nil},
	} {
		l := &commandLine{args: strings.Fields(c.line), probed: c.probed, published: c.published}
		if err := errors.Join(l.judge()...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("nokv %s: %v, want %s", c.line, err, c.want)
		}
	}
	var lines []*commandLine
	for _, line := range []string{root, strings.Replace(root, "-node-id 1", "-node-id 2", 1), strings.Replace(root, "c:3380", "d:3380", 1), "coordinator -coordinator-id c1 -insecure -addr c1:2379 -root-peer 1=a:9"} {
		l := &commandLine{args: strings.Fields(line)}
		if errs := l.judge(); len(errs) > 0 {
			t.Fatal(errs)
		}
		lines = append(lines, l)
	}
	said := errors.Join(agree(lines)...).Error()
	for _, want := range []string{"has other peers", "is b to the others, and a to coordinators", "no process is root peer 3", "asks the root at map[1:a:9]"} {
		if !strings.Contains(said, want) {
			t.Errorf("not found: %s, in\n%s", want, said)
		}
	}
}

// A task of ECS composes its address of what the metadata endpoint says, and registers it; a name of its own
// goes before that of the task.
func TestP63P66P70ATaskComposesItsOwnAddress(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	var task struct {
		NetworkMode          string
		ContainerDefinitions []struct {
			EntryPoint, Command []string
			Environment         []struct{ Name, Value string }
			PortMappings        []struct{ ContainerPort int }
			HealthCheck         struct{ Command []string }
			StopTimeout         int
		}
	}
	if err := json.Unmarshal(readWhole(t, repositoryFile(t, "deploy/ecs/member.json")), &task); err != nil || task.NetworkMode != "awsvpc" || len(task.ContainerDefinitions) != 1 {
		t.Fatalf("%+v, %v", task, err)
	}
	c := task.ContainerDefinitions[0]
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v4/0001/task" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"Cluster": "games", "TaskARN": "arn:aws:ecs:eu-west-1:111122223333:task/games/158d1c8083dd49d6b527399fd6414f5c",
			"Containers": [{"Name": "counter", "Networks": [{"NetworkMode": "awsvpc", "IPv4Addresses": ["10.0.2.106"]}]}]}`)
	}))
	defer metadata.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nokv"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"": "158d1c8083dd49d6b527399fd6414f5c", "g1": "g1"} {
		env := []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "ECS_CONTAINER_METADATA_URI_V4=" + metadata.URL + "/v4/0001", "MEMBER_ID=" + id}
		l := &commandLine{env: map[string]string{}, stopped: time.Duration(c.StopTimeout) * time.Second, probed: map[string]string{}}
		for _, e := range c.Environment {
			env = append(env, e.Name+"="+e.Value)
			l.env[e.Name] = e.Value
		}
		r := proctest.Run(t, proctest.Options{Path: repositoryFile(t, "deploy/ecs"+c.EntryPoint[0]), Args: c.Command, Env: env})
		l.args = strings.Split(strings.TrimSpace(r.Stdout), "\n")
		for _, p := range c.PortMappings {
			l.published = append(l.published, fmt.Sprint(p.ContainerPort))
			l.probed[fmt.Sprint(p.ContainerPort)] = "/nokv/ready"
		}
		for _, err := range l.judge() {
			t.Error(err)
		}
		if l.set == nil || l.value("id") != want || l.value("address") != "10.0.2.106:9001" || !slices.Equal(l.set.Args(), c.Command) {
			t.Errorf("it runs nokv %q %s", l.args, r.Stderr)
		}
		if !strings.Contains(strings.Join(c.HealthCheck.Command, " "), "127.0.0.1:9001/nokv/ready") {
			t.Errorf("it is asked for its health by %q", c.HealthCheck.Command)
		}
	}
}

// The certificates that docs/deployment.md has made are those that the pods look for, each of its own name.
func TestP70CertificatesOfTheRecipes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink(nokvPath(t), filepath.Join(dir, "nokv")); err != nil {
		t.Fatal(err)
	}
	script := "set -e\nPATH=$PWD:$PATH\n"
	for _, block := range shellBlocks.FindAllStringSubmatch(readDoc(t, "deployment.md"), -1) {
		script += block[1]
	}
	if r := proctest.Run(t, proctest.Options{Path: "/bin/bash", Env: nokvEnv(t), Dir: dir, Args: []string{"-c", script}}); r.Code != 0 {
		t.Fatalf("exit status %d: %s", r.Code, r.Stderr)
	}
	names := map[string]string{"root-1": "root/1", "root-3": "root/3", "coordinator-2": "coordinator/coordinator-2", "counter-0": "member/counter-0", "proxy-1": "proxy/proxy-1"}
	for _, l := range kubernetesRecipe(t) {
		if errs := l.judge(); len(errs) > 0 {
			t.Fatal(errs)
		}
		name := filepath.Base(l.value("certs"))
		src, err := mtls.Open(filepath.Join(dir, "certs", name), mtls.Options{})
		if err != nil {
			t.Errorf("%s: %v", l.where, err)
			continue
		}
		if want := names[name]; want != "" && src.Principal().String() != want {
			t.Errorf("%s is %s, want %s", l.where, src.Principal(), want)
		}
	}
}
