package witness_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// What it costs to judge each change of a log that is applied, as coordinators do: an entry
// has one grant, or 1,000, each of a region that another acts for.
func BenchmarkFollow(b *testing.B) {
	const regions, members = 16_384, 64
	for _, size := range []int{1, 1000} {
		for _, judged := range []bool{false, true} {
			b.Run(fmt.Sprintf("grants=%d/judged=%t", size, judged), func(b *testing.B) {
				st := state.New()
				var out state.Applied
				apply := func(data []byte) {
					out.Reset()
					if err := st.ApplyEntry(1, st.Token().Index+1, data, &out); err != nil || out.Results[0].Reject != nil {
						b.Fatal(err, out.Results)
					}
				}
				events := []*rootv1.Event{{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
					Cluster: &rootv1.Cluster{ClusterId: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "r:1"}}},
				}}}}
				for i := range members {
					id := fmt.Sprint("m", i)
					events = append(events, &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: 1}}}})
				}
				events = append(events, &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "x", Settings: &rootv1.KeyspaceSettings{
					Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: regions}}},
					Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
				}}}})
				for _, e := range events {
					apply(encoded(b, e))
				}
				// As many entries as come round to the first region with another member.
				var entries [][]byte
				for n := 0; n < 2*regions; n += size {
					e := &rootv1.RegionsAssigned{}
					for i := n; i < n+size; i++ {
						e.Assignments = append(e.Assignments, &rootv1.Assignment{RegionId: uint64(i%regions) + 1, Owners: ownersOf(fmt.Sprint("m", (i+i/regions)%members))})
					}
					entries = append(entries, encoded(b, &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: e}}))
				}
				v := witness.NewInvariants(st)
				var spent time.Duration
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					apply(entries[i%len(entries)])
					if judged {
						began := time.Now()
						v.Entry(out.Token, out.Changes)
						spent += time.Since(began)
					}
				}
				if judged {
					b.ReportMetric(100*float64(spent)/float64(b.Elapsed()), "%judging")
					b.ReportMetric(float64(spent)/float64(b.N*size), "ns/change")
				}
			})
		}
	}
}

func encoded(b *testing.B, e *rootv1.Event) []byte {
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
	if err != nil {
		b.Fatal(err)
	}
	return data
}
