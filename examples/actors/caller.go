package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/router"
)

// calling is how many callers there are. Each has actors of its own, so that it knows what they
// should answer.
const calling = 16

// callers call actors and compare what they answer with what they were told.
type callers struct {
	router *router.Router
	http   *http.Client
	actors []called
	now    counts // of the second under way
	all    counts
}

// called is what its caller knows of an actor.
type called struct {
	name  string
	value int64
	maybe int64 // calls without an answer, which may have been run
}

// counts are of calls. Lost are changes that an actor answered to and does not know any more;
// wrong are answers that no order of the calls explains.
type counts struct {
	done, failed, lost, wrong, longest atomic.Int64
}

func newCallers(r *router.Router, actors int) *callers {
	c := &callers{router: r, http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: calling}}, actors: make([]called, actors)}
	for i := range c.actors {
		c.actors[i].name = fmt.Sprintf("actor-%d", i)
	}
	return c
}

// run calls at a rate until ctx ends.
func (c *callers) run(ctx context.Context, rate float64, say func(string)) {
	var all sync.WaitGroup
	defer c.http.CloseIdleConnections()
	defer all.Wait()
	pace := time.Duration(calling * float64(time.Second) / rate)
	for w := range calling {
		all.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for i := w; ; i += calling {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if i >= len(c.actors) {
					i = w
				}
				c.one(ctx, &c.actors[i])
			}
		})
	}
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			say(c.now.line(&c.all))
		}
	}
}

// one calls an actor. A call that may have been run is not made again: it would count twice.
func (c *callers) one(ctx context.Context, a *called) {
	begun := time.Now()
	var said reply
	err := c.router.Do(ctx, []byte(a.name), router.Options{ReassignOrphans: true, Hold: 30 * time.Second}, func(ctx context.Context, t router.Target) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.Address+"/actors/"+url.PathEscape(a.name)+"/add", nil)
		if err != nil {
			return err
		}
		req.Header.Set(router.HeaderEpoch, t.Epoch.String())
		resp, err := c.http.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if no := router.FromHTTP(resp); no != nil {
			return no
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answered %s", t.Member, resp.Status)
		}
		return json.NewDecoder(resp.Body).Decode(&said)
	})
	if ctx.Err() != nil {
		return
	}
	took := int64(time.Since(begun))
	for was := c.now.longest.Load(); was < took && !c.now.longest.CompareAndSwap(was, took); was = c.now.longest.Load() {
	}
	if err != nil {
		c.now.failed.Add(1)
		a.maybe++
		return
	}
	c.now.done.Add(1)
	switch {
	case said.Value <= a.value:
		c.now.lost.Add(a.value + 1 - said.Value)
	case said.Value > a.value+1+a.maybe:
		c.now.wrong.Add(1)
	}
	a.value, a.maybe = said.Value, 0
}

// line is what a second was like; it is added to all.
func (n *counts) line(all *counts) string {
	done, failed, lost, longest := n.done.Swap(0), n.failed.Swap(0), n.lost.Swap(0), time.Duration(n.longest.Swap(0))
	all.done.Add(done)
	all.failed.Add(failed)
	all.lost.Add(lost)
	all.wrong.Add(n.wrong.Swap(0))
	if all.longest.Load() < int64(longest) {
		all.longest.Store(int64(longest))
	}
	return fmt.Sprintf("%d calls a second, %d without an answer, longest %v; in all %d calls, %d without an answer, %d changes lost, %d answers wrong",
		done, failed, longest.Round(time.Millisecond), all.done.Load(), all.failed.Load(), all.lost.Load(), all.wrong.Load())
}
