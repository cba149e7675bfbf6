package nokvtest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/nokvtest"
)

// A watch that begins at a position sees each change behind it once and in order, through the
// death and the return of every coordinator.
func TestAWatchFromATokenGoesOnThroughRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds, each = 6, 10
		c := nokvtest.Start(t, nokvtest.Coordinators(3), nokvtest.Keyspace("tenants", "tenants"))
		c.Member(t, "m1", &app{})
		claim := func(n int) {
			c.Assign(t, "tenants", fmt.Appendf(nil, "k%03d", n), "m1") // a coordinator that is new hears nobody for a moment
		}
		claim(0)
		var from client.Position
		for batch, err := range c.Client().WatchRegions(t.Context(), client.Position{}, client.In("tenants"), client.Strong()) {
			if err != nil {
				t.Fatal(err)
			}
			if from = batch.Position(); batch.Last {
				break
			}
		}

		watching, stop := context.WithCancel(t.Context())
		seen, ended := make(chan string, 2*rounds*each), make(chan struct{})
		go func() {
			defer close(ended)
			for batch, err := range c.Client().WatchRegions(watching, from, client.In("tenants")) {
				if err != nil {
					return
				}
				if batch.GetSnapshot() {
					t.Error("it began anew")
				}
				for _, r := range batch.GetChanges() {
					r := r.GetRegion()
					if r.GetEpoch().GetVersion() == 1 && r.GetEpoch().GetConfVersion() == 1 {
						seen <- string(r.GetStartKey())
					}
				}
			}
		}()
		for round := range rounds {
			for i := range each {
				claim(1 + round*each + i)
			}
			c.RestartCoordinator(t, fmt.Sprintf("c%d", round%3+1))
		}
		for n := 1; n <= rounds*each; n++ {
			if got, want := <-seen, fmt.Sprintf("k%03d", n); got != want {
				t.Fatalf("change %d is that of %s, want %s", n, got, want)
			}
		}
		if c.Client().Stats().WatchResumes == 0 {
			t.Error("the watch never lost its coordinator: nothing was tried")
		}
		stop()
		<-ended
	})
}
