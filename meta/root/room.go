package root

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/storage"
)

const (
	// roomEvery is the time between two questions for the room on the disk.
	roomEvery = 10 * time.Second
	// roomWarnsEvery is the time between two warnings while there is too little.
	roomWarnsEvery = time.Hour
)

// roomWatch warns of a disk that fills before it ends the peer.
type roomWatch struct {
	ask   func() (storage.Room, error)
	clock clock.Clock
	log   hclog.Logger
	last  atomic.Pointer[storage.Room]
	// Owned by Run. failed: the file system does not tell.
	low, failed bool
	warnedAt    clock.Instant
}

// room is the newest answer; zero before the first one.
func (w *roomWatch) room() storage.Room {
	if last := w.last.Load(); last != nil {
		return *last
	}
	return storage.Room{}
}

// Run asks until ctx ends.
func (w *roomWatch) Run(ctx context.Context) error {
	ticker := time.NewTicker(roomEvery)
	defer ticker.Stop()
	for {
		w.step()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (w *roomWatch) step() {
	room, err := w.ask()
	if err != nil {
		if !w.failed {
			w.log.Warn("the file system does not tell how much room the disk has: nothing warns before it is full", "err", err)
		}
		w.failed = true
		return
	}
	w.failed = false
	w.last.Store(&room)
	now := w.clock.Now()
	switch low := room.Low(); {
	case low != "" && (!w.low || now.Sub(w.warnedAt) >= roomWarnsEvery):
		w.low, w.warnedAt = true, now
		w.log.Warn("the disk is nearly full: make room, a full disk ends this peer", "room", low)
	case low == "" && w.low:
		w.low = false
		w.log.Info("the disk has enough room again", "free_mib", room.Free>>20)
	}
}
