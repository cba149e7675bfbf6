package house

import (
	"os"
	"os/exec"
	"testing"
)

// The packages that speak to the operating system build for each one that is
// supported.
func TestBuildsForEverySystem(t *testing.T) {
	for _, system := range []string{"linux", "darwin"} {
		cmd := exec.Command("go", "build", "./internal/clock", "./internal/disk", "./internal/testing/proctest")
		cmd.Dir = "../../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", system, err, out)
		}
	}
}
