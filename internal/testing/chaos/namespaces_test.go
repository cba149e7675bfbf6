package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/test/hermetic"
	"github.com/nokv/nokv/test/size"
)

var (
	namespaces = size.Bool("chaos.namespaces", "TestNamespaces: run members, coordinators and root peers in network namespaces of their own")
	inside     = flag.Bool("chaos.inside", false, "TestNamespaces has started this process, in a namespace of its own")
)

// TestNamespaces runs members, coordinators and root peers in network namespaces of one host, and cuts the packets
// between two of them in one direction, which no proxy can: what is sent arrives, and no acknowledgement
// comes back. Each cut loses packets once, as a firewall that drops, and resets connections once, as one that
// refuses. Meanwhile, and behind it, every region is served. It needs no right but that to make namespaces,
// and touches nothing of the machine's.
func TestNamespaces(t *testing.T) {
	if *inside {
		cutMachines(t)
		return
	}
	if !*namespaces {
		t.Skip("of the long form: ./scripts/test.sh --long, or -chaos.namespaces")
	}
	const made = "ip link set lo up && ip link add veth0 type veth peer name veth1 && ip link add lan type bridge && unshare -n true && nsenter --version"
	if out, err := exec.CommandContext(t.Context(), "unshare", "-Urn", "sh", "-c", made).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: the commands ip, unshare and nsenter are missing, or the right to make network namespaces, and so cuts of one direction are not shown: %v: %s", err, out)
	}
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "-Urn", self, "-test.v", "-test.run=^TestNamespaces$", "-chaos.inside",
		"-chaos.seed="+strconv.FormatUint(*firstSeed, 10))
	cmd.Env = append(os.Environ(), hermetic.Binary+"="+path)
	cmd.SysProcAttr = procs.Attributes()
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("in a namespace: %v", err)
	}
}

// lan is a bridge in the namespace of this process, and the machines at it.
type lan struct {
	t        testing.TB
	machines map[string]*machine
	// refusers are machines that have the address of another one as well, by its name, and no listener: what comes
	// there for that one is reset.
	refusers map[string]*machine
}

// machine is a namespace with an address of each family, and its link address.
type machine struct {
	pid, v4, v6, link string
}

// lanAddress is the link address of the bridge itself, which passes nothing on that is for a machine.
const lanAddress = "02:00:00:00:00:01"

func newLAN(t testing.TB) *lan {
	l := &lan{t: t, machines: map[string]*machine{}, refusers: map[string]*machine{}}
	l.run("sh", "-c", "ip link set lo up && ip link add lan address "+lanAddress+" type bridge && ip addr add 10.77.0.1/24 dev lan && ip addr add fd77::1/64 dev lan nodad && ip link set lan up")
	return l
}

func (l *lan) run(name string, args ...string) {
	l.t.Helper()
	if out, err := exec.CommandContext(l.t.Context(), name, args...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// in is a command line that runs another one on a machine.
func (m *machine) in(args ...string) []string {
	return append([]string{"-t", m.pid, "-n", "--"}, args...)
}

// add adds a machine: a process that sleeps keeps its namespace.
func (l *lan) add(name string) *machine {
	l.t.Helper()
	p := proctest.Start(l.t, proctest.Options{Name: "machine-" + name, Path: "unshare", Args: []string{"-n", "sleep", "infinity"}})
	proctest.Eventually(l.t, patience, func() error {
		own, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			return err
		}
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID()))
		if err == nil && its == own {
			err = errors.New("it has no namespace of its own yet")
		}
		return err
	})
	i := len(l.machines) + 11
	m := &machine{pid: strconv.Itoa(p.PID()), v4: fmt.Sprintf("10.77.0.%d", i), v6: fmt.Sprintf("fd77::%d", i), link: fmt.Sprintf("02:00:00:00:01:%02x", i)}
	l.run("sh", "-c", fmt.Sprintf("ip link add veth%d type veth peer name eth0 address %s netns %s && ip link set veth%[1]d master lan up", i, m.link, m.pid))
	l.run("nsenter", m.in("sh", "-c", fmt.Sprintf("ip link set lo up && ip addr add %s/24 dev eth0 && ip addr add %s/64 dev eth0 nodad && ip link set eth0 up", m.v4, m.v6))...)
	l.machines[name] = m
	return m
}

