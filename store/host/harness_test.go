package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"github.com/nokv/nokv/store/local"
	"google.golang.org/protobuf/proto"
)

// world is a root, the state machine itself, and stores that reach each other.
type world struct {
	t  *testing.T
	mu sync.Mutex
	// Guarded by mu.
	st    *state.State
	index uint64
	// away: what is asked for does not reach the root; mute: its answers do not come back.
	away, mute bool
	hosts      map[rooted.MemberID]*node
	// onCopy is called with the entries of a copy before they arrive, onSend with each of its
	// messages.
	onCopy, onSend func()
}

// node is one store, which can be started again.
type node struct {
	w     *world
	id    uint64
	self  rooted.MemberID
	dir   string
	disk  *local.Disk
	host  *host.Host
	ended func()
}

func newWorld(t *testing.T, stores int) *world {
	t.Helper()
	w := &world{t: t, st: state.New(), hosts: map[rooted.MemberID]*node{}}
	w.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "a:1"}},
	}}}})
	for id := 1; id <= stores; id++ {
		n := &node{w: w, id: uint64(id), self: rooted.MemberID(fmt.Sprintf("store-%d", id)), dir: t.TempDir()}
		w.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: string(n.self), Address: string(n.self) + ":1", StartNonce: 1}}}})
		w.hosts[n.self] = n
		n.start()
		t.Cleanup(n.stop)
	}
	return w
}

// applied has commands judged by the root.
func (w *world) applied(cmd *rootv1.Command) *rootv1.CommandResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{cmd}})
	if err != nil {
		w.t.Error(err)
		return nil
	}
	w.index++
	var out state.Applied
	if err := w.st.ApplyEntry(1, w.index, data, &out); err != nil {
		w.t.Error(err)
		return nil
	}
	return out.Results[0].Proto()
}

func (w *world) apply(events ...*rootv1.Event) *rootv1.EventResult {
	w.t.Helper()
	result := w.applied(&rootv1.Command{Events: events})
	if result.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		w.t.Fatalf("%v: %v", events, result)
	}
	return result.GetEvents()[len(events)-1]
}

// asker is the root for one store, which is known by its certificate.
type asker struct {
	w    *world
	self rooted.MemberID
}

// Publish implements host.Root.
func (a asker) Publish(ctx context.Context, cmd *rootv1.Command) (*rootv1.CommandResult, error) {
	cmd.Actor = "member/" + string(a.self)
	return a.w.publish(ctx, cmd)
}

func (w *world) publish(_ context.Context, cmd *rootv1.Command) (*rootv1.CommandResult, error) {
	w.mu.Lock()
	away, mute := w.away, w.mute
	w.mu.Unlock()
	if away {
		return nil, errors.New("the root is away")
	}
	result := w.applied(cmd)
	switch {
	case mute:
		return nil, errors.New("the answer is lost")
	case result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED:
		return result, errors.New("refused")
	}
	return result, nil
}

func (w *world) trouble(away, mute bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away, w.mute = away, mute
}

// Address implements host.Peers.
func (w *world) Address(id rooted.MemberID) string { return string(id) + ":1" }

// Copy implements host.Peers.
func (w *world) Copy(_ context.Context, to rooted.MemberID, header *storev1.ImportHeader, send func(each func(*storev1.Entry) error) error) ([]byte, error) {
	var parts []*storev1.ImportRequest
	err := host.Parts(send, func(part *storev1.ImportRequest) error {
		if w.onSend != nil {
			w.onSend()
		}
		parts = append(parts, part)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if w.onCopy != nil {
		w.onCopy()
	}
	n := w.hosts[to]
	return n.host.WorkdirID(), n.host.Import("", header, func() (*storev1.ImportRequest, error) {
		if len(parts) == 0 {
			return nil, errors.New("the sender has ended")
		}
		part := parts[0]
		parts = parts[1:]
		return part, nil
	})
}

// start opens the store's workdir; Run settles what it finds.
func (n *node) start() {
	n.w.t.Helper()
	var err error
	if n.disk, err = local.Open(n.dir, n.id); err != nil {
		n.w.t.Fatal(err)
	}
	if n.host, err = host.Open(host.Config{Self: n.self, Disk: n.disk, Root: asker{n.w, n.self}, Peers: n.w}); err != nil {
		n.w.t.Fatal(err)
	}
	n.host.Serve()
	n.ended = func() {}
}

// run settles in the background until stop.
func (n *node) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	h := n.host
	go func() { done <- h.Run(ctx) }()
	n.ended = func() {
		cancel()
		if err := <-done; err != nil {
			n.w.t.Error(err)
		}
	}
}

func (n *node) stop() {
	if n.disk == nil {
		return
	}
	n.ended()
	if err := n.disk.Close(); err != nil {
		n.w.t.Error(err)
	}
	n.disk = nil
}

// read and write are of the workdir's file, while nobody has it open.
func (n *node) read() []byte {
	n.w.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.dir, local.File))
	if err != nil {
		n.w.t.Fatal(err)
	}
	return data
}

