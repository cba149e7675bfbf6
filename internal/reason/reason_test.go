package reason_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Every reason of the wire crosses it and comes back the same.
func TestEveryReasonThereAndBack(t *testing.T) {
	for number, wireName := range rootv1.Reason_name {
		r := rootv1.Reason(number)
		want := strings.ToLower(strings.TrimPrefix(wireName, "REASON_"))
		if got := reason.Name(r); got != want {
			t.Errorf("Name(%s) = %q, want %q: add it to the table", wireName, got, want)
		}
		if r != rootv1.Reason_REASON_UNSPECIFIED && reason.Code(r) == codes.Unknown {
			t.Errorf("%s has no gRPC code", wireName)
		}
		sent := reason.New(r, "sentence with %d values", 2)
		sent.Detail.Era = 7
		sent.Detail.LeaderAddress = "127.0.0.1:1"
		wire := status.FromProto(status.Convert(sent).Proto())
		got := reason.From(wire.Err())
		if !proto.Equal(got, sent.Detail) {
			t.Errorf("%s came back as %v, sent %v", wireName, got, sent.Detail)
		}
	}
}

func TestOtherErrorsHaveNoReason(t *testing.T) {
	if got := reason.From(status.Error(codes.Internal, "x")); got != nil {
		t.Errorf("From = %v, want nil", got)
	}
	if got := reason.Of(nil); got != rootv1.Reason_REASON_UNSPECIFIED {
		t.Errorf("Of(nil) = %v", got)
	}
}
