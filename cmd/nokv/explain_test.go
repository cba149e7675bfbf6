package main

import "testing"

func TestPlainTakesTheWrappingOff(t *testing.T) {
	const refused = `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused"`
	for in, want := range map[string]string{
		"unavailable: " + refused:                                     "dial tcp 127.0.0.1:2379: connect: connection refused",
		"rpc error: code = Unavailable desc = " + refused:             "dial tcp 127.0.0.1:2379: connect: connection refused",
		"read index: rpc error: code = Unknown desc = it is\nwhat it": "read index: it is; what it",
		`invalid_range: the range is empty: ["z", "b")`:               `invalid_range: the range is empty: ["z", "b")`,
	} {
		if got := plain(in); got != want {
			t.Errorf("plain(%q)\n got %q\nwant %q", in, got, want)
		}
	}
}
