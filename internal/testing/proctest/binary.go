package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nokv/nokv/test/hermetic"
)

var nokvDir string // where NoKV put the binary

var nokv = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(hermetic.Binary); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "nokv-test-")
	if err != nil {
		return "", err
	}
	nokvDir = dir
	path := filepath.Join(dir, "nokv")
	// go build links each time, for seconds; go run keeps what it linked, so that of the packages
	// of a test command one waits for that.
	out, err := exec.Command("go", "run", "-exec", "cp", "github.com/nokv/nokv/cmd/nokv", path).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build nokv: %w\n%s", err, out)
	}
	return path, nil
})

// NoKV builds nokv once, unless it is built already, and returns where it is. The test
// binary's TestMain must be Main.
func NoKV() (string, error) { return nokv() }

// Main runs the tests, removes what NoKV built, and returns the exit status.
func Main(m *testing.M) int {
	code := m.Run()
	if nokvDir != "" {
		_ = os.RemoveAll(nokvDir)
	}
	return code
}
