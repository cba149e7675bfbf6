package house

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// The packages that speak to the operating system build for each one that is
// supported; for this one they are built with everything else.
func TestBuildsForEverySystem(t *testing.T) {
	for _, system := range []string{"linux", "darwin"} {
		if system == runtime.GOOS {
			continue
		}
		cmd := exec.Command("go", "build", "./internal/clock", "./internal/disk", "./internal/procs")
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", system, err, out)
		}
	}
}
