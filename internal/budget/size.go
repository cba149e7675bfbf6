package budget

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. As a text it has a unit: 512MiB.
type Size int64

// units from the largest.
var units = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// String is the text with the largest unit that leaves no fraction.
func (s Size) String() string {
	for _, u := range units {
		if int64(s)%u.bytes == 0 && (s != 0 || u.bytes == 1) {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	panic("budget: every size is a number of bytes")
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: a whole number and a unit.
func (s *Size) UnmarshalText(text []byte) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(string(text), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > math.MaxInt64/uint64(u.bytes) {
			break
		}
		*s = Size(int64(n) * u.bytes)
		return nil
	}
	return fmt.Errorf("size %q: give a whole number and B, KiB, MiB, GiB or TiB, such as 512MiB", text)
}
