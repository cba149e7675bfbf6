package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/coordinator/rest"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// drawn counts what a handler takes of its streams.
type drawn struct {
	grpc.ClientConnInterface
	bytes *atomic.Int64
}

func (d drawn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := d.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	return drawnStream{s, d.bytes}, err
}

type drawnStream struct {
	grpc.ClientStream
	bytes *atomic.Int64
}

func (d drawnStream) RecvMsg(m any) error {
	err := d.ClientStream.RecvMsg(m)
	if err == nil {
		d.bytes.Add(int64(proto.Size(m.(proto.Message))))
	}
	return err
}

// TestRESTAWatchThatNobodyReadsIsCut: a reader of events that takes nothing makes the coordinator
// hold what its connection holds and one event more, however much changes, and loses its place.
func TestRESTAWatchThatNobodyReadsIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connection, change = 8 << 10, 4000 // bytes
		w, _ := plain(t)
		var took atomic.Int64
		h := w.rest(t, by(principal.Principal{}), func(c *rest.Config) {
			as := c.As
			c.As = func(p principal.Principal, host string) (grpc.ClientConnInterface, func(), error) {
				conn, done, err := as(p, host)
				return drawn{conn, &took}, done, err
			}
		})
		lis := bufconn.Listen(connection)
		site := &http.Server{Handler: h}
		served := make(chan error, 1)
		go func() { served <- site.Serve(lis) }()
		c, err := lis.Dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET /v1/keyspaces/t/watch HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ks := w.root.state.KeyspaceByName("t").GetId()
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 2, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}}}})
		for i := range 500 {
			start := fmt.Sprintf("n%03d%s", i, strings.Repeat("x", change))
			w.must(t, publish(uint64(i+10), ks, start, start+"y", 2, "m2"))
			synctest.Wait()
		}
		if n := took.Load(); n > connection+2*2*change {
			t.Errorf("%d bytes of events were taken from the watch, and nobody reads", n)
		}
		time.Sleep(time.Minute)
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || len(got) == 0 || len(got) > connection+4<<10 {
			t.Errorf("%d bytes came behind the end, %v; want what the connection holds", len(got), err)
		}
		if n := took.Load(); n > connection+2*2*change {
			t.Errorf("%d bytes of events were taken from the watch until it was cut", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := site.Shutdown(ctx); err != nil {
			t.Errorf("a request is left: %v", err)
			_ = site.Close()
		}
		_ = c.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}
