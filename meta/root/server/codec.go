package server

import (
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

// codec is the protobuf codec, which passes encoded messages through.
type codec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*encoded)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	out := make(mem.BufferSlice, 0, 2)
	for _, part := range [][]byte{m.own, m.shared} {
		if len(part) > 0 {
			out = append(out, mem.SliceBuffer(part))
		}
	}
	return out, nil
}
