// Package size says how long tests are: short in the test command, long in its
// long form.
//
// A short size proves the rule; a long one searches for what is rare. Each is a
// flag of its test binary, so that one run of any size can be asked for.
package size

import (
	"flag"
	"os"
	"time"

	"github.com/nokv/nokv/test/hermetic"
)

// Long says whether this is the long form.
func Long() bool { return os.Getenv(hermetic.Long) != "" }

// Int is a flag with one default for each form.
func Int(name string, short, long int, usage string) *int {
	return flag.Int(name, pick(short, long), usage)
}

// Duration is a flag with one default for each form.
func Duration(name string, short, long time.Duration, usage string) *time.Duration {
	return flag.Duration(name, pick(short, long), usage)
}

// Bool is a flag that the long form sets.
func Bool(name, usage string) *bool { return flag.Bool(name, Long(), usage) }

func pick[T any](short, long T) T {
	if Long() {
		return long
	}
	return short
}
