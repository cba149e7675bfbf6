// Package flow fixes how gRPC connections carry their messages: how much may have been
// sent to an end that has not read it, and that a stream is sent once.
//
// The windows are fixed, because gRPC would find them by a ping with nearly every message,
// which costs both ends as much as the message.
package flow

import (
	"context"

	"google.golang.org/grpc"
)

// Windows of a stream and of a connection, in bytes. That of a stream is what it may
// have sent that its call has not read; that of a connection opens again with every
// frame, whoever reads, and bounds nothing of that: what a server holds so, package gate
// counts. A client's let a snapshot or a watch come at 160 Mbit/s over 50 ms, and at what a
// network of one data centre has.
const (
	serverStream     = 256 << 10
	serverConnection = 1 << 20
	clientStream     = 1 << 20
	clientConnection = 4 << 20
)

// Server is the windows of what a server receives.
func Server() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StaticStreamWindowSize(serverStream), grpc.StaticConnWindowSize(serverConnection)}
}

// Client is the windows of what a client receives; its streams are sent once.
func Client() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(clientStream), grpc.WithStaticConnWindowSize(clientConnection),
		grpc.WithChainStreamInterceptor(once),
	}
}

// once ends a stream with its connection. Without it gRPC begins a stream that no server has taken up yet
// again on the next connection, with all that was sent on the first one: its caller does not see that what
// it says there is old, and whoever sends meanwhile waits until there is another connection.
func once(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	_ = stream.Context() // documented to end retries of the stream
	return stream, nil
}
