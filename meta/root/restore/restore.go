// Package restore makes the state that a checkpoint holds.
//
// It owns nothing. It promises that a state is the one that its checkpoint was
// made of, by position and hash, or an error; and that it has ended all it began.
// What bytes are whole is storage's to say, which records make a state is state's.
package restore

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
)

// ahead is how many chunks are read before they are needed, for each processor.
const ahead = 2

var errStopped = errors.New("reading stopped")

// part is a chunk that is decoded while those before it are taken.
type part struct {
	packed  []byte
	decoded *state.Part
	err     error
	done    chan struct{} // closed when decoded or err is set
}

// State reads the checkpoint that want describes and builds its state, on all
// processors. read is as Storage.ReadCheckpoint.
func State(want storage.CheckpointMeta, read func(fn func(packed []byte) error) (storage.CheckpointMeta, error)) (*state.State, error) {
	st, err := build(want, read)
	if err != nil {
		return nil, fmt.Errorf("restore checkpoint at %d: %w", want.Index, err)
	}
	return st, nil
}

func build(want storage.CheckpointMeta, read func(fn func(packed []byte) error) (storage.CheckpointMeta, error)) (*state.State, error) {
	processors := runtime.GOMAXPROCS(0)
	parts, work := make(chan *part, ahead*processors), make(chan *part)
	stop := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	defer close(stop)
	for range processors {
		running.Go(func() {
			for p := range work {
				p.decoded, p.err = state.DecodePart(p.packed)
				p.packed = nil
				close(p.done)
			}
		})
	}
	var got storage.CheckpointMeta
	var failed error
	running.Go(func() {
		defer close(parts)
		defer close(work)
		got, failed = read(func(packed []byte) error {
			p := &part{packed: packed, done: make(chan struct{})}
			select {
			case parts <- p:
				work <- p
				return nil
			case <-stop:
				return errStopped
			}
		})
	})
	r := state.NewRestoring()
	for p := range parts {
		<-p.done
		if p.err == nil {
			p.err = r.Add(p.decoded)
		}
		if p.err != nil {
			return nil, p.err
		}
	}
	if failed != nil {
		return nil, failed
	}
	if got.Index != want.Index || got.Term != want.Term || got.StateHash != want.StateHash {
		return nil, fmt.Errorf("another one was read: %+v, wanted is %+v", got, want)
	}
	return r.Finish(state.Token{Incarnation: want.ClusterIncarnation, Term: want.Term, Index: want.Index}, want.StateHash)
}
