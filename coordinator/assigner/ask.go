package assigner

import (
	"context"
	"sync"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// startProbes begins probes, in turn, as far as there is room.
func (a *Assigner) startProbes() {
	for len(a.probes) > 0 && a.probing < maxProbes {
		p := a.probes[0]
		a.probes = a.probes[1:]
		a.probing++
		a.count.add(func() { a.count.probes++ })
		ctx := a.eraCtx
		a.calls.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			result := a.cfg.Probe(ctx, p)
			a.deliver(func(now clock.Instant) {
				a.probing--
				a.mu.Lock()
				defer a.mu.Unlock()
				a.core.Probed(p, result, now)
			})
		})
	}
}

// startAsking puts the questions that wait to all other coordinators, one round at a
// time. A round takes half of what an answer may take, so that the next one has time.
func (a *Assigner) startAsking() {
	if a.asking || len(a.asked) == 0 {
		return
	}
	var members []state.MemberID
	n := 0
	for n < len(a.asked) && len(members)+len(a.asked[n].Members) <= maxAsked {
		members = append(members, a.asked[n].Members...)
		n++
	}
	questions := a.asked[:n]
	a.asked = a.asked[n:]
	var addresses []string
	a.st.Coordinators(func(c *rootv1.Coordinator) bool {
		if c.GetId() != string(a.cfg.ID) {
			addresses = append(addresses, c.GetAddress())
		}
		return len(addresses) < maxAskedCoordinators
	})
	a.asking = true
	era, ctx := a.era, a.eraCtx
	a.calls.Go(func() {
		words := a.askAll(ctx, addresses, members)
		a.deliver(func(now clock.Instant) {
			a.asking = false
			if a.era != era {
				return
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			for i, q := range questions {
				if i > 0 {
					words = nil // they are told
				}
				a.core.Told(q, words, now)
			}
		})
	})
}

const (
	// maxAsked is how many members are asked about at a time; a Question has
	// liveness.MaxBatch at most.
	maxAsked = 4 * liveness.MaxBatch
	// maxAskedCoordinators is how many others are asked: members have streams to few.
	maxAskedCoordinators = 64
)

// askAll asks all others at once. Who does not answer in time hears nobody.
func (a *Assigner) askAll(ctx context.Context, addresses []string, members []state.MemberID) []liveness.Word {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Settings.AskTime/2)
	defer cancel()
	var mu sync.Mutex
	var all []liveness.Word
	var open sync.WaitGroup
	for _, address := range addresses {
		open.Go(func() {
			words, err := a.cfg.Ask(ctx, address, members)
			if err != nil {
				a.log.Debug("another coordinator does not say whom it hears", "addr", address, "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, words...)
		})
	}
	open.Wait()
	return all
}
