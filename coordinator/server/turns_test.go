package server_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// A turn is processor time: who waits for the root has none, so that a few reads which ask
// for a revision that does not come hold up nobody else's long answers.
func TestNobodyHasATurnWhileItWaitsForTheRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		keys := make([][]byte, 65)
		for i := range keys {
			keys[i] = []byte(fmt.Sprint("a", i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		// One bad request for each turn that there is.
		for range max(1, runtime.GOMAXPROCS(0)/2) {
			conn := w.dial(t)
			defer conn.Close()
			go func() {
				_, _ = coordinatorv1.NewCoordinatorClient(conn).GetRegionsByKeys(ctx, &coordinatorv1.GetRegionsByKeysRequest{
					Keyspace: "default", Keys: keys, Read: &coordinatorv1.ReadOptions{RequiredDescriptorRevision: 1 << 40},
				})
			}()
		}
		synctest.Wait()
		begun := time.Now()
		other := w.dial(t)
		defer other.Close()
		soon, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		_, err := coordinatorv1.NewCoordinatorClient(other).ScanRegions(soon, &coordinatorv1.ScanRegionsRequest{Keyspace: "default"})
		if took := time.Since(begun); err != nil || took > 100*time.Millisecond {
			t.Errorf("somebody else's scan took %v: %v", took, err)
		}
		cancel()
	})
}
