package client

import (
	"sync"
	"testing"
)

// The first answers that come at once are of one cluster: none of them is refused.
func TestFirstAnswersOfOneClusterAtOnce(t *testing.T) {
	e := &endpoint{address: "a:1"}
	for range 3000 {
		var (
			c     Client
			begin = make(chan struct{})
			all   sync.WaitGroup
		)
		for range 4 {
			all.Go(func() {
				<-begin
				if err := c.checkCluster(e, 7); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		all.Wait()
		if err := c.checkCluster(e, 8); err == nil {
			t.Fatal("an answer of another cluster is taken")
		}
		if t.Failed() {
			return
		}
	}
}
