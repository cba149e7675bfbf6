package server_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A reader that takes nothing costs a coordinator no more than a few answers,
// however many of its lookups waited for the root: 16 requests of 10 KB, where 256
// may wait.
func TestAnswersOfLookupsThatWaitedAreBounded(t *testing.T) {
	w := start(t)
	w.root.must(t, join("m1"))
	req := &coordinatorv1.GetRegionsByKeysRequest{Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}}
	for i := range server.MaxKeys {
		key := fmt.Sprintf("%04d", i)
		long := strings.Repeat("k", server.MaxKeyBytes-8)
		w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 1, StartKey: []byte(key + "a" + long), EndKey: []byte(key + "z" + long), Frontier: []byte(long),
		}}}})
		req.Keys = append(req.Keys, []byte(key+"m"))
	}
	w.catchUp(t)
	stream, err := w.client.RouteStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for id := range uint64(16) {
		req.RequestId = id
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	var most uint64
	for range 20 { // the stream is cut some seconds later
		time.Sleep(50 * time.Millisecond)
		most = max(most, heap())
	}
	if grown := int64(most) - int64(before); grown > 64<<20 {
		t.Errorf("16 lookups of a reader that takes nothing hold %d MB", grown>>20)
	}
}
