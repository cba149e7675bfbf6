package host_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A store that takes its copy slowly keeps nobody from writing other regions: the file
// may have to grow for them.
func TestASlowCopyStopsNoWriter(t *testing.T) {
	w := newWorld(t, 2)
	one := w.hosts["store-1"]
	r := w.region(1, "", "m", "store-1", "store-2")
	other := w.region(2, "m", "", "store-1")
	for _, key := range []string{"a", "b", "c"} {
		one.put(r, key, strings.Repeat("x", 400<<10)) // more than a message
	}
	written := make(chan error, 1)
	w.onSend = func() {
		w.onSend = func() {}
		go func() {
			value := make([]byte, 1<<20)
			for i := range 64 {
				if _, err := one.host.Put(at(other), fmt.Appendf(nil, "x%d", i), value, nil); err != nil {
					written <- err
					return
				}
			}
			written <- nil
		}()
		select {
		case err := <-written:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("writers wait for the copy of another region")
		}
	}
	if _, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2"); err != nil {
		t.Fatal(err)
	}
}
