package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// PD that somebody else runs: ids by a call each, timestamps merged onto one
// stream, as its own client does. Messages are written by hand, with the field
// numbers of pdpb, so that its client stays out of this module.

const pdService = "/pdpb.PD/"

// maxPDBatch is the most callers whose timestamps are asked for together.
const maxPDBatch = 10_000

// raw is a message of the fields given: those of unknown numbers are kept as they are.
func raw(fields []byte) *emptypb.Empty {
	m := &emptypb.Empty{}
	m.ProtoReflect().SetUnknown(fields)
	return m
}

// field finds a field of a message: its bytes, or its number.
func field(message []byte, want protowire.Number) (b []byte, n uint64) {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil, 0
		}
		message = message[size:]
		size = protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return nil, 0
		}
		if number == want {
			switch kind {
			case protowire.BytesType:
				b, _ = protowire.ConsumeBytes(message)
			case protowire.VarintType:
				n, _ = protowire.ConsumeVarint(message)
			}
			return b, n
		}
		message = message[size:]
	}
	return nil, 0
}

// pdRequest has a header, which names the cluster, and a count.
func pdRequest(cluster uint64, count uint64) *emptypb.Empty {
	header := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), cluster)
	b := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), header)
	return raw(protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), count))
}

// pdError is what the header of a reply says is wrong.
func pdError(reply []byte) error {
	header, _ := field(reply, 1)
	if wrong, _ := field(header, 2); len(wrong) > 0 {
		words, _ := field(wrong, 2)
		return fmt.Errorf("PD: %s", words)
	}
	return nil
}

// preparePD finds PD's leader by any of its members.
func (c *Config) preparePD(ctx context.Context, addr string) (work, func(), error) {
	member, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	defer member.Close()
	ask, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	reply := &emptypb.Empty{}
	if err := member.Invoke(ask, pdService+"GetMembers", &emptypb.Empty{}, reply); err != nil {
		return nil, nil, fmt.Errorf("ask PD at %s for its leader: %w", addr, err)
	}
	members := reply.ProtoReflect().GetUnknown()
	header, _ := field(members, 1)
	_, cluster := field(header, 1)
	leader, _ := field(members, 3)
	url, _ := field(leader, 4)
	_, address, found := strings.Cut(string(url), "://")
	if !found || cluster == 0 {
		return nil, nil, fmt.Errorf("PD at %s has no leader", addr)
	}
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	if c.Workload == "tso" {
		return c.pdTimestamps(ctx, cc, cluster)
	}
	n := uint64(c.Batch)
	return func(ctx context.Context, _ int) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		reply := &emptypb.Empty{}
		if err := cc.Invoke(ctx, pdService+"AllocID", pdRequest(cluster, n), reply); err != nil {
			return 0, err
		}
		return n, pdError(reply.ProtoReflect().GetUnknown())
	}, func() { _ = cc.Close() }, nil
}

// pdTimestamps merges what waits into the next request of one stream.
func (c *Config) pdTimestamps(ctx context.Context, cc *grpc.ClientConn, cluster uint64) (work, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, pdService+"Tso")
	if err != nil {
		cancel()
		return nil, nil, errors.Join(err, cc.Close())
	}
	each := uint64(c.Batch)
	asks := make(chan chan error, c.Concurrency)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var waiting []chan error
			select {
			case first := <-asks:
				waiting = append(waiting, first)
			case <-ctx.Done():
				return
			}
			for more := true; more && len(waiting) < maxPDBatch; {
				select {
				case next := <-asks:
					waiting = append(waiting, next)
				default:
					more = false
				}
			}
			err := pdBatch(stream, cluster, each*uint64(len(waiting)))
			for _, w := range waiting {
				w <- err
			}
		}
	}()
	answers := make([]chan error, c.Concurrency)
	for i := range answers {
		answers[i] = make(chan error, 1)
	}
	return func(ctx context.Context, worker int) (uint64, error) {
		select {
		case asks <- answers[worker]:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		select {
		case err := <-answers[worker]:
			return each, err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}, func() { cancel(); <-ended; _ = cc.Close() }, nil
}

func pdBatch(stream grpc.ClientStream, cluster, count uint64) error {
	if err := stream.SendMsg(pdRequest(cluster, count)); err != nil {
		return err
	}
	reply := &emptypb.Empty{}
	if err := stream.RecvMsg(reply); err != nil {
		return err
	}
	return pdError(reply.ProtoReflect().GetUnknown())
}