// cut loses what one machine sends to another over IPv4, or has it reset, and nothing else: it has a wrong link address of it.
func (l *lan) cut(from, to string, refused bool) {
	l.t.Helper()
	link := lanAddress
	if refused {
		link = l.refuser(to).link
	}
	l.run("nsenter", l.machines[from].in("ip", "neigh", "replace", l.machines[to].v4, "lladdr", link, "nud", "permanent", "dev", "eth0")...)
}

// refuser is the machine that resets what is for another one. It tells nobody that it has that one's address.
func (l *lan) refuser(of string) *machine {
	l.t.Helper()
	if l.refusers[of] == nil {
		m := l.add("refuses-" + of)
		l.run("nsenter", m.in("sh", "-c", "cd /proc/sys/net/ipv4/conf/all && echo 1 >arp_ignore && echo 2 >arp_announce && ip addr add "+l.machines[of].v4+"/32 dev lo")...)
		l.refusers[of] = m
	}
	return l.refusers[of]
}

func (l *lan) mend(from, to string) {
	l.t.Helper()
	l.run("nsenter", l.machines[from].in("ip", "neigh", "del", l.machines[to].v4, "dev", "eth0")...)
}

// lost is how many packets came to the bridge that were for an address of a machine, which cuts have lost, and how
// many were reset.
func (l *lan) lost() uint64 {
	l.t.Helper()
	n := l.counted("self", "Ip:", "InAddrErrors")
	for _, m := range l.refusers {
		n += l.counted(m.pid, "Tcp:", "OutRsts")
	}
	return n
}

