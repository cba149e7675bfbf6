package main

import (
	"context"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

// oneAnswers is how long one of several coordinators that are asked may take.
const oneAnswers = 2 * time.Second

// answerOf is what one coordinator said.
type answerOf[T any] struct {
	address string
	said    T
	err     error
}

// askEach asks all coordinators at once, those configured and those registered in the root, so that
// those that hang cost oneAnswers together. The answers are in the order of addresses.
func askEach[T any](ctx context.Context, cl *client.Client, ask func(ctx context.Context, address string) (T, error)) []answerOf[T] {
	_ = cl.Discover(ctx) // who is not found is not asked; the configured ones are
	addresses := cl.Endpoints()
	ctx, cancel := context.WithTimeout(ctx, oneAnswers)
	defer cancel()
	answers := make([]answerOf[T], len(addresses))
	var asking sync.WaitGroup
	for i, address := range addresses {
		asking.Go(func() {
			said, err := ask(ctx, address)
			answers[i] = answerOf[T]{address, said, err}
		})
	}
	asking.Wait()
	return answers
}