func (n *node) write(data []byte) {
	n.w.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, local.File), data, 0o600); err != nil {
		n.w.t.Fatal(err)
	}
}

// spoil changes a value on disk.
func (n *node) spoil(value string) {
	n.w.t.Helper()
	data := n.read()
	if !bytes.Contains(data, []byte(value)) {
		n.w.t.Fatalf("%q is not on disk", value)
	}
	n.write(bytes.ReplaceAll(data, []byte(value), []byte(strings.Repeat("?", len(value)))))
}

// restart is a crash: the workdir is all that is left.
func (n *node) restart() {
	n.w.t.Helper()
	n.stop()
	n.start()
}

// hear tells the store what the root says now, as a snapshot of a watch.
func (n *node) hear() {
	n.w.t.Helper()
	n.w.mu.Lock()
	var all []host.Change
	n.w.st.RegionsFrom(rooted.DefaultKeyspace, "", func(r *state.Region) bool {
		all = append(all, host.Change{Region: rooted.RegionFromProto(r.Proto())})
		return true
	})
	index := n.w.index
	n.w.mu.Unlock()
	if err := n.host.Follow(all, true, index); err != nil {
		n.w.t.Fatal(err)
	}
}

// region publishes a new region, and has its leader claim it.
func (w *world) region(id uint64, start, end string, owners ...rooted.MemberID) *rooted.Region {
	w.t.Helper()
	r := &rootv1.Region{Id: id, KeyspaceId: uint32(rooted.DefaultKeyspace), StartKey: []byte(start), EndKey: []byte(end)}
	for _, o := range owners {
		r.Owners = append(r.Owners, &rootv1.Owner{MemberId: string(o)})
	}
	w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}})
	w.everybody()
	leader := w.hosts[owners[0]]
	leader.run()
	w.until(func() bool { return leader.role(id) == "leading" }, "region %d is not claimed", id)
	leader.ended()
	leader.ended = func() {}
	w.everybody()
	return w.rooted(id)
}

func (w *world) everybody() {
	w.t.Helper()
	for _, n := range w.hosts {
		n.hear()
	}
}

// until waits for what another goroutine does.
func (w *world) until(f func() bool, format string, args ...any) {
	w.t.Helper()
	deadline := time.After(proctest.Patience)
	for !f() {
		select {
		case <-deadline:
			w.t.Fatalf(format, args...)
		case <-time.After(time.Millisecond):
		}
	}
}

func (w *world) rooted(id uint64) *rooted.Region {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rooted.RegionFromProto(w.st.Region(rooted.RegionID(id)).Proto())
}

func at(r *rooted.Region) *storev1.RegionAt {
	return &storev1.RegionAt{RegionId: uint64(r.ID), Epoch: r.Epoch.Proto()}
}

// role of a region in a store; empty: it has none.
func (n *node) role(id uint64) string {
	shown, _ := n.host.Status()
	for _, r := range shown {
		if r.GetRegion().GetId() == id {
			return r.GetRole()
		}
	}
	return ""
}

func (n *node) put(r *rooted.Region, key, value string) {
	n.w.t.Helper()
	if _, err := n.host.Put(at(r), []byte(key), []byte(value), nil); err != nil {
		n.w.t.Fatal(err)
	}
}

func (n *node) wantValue(r *rooted.Region, key, value string) {
	n.w.t.Helper()
	e, err := n.host.Get(at(r), []byte(key))
	if err != nil || string(e.Value) != value {
		n.w.t.Fatalf("%s is %q, %v at %s; want %q", key, e.Value, err, n.self, value)
	}
}

func want(t *testing.T, err error, r rootv1.Reason) *rootv1.ErrorDetail {
	t.Helper()
	if reason.Of(err) != r {
		t.Fatalf("%v, want %s", err, reason.Name(r))
	}
	return reason.From(err)
}
