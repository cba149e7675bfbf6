package main

import (
	"os"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// beNoKV makes the test binary run as nokv: processes under test are the
// binary under test, with the race detector when the tests have it.
const beNoKV = "NOKV_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beNoKV) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// nokvPath and nokvEnv run nokv as a process.
func nokvPath(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// nokvEnv makes a process nokv, and finds and notes a running `nokv dev` in a folder of the test's.
func nokvEnv(t testing.TB) []string {
	t.Helper()
	return []string{beNoKV + "=1", "XDG_RUNTIME_DIR=" + t.TempDir()}
}

func newCluster(t testing.TB, coordinators int) *proctest.Cluster {
	t.Helper()
	return proctest.NewCluster(t, nokvPath(t), nokvEnv(t), coordinators)
}
