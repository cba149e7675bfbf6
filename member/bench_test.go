package member_test

import (
	"context"
	"testing"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
)

// BenchmarkDo is a request from the caller's call on: by region, and by key.
func BenchmarkDo(b *testing.B) {
	cluster, c, end := exampleCluster()
	defer end()
	m, err := member.New(member.Config{ID: "worker-1", Address: "10.0.0.7:7000", Client: c})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx, &app{}) }()
	defer func() {
		stop()
		<-ended
	}()
	grant(cluster, own(17, 3))
	if err := cluster.Await(ctx, "worker-1", func(r fakecoordinator.Reported) bool { return r.Phase(17) == serving }); err != nil {
		b.Fatal(err)
	}
	serve := func(context.Context, member.Region) error { return nil }
	for name, q := range map[string]member.Request{
		"region": {Region: 17, Epoch: epoch(3)},
		"key":    {Keyspace: "games", Key: []byte("k17"), Epoch: epoch(3)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := m.Do(ctx, q, serve); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
