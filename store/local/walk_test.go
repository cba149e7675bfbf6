package local_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/store/local"
)

// A walk passes everything once, and holds nothing while it does.
func TestWalkPassesEverythingOnce(t *testing.T) {
	d := open(t, t.TempDir())
	defer d.Close()
	const keys = 2500
	var entries []local.Entry
	for i := range keys {
		entries = append(entries, local.Entry{Key: fmt.Appendf(nil, "k%04d", i), Value: make([]byte, 10+i%7*300), Version: 1})
	}
	if err := d.Import(entries, 1); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		start, end string
		want       int
	}{{"", "", keys}, {"k0001", "k0003", 2}, {"k0003", "k0003", 0}, {"k2499", "", 1}} {
		n, last := 0, ""
		err := d.Walk([]byte(c.start), []byte(c.end), func(e *local.Entry) error {
			if string(e.Key) <= last {
				t.Fatalf("%s behind %s", e.Key, last)
			}
			n, last = n+1, string(e.Key)
			_, err := d.Write(local.Write{Key: []byte("a"), Admit: func() error { return nil }, Delete: true})
			return err
		})
		if err != nil || n != c.want {
			t.Errorf("[%s, %s): %d entries, %v; want %d", c.start, c.end, n, err, c.want)
		}
	}
}
