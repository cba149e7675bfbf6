package router_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/router"
)

// example is a router of a keyspace of two regions, from a coordinator in memory. Real
// programs need only
//
//	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7100", "10.0.0.2:7100"}})
//	r, err := router.New(router.Config{Client: c, Keyspaces: []string{"games"}})
//	go r.Run(ctx)
func example() (*router.Router, func()) {
	b, end := start(quiet{}, router.Config{})
	b.c.feed <- &coordinatorv1.WatchRegionsResponse{
		Token: at(5), Snapshot: true, Disclosure: b.c.says(), Changes: now(region(1, "", "m", 2, 1), region(2, "m", "", 2, 2)),
		Keyspaces: []*coordinatorv1.KeyspaceChange{{Keyspace: keyspace(1, "default")}},
		Members:   []*coordinatorv1.MemberChange{{Member: member(1, active)}, {Member: member(2, active)}},
	}
	if err := b.Wait(context.Background()); err != nil {
		panic(err)
	}
	return b.Router, end
}

// quiet is a test that does not fail.
type quiet struct{ testing.TB }

func (quiet) Helper()           {}
func (quiet) Error(args ...any) { panic(fmt.Sprint(args...)) }
func (quiet) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func ExampleRouter_Resolve() {
	r, end := example()
	defer end()
	t, err := r.Resolve(context.Background(), []byte("user/42"), router.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t.Member, "at", t.Address, "epoch", t.Epoch)
	// Output: m2 at 10.0.0.2:1 epoch 1.2
}

// An HTTP caller: what a member refuses leads to one more try at the right place.
func ExampleRouter_Do() {
	r, end := example()
	defer end()
	ctx, key := context.Background(), []byte("banana")
	err := r.Do(ctx, key, router.Options{}, func(ctx context.Context, t router.Target) error {
		resp, err := ask(ctx, t, key)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if no := router.FromHTTP(resp); no != nil {
			return no
		}
		fmt.Println(t.Member, "answered", resp.StatusCode)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// m1 refused: it is at m2
	// m2 answered 200
}

// ask is a request by HTTP, with the epoch in HeaderEpoch.
func ask(_ context.Context, t router.Target, _ []byte) (*http.Response, error) {
	if t.Member == "m1" {
		fmt.Println("m1 refused: it is at m2")
		h := http.Header{router.HeaderRefused: {"moved"}, router.HeaderAddress: {"10.0.0.2:1"}, router.HeaderMember: {"m2"}, router.HeaderEpoch: {"1.3"}}
		return &http.Response{StatusCode: http.StatusMisdirectedRequest, Header: h, Body: http.NoBody}, nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}
