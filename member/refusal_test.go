package member_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

// Whoever is refused reads which region it is about, and what to run.
func TestP40RefusalsSayWhatToDo(t *testing.T) {
	low, high := rooted.Epoch{Version: 1, ConfVersion: 4}, rooted.Epoch{Version: 1, ConfVersion: 9}
	for _, c := range []struct {
		err  error
		says []string
	}{
		{&member.EpochStale{Region: 7, Current: high}, []string{"region 7 is at epoch 1.9", "nokv region get --id 7"}},
		{&member.NotOwned{Region: 7, Held: low, Asked: high}, []string{"region 7 was last at epoch 1.4 here", "epoch 1.9", "nokv region get --id 7"}},
		{&member.NotOwned{Region: 7}, []string{"region 7 is not", "nokv region get --id 7"}},
		{&member.NotOwned{Keyspace: "games"}, []string{"keyspace games", "nokv region get --keyspace games KEY"}},
		{&member.NotOwned{}, []string{"nokv region get"}},
		{&member.Unconfirmed{Region: 7}, []string{"region 7", "nokv region get --id 7"}},
	} {
		for _, want := range c.says {
			if got := c.err.Error(); !strings.Contains(got, want) {
				t.Errorf("%#v says %q, want %q in it", c.err, got, want)
			}
		}
	}
}
