package main

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a refusal came through is left out; what is to be done about it is said.
func TestExplainKeepsTheWayOut(t *testing.T) {
	refused := &client.Error{Op: "GetKeyspace", Detail: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_CLUSTER_MISMATCH, Message: "this is cluster 2"}}
	for _, err := range []error{
		fmt.Errorf("coordinators: %w: name an empty --workdir", refused),
		fmt.Errorf("%w: name an empty --workdir", refused),
	} {
		if got, want := explain(err), "cluster_mismatch: this is cluster 2: name an empty --workdir"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got, want := explain(fmt.Errorf("ask: %w", refused)), "cluster_mismatch: this is cluster 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

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
