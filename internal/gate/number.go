package gate

import (
	"context"
	"reflect"
	"sync/atomic"

	"google.golang.org/grpc"
)

// numberField is where gRPC keeps the number of a stream.
type numberField struct {
	of    reflect.Type
	index []int
}

var numberIn atomic.Pointer[numberField]

// streamNumber is the number that the call's frames have. gRPC has it in a field that it
// does not show, and nothing else tells which frames are a call's: with another gRPC
// TestReadMessagesAreNotCounted says whether it is still there. 0: it is not.
func streamNumber(ctx context.Context) uint32 {
	s := reflect.ValueOf(grpc.ServerTransportStreamFromContext(ctx))
	if s.Kind() != reflect.Pointer || s.Elem().Kind() != reflect.Struct {
		return 0
	}
	s = s.Elem()
	in := numberIn.Load()
	if in == nil || in.of != s.Type() {
		f, ok := s.Type().FieldByName("id")
		if !ok || f.Type.Kind() != reflect.Uint32 {
			return 0
		}
		in = &numberField{s.Type(), f.Index}
		numberIn.Store(in)
	}
	return uint32(s.FieldByIndex(in.index).Uint())
}
