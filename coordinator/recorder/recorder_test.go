package recorder_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/recorder"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// scene is a root that changes, and what its members report.
type scene struct {
	testing.TB
	st    *state.State
	soft  *catalog.Soft
	clock *clock.Manual
	era   uint64
	r     *recorder.Recorder
}

func newScene(t testing.TB, size int) *scene {
	s := &scene{TB: t, st: state.New(), soft: catalog.NewSoft(catalog.SoftConfig{}), clock: &clock.Manual{Elapsed: 1000, WallMillis: 5}, era: 1}
	var err error
	s.r, err = recorder.New(recorder.Config{
		Bytes: size, Every: time.Second, View: func() *rootview.View { return &rootview.View{State: s.st} }, Era: func() uint64 { return s.era },
		Takes: func(id state.MemberID) bool { return id != "m2" }, Soft: s.soft, Clock: s.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	return s
}

func (s *scene) apply(events ...*rootv1.Event) {
	s.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events}}})
	if err != nil {
		s.Fatal(err)
	}
	next := s.st.Fork()
	var out state.Applied
	if err := next.ApplyEntry(1, next.Token().Index+1, data, &out); err != nil || out.Results[0].Reject != nil {
		s.Fatal(err, out.Results[0].Reject)
	}
	s.st = next
}

func (s *scene) join(id string) {
	s.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: id, Address: "a:1", Capacity: 2, StartNonce: s.st.Token().Index}, Follows: s.st.Member(state.MemberID(id)).GetIncarnation(),
	}}})
}

// slots makes keyspace 2 with so many regions of m1.
func (s *scene) slots(n uint32) {
	settings := state.DefaultSettings()
	settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: n}}}
	s.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: settings}}})
	var all []*rootv1.Assignment
	s.st.RegionsFrom(2, "", func(r *state.Region) bool {
		all = append(all, &rootv1.Assignment{RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m1"}}})
		return true
	})
	s.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: all}}})
}

func (s *scene) load(id state.RegionID, x float64) {
	s.Helper()
	r := s.st.Region(id)
	if _, err := s.soft.Report(s.st, s.st.Member(r.Owners[0].Member), &coordinatorv1.RegionReport{
		RegionId: uint64(id), Epoch: r.Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING, Load: x,
	}, s.clock.Now()); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) sample() {
	s.clock.Advance(time.Second)
	s.r.Sample()
}

// file is what nokv plan record writes.
func (s *scene) file() []byte {
	out := []byte(recorder.Magic)
	for at := uint64(0); ; {
		p := s.r.Read(at)
		out = append(out, p.GetData()...)
		if at = p.GetNext(); p.GetLast() {
			return out
		}
	}
}

