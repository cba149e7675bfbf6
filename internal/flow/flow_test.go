package flow_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/flow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A server that goes away before it takes up a stream ends that stream: what was said on it reaches nobody
// else, and who says more is not held up.
func TestAStreamIsSentOnce(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served atomic.Int32
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		served.Add(1)
		return s.RecvMsg(&emptypb.Empty{})
	}))
	defer server.Stop()
	gone := make(chan error, 1)
	go func() {
		conn, err := lis.Accept()
		if err == nil {
			err = goAway(conn)
		}
		gone <- err
		_ = server.Serve(lis) // ends with the test
	}()
	cc, err := grpc.NewClient(lis.Addr().String(), append(flow.Client(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	first, err := cc.NewStream(ctx, desc, "/s/m")
	if err != nil {
		t.Fatal(err)
	}
	_ = first.SendMsg(&emptypb.Empty{}) // whether it was written before the end, Recv says
	if err := first.RecvMsg(&emptypb.Empty{}); status.Code(err) != codes.Unavailable || served.Load() != 0 {
		t.Errorf("%v, served %d times; want Unavailable, and by nobody", err, served.Load())
	}
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	second, err := cc.NewStream(ctx, desc, "/s/m")
	if err != nil {
		t.Fatal(err)
	}
	if err := second.SendMsg(&emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
	if err := second.RecvMsg(&emptypb.Empty{}); err != io.EOF || served.Load() != 1 {
		t.Errorf("the next one: %v, served %d times", err, served.Load())
	}
}

// goAway greets as an HTTP/2 server does, and says behind the head of the first stream that it takes none.
func goAway(conn net.Conn) error {
	const (
		frameHead = 9
		headers   = 1
	)
	defer conn.Close()
	if _, err := io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}); err != nil { // SETTINGS
		return err
	}
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head[:4])>>8)); err != nil {
			return err
		}
		if head[3] == headers {
			break
		}
	}
	if _, err := conn.Write([]byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil { // GOAWAY, no stream
		return err
	}
	_, _ = io.Copy(io.Discard, conn) // until the client has closed it
	return nil
}
