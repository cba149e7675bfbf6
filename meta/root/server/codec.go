package server

import (
	"github.com/nokv/nokv/internal/gate"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// encoded is a message that is encoded already. The wire format of a message is
// the concatenation of its fields, so that what many readers get can be shared
// and what differs put in front of it. Nobody changes the bytes after a send.
type encoded struct {
	own    []byte
	shared []byte
}

// codec is the protobuf codec, which passes encoded messages through, and has the gate
// count what was not sent yet.
type codec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	v, to := gate.Open(v)
	m, ok := v.(*encoded)
	if !ok {
		data, err := c.CodecV2.Marshal(v)
		if err != nil {
			return to.Count(nil), err
		}
		return to.Count(data), nil
	}
	out := make(mem.BufferSlice, 0, 2)
	for _, part := range [][]byte{m.own, m.shared} {
		if len(part) > 0 {
			out = append(out, mem.SliceBuffer(part))
		}
	}
	return to.Count(out), nil
}
