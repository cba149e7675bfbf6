package host_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
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
		case <-time.After(proctest.Patience):
			t.Error("writers wait for the copy of another region")
		}
	}
	if _, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2"); err != nil {
		t.Fatal(err)
	}
}

// A header names a version that others are given above: one that leaves none above it is
// refused.
func TestACopyLeavesVersionsToGive(t *testing.T) {
	w := newWorld(t, 2)
	two := w.hosts["store-2"]
	r := w.region(1, "", "m", "store-1", "store-2")
	own := w.region(2, "m", "", "store-2")
	err := two.host.Import("", &storev1.ImportHeader{Region: r.Proto(), Version: 1<<64 - 1}, func() (*storev1.ImportRequest, error) {
		return &storev1.ImportRequest{Last: true}, nil
	})
	if err == nil {
		t.Error("taken")
	}
	before, err := two.host.Put(at(own), []byte("x"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := two.host.Put(at(own), []byte("x"), nil, nil); err != nil || after <= before {
		t.Errorf("version %d behind %d, %v", after, before, err)
	}
}