// counted is a counter of the protocols of a process's machine.
func (l *lan) counted(pid, protocol, counter string) (n uint64) {
	l.t.Helper()
	raw, err := os.ReadFile("/proc/" + pid + "/net/snmp")
	if err != nil {
		l.t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if fields[0] != protocol {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == counter {
				n, err = strconv.ParseUint(fields[i], 10, 64)
			}
		}
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// cluster is root peers and coordinators, a machine each.
func (l *lan) cluster(ttl time.Duration) *cluster {
	l.t.Helper()
	path, err := proctest.NoKV()
	if err != nil {
		l.t.Fatal(err)
	}
	c := &cluster{Cluster: proctest.NewCluster(l.t, path, nil, coordinators), t: l.t, net: proctest.NewNetwork(l.t), ttl: ttl}
	c.Builds = map[int]string{}
	c.RootPeerFlags = append(c.RootPeerFlags, "-insecure")
	c.CoordinatorFlags = append(c.CoordinatorFlags, "-insecure", "-tenure-ttl", ttl.String())
	for m := range members {
		at := l.add(place(m))
		c.Builds[m], c.MetricsAddrs[m] = "nsenter", net.JoinHostPort(at.v4, "7000")
		if m < roots {
			c.RootAddrs[m], c.TransportAddrs[m] = net.JoinHostPort(at.v4, "7001"), net.JoinHostPort(at.v4, "7002")
			c.clients = append(c.clients, rootv1.NewRootClient(dial(l.t, c.RootAddrs[m])))
		} else {
			c.CoordinatorAddrs[m-roots] = net.JoinHostPort(at.v4, "7001")
		}
	}
	c.advertised = c.CoordinatorAddrs
	c.CommandLine = func(m int) []string { return l.machines[place(m)].in(append([]string{path}, c.Args(m)...)...) }
	return c
}

// on has a member run on a machine of its name, where it is reached over IPv6 if its number is even: coordinators are
// over IPv4 always.
func (l *lan) on(i int, o *proctest.Options) {
	l.t.Helper()
	m := l.machines[hostName(i)]
	if m == nil {
		m = l.add(hostName(i))
	}
	host := m.v4
	if i%2 == 1 {
		host = m.v6
	}
	o.Path, o.Args = "nsenter", m.in(append(append([]string{o.Path}, o.Args...), "--host", host)...)
}

// lanFault is what is cut, by the names of machines.
type lanFault struct {
	name string
	cuts []way
	// member is whom it is about; lonely: no coordinator can confirm it by any road, and its regions go to
	// others. Otherwise it keeps them.
	member int
	lonely bool
	// refused: what is sent there is reset, not lost.
	refused bool
}

// lanFaults are in this order because whoever loses its regions gets some when the next one does, and because coordinators that
// were cut from each other need some seconds until a stream passes again.
func lanFaults(holder string) []lanFault {
	other := otherCoordinator(holder)
	all := []lanFault{
		{name: "what a member sends to the holder", cuts: []way{{hostName(0), holder}}},
		{name: "what the holder sends to a member", cuts: []way{{holder, hostName(0)}}},
		{name: "what the holder sends to a member, which it probes over the other family", cuts: []way{{holder, hostName(1)}}, member: 1},
		{name: "what a member sends to the holder, and the holder to the other coordinator", cuts: []way{{hostName(0), holder}, {holder, other}}, lonely: true},
		{name: "what the holder sends to a member and to the other coordinator", cuts: []way{{holder, hostName(2)}, {holder, other}}, member: 2, lonely: true},
		{name: "a member and all coordinators, in the family that it does not listen in", cuts: append(both(hostName(3), holder), both(hostName(3), other)...), member: 3, lonely: true},
	}
	for _, f := range all {
		f.name, f.refused = "with resets, "+f.name, true
		all = append(all, f)
	}
	return all
}

func otherCoordinator(holder string) string {
	if holder == coordinatorPlace(0) {
		return coordinatorPlace(1)
	}
	return coordinatorPlace(0)
}

// lanDead is how long a member is silent that has failed: long enough for it to find that it has to take another
// road, which takes two seconds.
const lanDead = 3 * time.Second

// owns is how many regions a member has.
func (h *hosting) owns(i int) (uint64, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
	defer cancel()
	m, err := h.client.GetMember(ctx, rooted.MemberID(hostName(i)), client.Strong())
	return m.GetOwnedRegions(), err
}

// mustOwn waits until a member has so many regions, or some if n is negative, and says how many.
func (h *hosting) mustOwn(i, n int, when string) (has uint64) {
	h.t.Helper()
	proctest.Eventually(h.t, patience, func() (err error) {
		if has, err = h.owns(i); err == nil && (n < 0 && has == 0 || n >= 0 && has != uint64(n)) {
			err = fmt.Errorf("%s: %s has %d regions, want %d (-1: some)", when, hostName(i), has, n)
		}
		return err
	})
	return has
}

func cutMachines(t *testing.T) {
	l := newLAN(t)
	h := startHostsOn(t, l.cluster(defaultTTL), lanDead, l.on)
	ctx, stop := context.WithCancel(t.Context())
	var asking, following sync.WaitGroup
	defer following.Wait()
	defer asking.Wait()
	defer stop()
	for i := range roots {
		following.Go(func() { h.c.follow(ctx, i, h.e) })
	}
	for i := range 4 {
		asking.Go(func() { h.ask(ctx, i%2 == 0) })
	}
	h.all("before any cut")
	cuts := len(lanFaults(""))
	for n := range cuts {
		f := lanFaults(place(h.c.find("holder")))[n]
		h.cut(l, f)
		h.all("after this was cut: " + f.name)
		if t.Failed() {
			break // what comes next counts on it
		}
	}
	stop()
	asking.Wait()
	following.Wait()
	h.judgeMembers()
	testreport.Linef(t, "chaos in network namespaces: %d machines, %d cuts of one direction or one family, %d packets lost or reset, %d answers, %d requests refused or unanswered, %d log entries replayed",
		len(l.machines)-len(l.refusers), cuts, l.lost(), len(h.answers), h.refused, len(h.e.log))
}

// cut cuts, for longer than it takes to fail a member that others hear, and mends it.
func (h *hosting) cut(l *lan, f lanFault) {
	h.t.Helper()
	has, lost := h.mustOwn(f.member, -1, "before this is cut: "+f.name), l.lost()
	for _, w := range f.cuts {
		l.cut(w[0], w[1], f.refused)
	}
	time.Sleep(2*lanDead + 2*time.Second + time.Duration(h.rng.Int64N(int64(time.Second)))) // the fault
	if l.lost() == lost {
		h.t.Errorf("cut: %s: nothing was lost", f.name)
	}
	if f.lonely {
		h.mustOwn(f.member, 0, "while this is cut: "+f.name)
		time.Sleep(2 * hostedTTL) // the fault goes on: others serve what it had, and it is asked for that too
	} else if now, err := h.owns(f.member); err != nil || now != has {
		h.t.Errorf("cut: %s: %s had %d regions and has %d (%v): it is heard by way of the other coordinator", f.name, hostName(f.member), has, now, err)
	}
	h.all("while this is cut: " + f.name)
	for _, w := range f.cuts {
		l.mend(w[0], w[1])
	}
}
