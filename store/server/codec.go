package server

import (
	"github.com/nokv/nokv/internal/gate"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is the ordinary protobuf codec, and has the gate count what was not sent yet.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	v, to := gate.Open(v)
	data, err := c.CodecV2.Marshal(v)
	if err != nil {
		return to.Count(nil), err
	}
	return to.Count(data), nil
}
