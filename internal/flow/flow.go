// Package flow fixes the flow control windows of gRPC connections: how much may
// have been sent to an end that has not read it.
//
// Fixed, because gRPC would find them by a ping with nearly every message, which
// costs both ends as much as the message.
package flow

import "google.golang.org/grpc"

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

// Client is the windows of what a client receives.
func Client() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStaticStreamWindowSize(clientStream), grpc.WithStaticConnWindowSize(clientConnection)}
}
