package budget

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestControlGroup(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  int64
	}{
		"none": {fstest.MapFS{}, math.MaxInt64},
		"2, one around it": {fstest.MapFS{
			"proc/self/cgroup":                 file("0::/a.slice/b\n"),
			"sys/fs/cgroup/a.slice/memory.max": file("1000\n"), "sys/fs/cgroup/a.slice/b/memory.max": file("max\n"),
		}, 1000},
		"2, container": {fstest.MapFS{"proc/self/cgroup": file("0::/../x\n"), "sys/fs/cgroup/memory.max": file("77\n")}, 77},
		"1": {fstest.MapFS{
			"proc/self/cgroup": file("5:cpu:/q\n4:memory:/docker/1\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": file("5000\n"),
		}, 5000},
	} {
		if got := controlGroup(c.files); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if m := Machine(); m < 16<<20 {
		t.Errorf("this machine has %s", m)
	}
}
