package rooted_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/rooted"
)

// Rule 6: a probe address is the literal, specific one of a listener. What may be another socket's
// is refused, with the way out.
func TestRule6ProbeAddressIsLiteralAndSpecific(t *testing.T) {
	for _, c := range []struct {
		probe, address string
		want           string // a part of the refusal; empty: fine
	}{
		{"", "m1:7000", ""},
		{"10.0.0.7:7001", "m1:7000", ""},
		{"10.0.0.7:7001", "", ""},
		{"10.0.0.7:7001", "127.0.0.1:7000", ""},
		{"[fd00::7]:7001", "m1:7000", ""},
		{"[::ffff:10.0.0.7]:7001", "m1:7000", ""},
		{"127.0.0.1:7001", "127.0.0.1:7000", ""},
		{"127.0.0.2:7001", "localhost:7000", ""},
		{"[::1]:7001", "127.0.0.1:7000", ""},
		{"m1:7001", "m1:7000", "not an IP address and a port"},
		{"localhost:7001", "localhost:7000", "not an IP address and a port"},
		{"10.0.0.7", "10.0.0.7:7000", "not an IP address and a port"},
		{"10.0.0.7:0", "10.0.0.7:7000", "not an IP address and a port"},
		{"10.0.0.7:http", "10.0.0.7:7000", "not an IP address and a port"},
		{":7001", "10.0.0.7:7000", "not an IP address and a port"},
		{"010.0.0.7:7001", "10.0.0.7:7000", "not an IP address and a port"},
		{"0.0.0.0:7001", "10.0.0.7:7000", "not the address of one socket"},
		{"[::]:7001", "10.0.0.7:7000", "not the address of one socket"},
		{"[::ffff:0.0.0.0]:7001", "10.0.0.7:7000", "not the address of one socket"},
		{"224.0.0.1:7001", "10.0.0.7:7000", "not the address of one socket"},
		{"[fe80::7%eth0]:7001", "[fe80::7]:7000", "another machine's"},
		{"[fe80::7]:7001", "[fe80::7]:7000", "another machine's"},
		{"169.254.0.7:7001", "169.254.0.7:7000", "another machine's"},
		{"127.0.0.1:7001", "10.0.0.7:7000", "each machine's own"},
		{"[::ffff:127.0.0.1]:7001", "10.0.0.7:7000", "each machine's own"},
		{"[::1]:7001", "m1:7000", "each machine's own"},
		{"127.0.0.1:7001", "", "each machine's own"},
	} {
		err := rooted.CheckProbeAddress(c.probe, c.address)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%q beside %q: %v", c.probe, c.address, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "register the IP address and port")):
			t.Errorf("%q beside %q: %v, want %q and the way out", c.probe, c.address, err, c.want)
		}
	}
}