func frames(t testing.TB, file []byte) (all []*coordinatorv1.RecordedFrame) {
	t.Helper()
	if err := recorder.ReadFile(bytes.NewReader(file), func(s *coordinatorv1.RecordedSegment) error {
		all = append(all, s.GetFrames()...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// The first sample has everything, the others what changed; without the Tenure there are none,
// and another era begins anew.
func TestWhatIsRecorded(t *testing.T) {
	s := newScene(t, 1<<20)
	if got := frames(t, s.file()); len(got) != 0 {
		t.Fatalf("before anything there is %v", got)
	}
	s.join("m1")
	s.join("m2")
	s.slots(4)
	s.load(1, 2.5)
	s.sample()
	s.sample()
	s.load(1, 2.51) // next to nothing
	s.load(2, 0)
	s.sample()
	s.load(1, 5)
	s.apply(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m2", State: rootv1.MemberState_MEMBER_STATE_FAILED, Reason: "t"}}})
	s.sample()
	s.era = 0
	s.sample()
	s.era = 3
	s.sample()
	all := frames(t, s.file())
	if len(all) != 5 {
		t.Fatalf("%d frames: %v", len(all), all)
	}
	first := all[0]
	if !first.GetWhole() || first.GetEra() != 1 || len(first.GetRegions()) != 4 || len(first.GetMembers()) != 2 || first.GetMembers()[1].GetTakes() || !first.GetMembers()[0].GetTakes() ||
		first.GetRegions()[0].GetLoadMilli() != 2501 || first.GetRegions()[1].GetLoadMilli() != 0 || first.GetRegions()[0].GetOwners()[0] != "m1" || len(first.GetRegions()[1].GetEndKey()) == 0 {
		t.Errorf("the first is %v", first)
	}
	if n := len(first.GetKeyspaces()); n != 1 || first.GetKeyspaces()[0].GetName() != "ks" || first.GetKeyspaces()[0].GetSettings().GetLayout().GetSlots().GetCount() != 4 {
		t.Errorf("its keyspaces are %v", first.GetKeyspaces())
	}
	if f := all[1]; f.GetWhole() || len(f.GetRegions())+len(f.GetMembers())+len(f.GetKeyspaces()) != 0 || f.GetAtMillis() != first.GetAtMillis()+1000 {
		t.Errorf("the second is %v", f)
	}
	if f := all[2]; len(f.GetRegions()) != 1 || f.GetRegions()[0].GetId() != 2 || f.GetRegions()[0].GetLoadMilli() != 1 || f.GetRegions()[0].GetKeyspaceId() != 0 {
		t.Errorf("the third is %v", f)
	}
	if f := all[3]; len(f.GetRegions()) != 1 || f.GetRegions()[0].GetLoadMilli() != 5001 || fmt.Sprint(f.GetGoneMembers()) != "[m2]" {
		t.Errorf("the fourth is %v", f)
	}
	if f := all[4]; !f.GetWhole() || f.GetEra() != 3 || len(f.GetRegions()) != 4 {
		t.Errorf("that of another era is %v", f)
	}
}

// The ring is bounded in bytes, and what is kept can be read from any of its segments on.
// What was dropped under a reader is counted.
func TestRingIsBounded(t *testing.T) {
	const size = 1 << 17
	s := newScene(t, size)
	s.join("m1")
	s.slots(500)
	for i := range 400 {
		for id := state.RegionID(1); id <= 500; id++ {
			s.load(id, float64(int(id)*7919*(i+1)%1000))
		}
		s.sample()
	}
	file := s.file()
	if len(file) > size+size/4 || len(file) < size/2 {
		t.Errorf("%d bytes are kept", len(file))
	}
	all := frames(t, file)
	last := all[len(all)-1]
	if !all[0].GetWhole() || len(all[0].GetRegions()) != 500 || last.GetAtMillis() < 399_000 {
		t.Errorf("%d frames, the last at %d", len(all), last.GetAtMillis())
	}
	if p := s.r.Read(1); p.GetLost() == 0 || len(p.GetData()) == 0 {
		t.Errorf("from the first on: %d lost, %d bytes", p.GetLost(), len(p.GetData()))
	}
	if p := s.r.Read(1 << 60); !p.GetLast() || len(p.GetData()) != 0 {
		t.Errorf("from a position that there is not: %v", p)
	}
}

// A file that is torn, damaged, foreign or newer is refused with the word for that.
func TestFilesThatCannotBeRead(t *testing.T) {
	s := newScene(t, 1<<20)
	s.join("m1")
	s.slots(8)
	for range 3 {
		s.sample()
	}
	whole := s.file()
	read := func(file []byte) error {
		return recorder.ReadFile(bytes.NewReader(file), func(*coordinatorv1.RecordedSegment) error { return nil })
	}
	for cut := range whole {
		err := read(whole[:cut])
		want := recorder.ErrTorn
		switch cut {
		case 0:
			want = recorder.ErrForeign
		case len(recorder.Magic):
			want = nil
		}
		if !errors.Is(err, want) {
			t.Errorf("cut at %d of %d: %v", cut, len(whole), err)
		}
	}
	for at := len(recorder.Magic); at < len(whole); at++ {
		bad := bytes.Clone(whole)
		bad[at] ^= 0x10
		if err := read(bad); !errors.Is(err, recorder.ErrTorn) {
			t.Errorf("byte %d changed: %v", at, err)
		}
	}
	for _, foreign := range []string{"<svg></svg> and more", "\x00", "PK\x03\x04 something that is longer"} {
		if err := read([]byte(foreign)); !errors.Is(err, recorder.ErrForeign) {
			t.Errorf("%q: %v", foreign, err)
		}
	}
	huge := binary.LittleEndian.AppendUint32([]byte(recorder.Magic), 1<<31)
	if err := read(append(huge, 0, 0, 0, 0)); !errors.Is(err, recorder.ErrTorn) {
		t.Errorf("a segment that has no end: %v", err)
	}
}

// A sample has an end in regions and bytes, and says what it left out.
func TestSamplesAreBounded(t *testing.T) {
	s := newScene(t, 64<<20)
	s.join("m1")
	settings := state.DefaultSettings()
	settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}
	s.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "points", Settings: settings}}})
	long := bytes.Repeat([]byte("k"), 2000)
	for i := 0; i < 2000; i += 400 {
		var events []*rootv1.Event
		for j := range 400 {
			events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
				KeyspaceId: 2, StartKey: fmt.Appendf(bytes.Clone(long), "%04d", i+j),
			}}}})
		}
		s.apply(events...)
	}
	s.sample()
	f := frames(t, s.file())[0]
	if n := proto.Size(f); n > recorder.MaxFrameBytes || f.GetLeftOut() == 0 || int(f.GetLeftOut())+len(f.GetRegions()) != 2000 {
		t.Errorf("%d bytes, %d regions, %d left out", n, len(f.GetRegions()), f.GetLeftOut())
	}
}
