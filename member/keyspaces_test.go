package member_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// A member that waits for a keyspace says so at once and within 30 s, until there is something to have.
func TestWaitsForAKeyspaceAloud(t *testing.T) {
	for name, c := range map[string]struct {
		keyspaces []string
		reported  []string
		says      string
		least     int // warnings in 100 s, and the most
		most      int
	}{
		"it is there":          {keyspaces: []string{"games"}},
		"it takes all":         {},
		"a wrong name":         {keyspaces: []string{"gmaes"}, says: `not there, or that it may not read: create it with nokv keyspace create, or correct the name: member=m1 keyspace=gmaes`, least: 4, most: 7},
		"one of two is wrong":  {keyspaces: []string{"games", "gmaes"}, says: "keyspace=gmaes", least: 4, most: 7},
		"its members report":   {keyspaces: []string{"tables"}, reported: []string{"tables"}, says: `keyspace update --placement assigned, or name another one: member=m1 keyspace=tables`, least: 4, most: 7},
		"it is made meanwhile": {keyspaces: []string{"later"}, says: "keyspace=later", least: 2, most: 3},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, games, func(b *bubble) {
				b.cluster.Reported = c.reported
				var log written.Text
				b.start("m1", func(cfg *member.Config) {
					cfg.Keyspaces, cfg.Logger = c.keyspaces, log.Logger(hclog.Warn)
				})
				time.Sleep(45 * time.Second)
				b.cluster.Create(&coordinatorv1.KeyspaceTerms{KeyspaceId: 2, Name: "later"})
				time.Sleep(55 * time.Second)
				b.ends[0]()
				synctest.Wait()
				if got := strings.Count(log.String(), "[WARN]"); got < c.least || got > c.most || strings.Count(log.String(), c.says) < got {
					t.Errorf("%d warnings, want %d to %d of %q:\n%s", got, c.least, c.most, c.says, &log)
				}
			})
		})
	}
}
