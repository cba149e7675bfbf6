package root

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/meta/root/storage"
)

// A disk that fills is warned of when that begins and every hour, and when it is over the log says so
// once. A file system that does not tell is no reason to end, and is named once.
func TestADiskThatFillsIsWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said written.Text
		var free atomic.Uint64
		var fails atomic.Bool
		free.Store(9 << 30)
		w := &roomWatch{clock: clock.NewMonotonic(), log: said.Logger(hclog.Info), ask: func() (storage.Room, error) {
			if fails.Load() {
				return storage.Room{}, errors.New("stale handle")
			}
			return storage.Room{Free: free.Load(), Total: 20 << 30, Need: 1 << 30}, nil
		}}
		if low := w.room().Low(); low != "" {
			t.Errorf("before anybody asked: %s", low)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		want := func(step, words string, times int) {
			t.Helper()
			synctest.Wait()
			if n := strings.Count(said.String(), words); n != times {
				t.Errorf("%s: %q stands %d times, want %d, in\n%s", step, words, n, times, &said)
			}
		}
		const nearly, enough = "nearly full", "enough room again"
		time.Sleep(time.Minute)
		want("with enough room", nearly, 0)
		free.Store(180 << 20)
		time.Sleep(roomEvery)
		want("soon", nearly, 1)
		if low := w.room().Low(); !strings.Contains(low, "180 MiB of 20480 MiB are free") {
			t.Errorf("status says %q", low)
		}
		time.Sleep(roomWarnsEvery / 2)
		want("half an hour later", nearly, 1)
		time.Sleep(roomWarnsEvery/2 + roomEvery)
		want("an hour later", nearly, 2)
		fails.Store(true)
		time.Sleep(time.Minute)
		want("when it does not tell", "stale handle", 1)
		fails.Store(false)
		free.Store(9 << 30)
		time.Sleep(time.Minute)
		want("with room again", enough, 1)
		if low := w.room().Low(); low != "" {
			t.Errorf("status still says %q", low)
		}
	})
}
