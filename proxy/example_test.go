package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/nokv/nokv/proxy"
)

// A proxy whose keys are the second segment of paths. Real programs make the router with
// router.New, run it, and listen with an http.Server of their own.
func ExampleProxy_Lookup() {
	t := &quiet{}
	defer t.end()
	w := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "m0 answers ", r.URL.Path, " at epoch ", r.Header.Get("Nokv-Epoch"))
	}))
	key, err := proxy.Path("/tables/{key}/...")
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := proxy.New(proxy.Config{Router: w.router, Key: key})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	front := httptest.NewServer(p.Lookup())
	defer front.Close()
	for _, path := range []string{"/tables/birds/rows", "/elsewhere"} {
		resp, err := http.Get(front.URL + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			fmt.Println(string(body))
		} else {
			fmt.Println(resp.StatusCode, resp.Header.Get(proxy.HeaderReason))
		}
	}
	// Output:
	// m0 answers /tables/birds/rows at epoch 1.1
	// 400 invalid_request
}

// quiet is a test that does not fail.
type quiet struct {
	testing.TB
	done []func()
}

func (*quiet) Helper()                  {}
func (q *quiet) Cleanup(f func())       { q.done = append(q.done, f) }
func (*quiet) Context() context.Context { return context.Background() }
func (*quiet) Fatal(args ...any)        { panic(fmt.Sprint(args...)) }

func (q *quiet) end() {
	for i := len(q.done) - 1; i >= 0; i-- {
		q.done[i]()
	}
}
