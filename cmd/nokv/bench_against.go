package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The other sides of comparisons: a bare gRPC echo in a process of its own,
// and puts to an etcd that somebody else runs.

// echoServe is the hidden argument that makes this binary the echo's server.
const echoServe = "NOKV_BENCH_ECHO"

// echoBytes is the size of an answer: that of a GetRegionByKey reply.
const echoBytes = 120

const echoMethod = "/nokv.bench.Echo/Echo"

// runEcho serves the echo until standard input closes.
func runEcho() error {
	tuneGC() // as the servers do
	lis, err := listen("echo", "127.0.0.1:0")
	if err != nil {
		return err
	}
	answer := wrapperspb.Bytes(make([]byte, echoBytes))
	s := grpc.NewServer(grpc.NumStreamWorkers(8))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "nokv.bench.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return answer, dec(new(wrapperspb.BytesValue))
		}}},
	}, nil)
	fmt.Println(lis.Addr())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		s.Stop()
	}()
	return s.Serve(lis)
}

func prepareEcho(ctx context.Context) (work, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), echoServe+"=1")
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
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
	question := wrapperspb.Bytes(benchKey(1))
	return func(ctx context.Context, _ int) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return 1, cc.Invoke(ctx, echoMethod, question, new(wrapperspb.BytesValue))
	}, func() { _ = cc.Close(); stop() }, nil
}

// prepareEtcd puts values of a descriptor's size. The request is written by
// hand (field 1 key, field 2 value of etcdserverpb.PutRequest), so that etcd's
// client and its dependencies stay out of this module.
func prepareEtcd(o *benchOptions, addrs string) (work, func(), error) {
	var conns []*grpc.ClientConn
	end := func() {
		for _, cc := range conns {
			_ = cc.Close()
		}
	}
	for addr := range strings.SplitSeq(addrs, ",") {
		if err := checkAddr(addr); err != nil {
			end()
			return nil, nil, usagef("etcd address %s", err)
		}
		cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			end()
			return nil, nil, err
		}
		conns = append(conns, cc)
	}
	puts := make([]*emptypb.Empty, *o.concurrency)
	for i := range puts {
		raw := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Appendf(nil, "bench/%06d", i))
		raw = protowire.AppendBytes(protowire.AppendTag(raw, 2, protowire.BytesType), make([]byte, 100))
		puts[i] = &emptypb.Empty{}
		puts[i].ProtoReflect().SetUnknown(raw)
	}
	return func(ctx context.Context, worker int) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return 1, conns[worker%len(conns)].Invoke(ctx, "/etcdserverpb.KV/Put", puts[worker], &emptypb.Empty{})
	}, end, nil
}
