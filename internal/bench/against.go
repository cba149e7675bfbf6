package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echoBytes is the size of an answer: that of a GetRegionByKey reply.
const echoBytes = 120

const echoMethod = "/nokv.bench.Echo/Echo"

// ServeEcho answers every call with as many bytes as a lookup's answer has,
// until ctx ends. It is the other side of a comparison with a bare gRPC server.
func ServeEcho(ctx context.Context, lis net.Listener) error {
	answer := wrapperspb.Bytes(make([]byte, echoBytes))
	s := grpc.NewServer(grpc.NumStreamWorkers(8))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "nokv.bench.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return answer, dec(new(wrapperspb.BytesValue))
		}}},
	}, nil)
	defer context.AfterFunc(ctx, s.Stop)()
	return s.Serve(lis)
}

// prepareEcho runs `nokv bench echo` in a process of its own, as a server is.
func prepareEcho(ctx context.Context) (work, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	child := exec.CommandContext(ctx, self, "bench", "echo")
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe() // closed when this process ends, however it does
	if err != nil {
		return nil, nil, err
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := child.Start(); err != nil {
		return nil, nil, fmt.Errorf("start the echo: %w", err)
	}
	stop := func() { _ = stdin.Close(); _ = child.Wait() }
	var addr string
	if _, err := fmt.Fscanln(stdout, &addr); err != nil {
		stop()
		return nil, nil, fmt.Errorf("the echo did not start: %w", err)
	}
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		stop()
		return nil, nil, err
	}
	question := wrapperspb.Bytes(Key(1))
	return func(ctx context.Context, _ int) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return 1, cc.Invoke(ctx, echoMethod, question, new(wrapperspb.BytesValue))
	}, func() { _ = cc.Close(); stop() }, nil
}

// prepareEtcd puts values of a descriptor's size or, for lookups, gets them,
// linearizably. Requests are written by hand (fields 1 key, 2 value of
// etcdserverpb's PutRequest and RangeRequest), so that etcd's client and its
// dependencies stay out of this module.
func (c *Config) prepareEtcd(ctx context.Context, addrs string) (work, func(), error) {
	var conns []*grpc.ClientConn
	end := func() {
		for _, cc := range conns {
			_ = cc.Close()
		}
	}
	for addr := range strings.SplitSeq(addrs, ",") {
		cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			end()
			return nil, nil, err
		}
		conns = append(conns, cc)
	}
	call := func(ctx context.Context, worker int, method string, request *emptypb.Empty) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return conns[worker%len(conns)].Invoke(ctx, "/etcdserverpb.KV/"+method, request, &emptypb.Empty{})
	}
	puts, gets := make([]*emptypb.Empty, c.Concurrency), make([]*emptypb.Empty, c.Concurrency)
	for i := range puts {
		key := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Appendf(nil, "bench/%06d", i))
		gets[i] = raw(key)
		puts[i] = raw(protowire.AppendBytes(protowire.AppendTag(key[:len(key):len(key)], 2, protowire.BytesType), make([]byte, 100)))
	}
	if c.Workload == "publish" {
		return func(ctx context.Context, worker int) (uint64, error) {
			return 1, call(ctx, worker, "Put", puts[worker])
		}, end, nil
	}
	for worker, put := range puts {
		if err := call(ctx, worker, "Put", put); err != nil {
			end()
			return nil, nil, fmt.Errorf("put what is looked up into etcd: %w", err)
		}
	}
	return func(ctx context.Context, worker int) (uint64, error) {
		return 1, call(ctx, worker, "Range", gets[worker])
	}, end, nil
}
