package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

const (
	// writeWithin is how long a player may take to read what it is told.
	writeWithin = 5 * time.Second
	// maxMove is the most bytes of what a player says at a time.
	maxMove = 1 << 10
)

// core serves the boards that are its own. It implements member.Handler and member.Evicter.
type core struct {
	id, dir string
	// broken ends the process: what the disk has is not known any more.
	broken context.CancelCauseFunc

	mu     sync.Mutex
	boards map[rooted.RegionID]*board // guarded by mu
}

// board is one in the memory of its core.
type board struct {
	// writing is held while a move is judged and written: there is one at a time.
	writing sync.Mutex
	record  *record // nil: it has been let go of; guarded by writing

	mu      sync.Mutex
	state   State         // guarded by mu, as is changed
	changed chan struct{} // closed when there is another state
}

// longestName is the longest name of a board, in bytes, that names its folder: file systems have names
// of 255 bytes at most.
const longestName = 100

// folderOf is the name of a board's folder. A long name is in it as its hash, which is told by its
// dash from what is a name.
func folderOf(name string) string {
	if len(name) <= longestName {
		return hex.EncodeToString([]byte(name))
	}
	return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name)))
}

// Acquire reads a board, and begins the record of this owner.
func (c *core) Acquire(_ context.Context, r member.Region) error {
	rec, s, err := openRecord(filepath.Join(c.dir, folderOf(r.Start)), r.ID, r.Epoch)
	if err != nil {
		return err
	}
	if was, _ := strconv.Atoi(r.Frontier); s.Turn < was {
		return errors.Join(fmt.Errorf("board %q is at turn %d in %s, and the core before left it at %d: cores have to share one folder", r.Start, s.Turn, c.dir, was),
			rec.close(), os.Remove(filepath.Join(rec.dir, rec.name)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boards[r.ID] = &board{record: rec, state: s, changed: make(chan struct{})}
	return nil
}

// Release lets go of a board behind its last connection. The frontier is the turn that it is at.
func (c *core) Release(_ context.Context, r member.Region) ([]byte, error) {
	return strconv.AppendInt(nil, int64(c.drop(r.ID).Turn), 10), nil
}

// Evict drops a board that is another core's.
func (c *core) Evict(_ context.Context, r member.Region) error {
	c.drop(r.ID)
	return nil
}

func (c *core) drop(id rooted.RegionID) State {
	c.mu.Lock()
	b := c.boards[id]
	delete(c.boards, id)
	c.mu.Unlock()
	b.writing.Lock() // a move that is being written is written
	defer b.writing.Unlock()
	_ = b.record.close() // all that counts was synced
	b.record = nil
	s, _ := b.now()
	return s
}

// now is the board, and what is closed when it has changed.
func (b *board) now() (State, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.changed
}

// move judges a move, and makes it durable. errReplaced: it counts for nothing here.
func (c *core) move(b *board, m Move) (no, err error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	s, _ := b.now()
	next, no := s.play(m)
	switch {
	case b.record == nil:
		return nil, errReplaced
	case no != nil || next == s:
		return no, nil
	}
	if err := b.record.add(next); err != nil {
		if !errors.Is(err, errReplaced) {
			c.broken(fmt.Errorf("write a move: %w", err))
		}
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = next
	close(b.changed)
	b.changed = make(chan struct{})
	return nil, nil
}

// Message is what a core tells a player: the board whenever it has changed, and beside it why a
// move was refused. A move is acknowledged by a board whose turn is its own, or later.
type Message struct {
	State
	// Core and PID are who says so.
	Core    string `json:"core"`
	PID     int    `json:"pid"`
	Refused string `json:"refused,omitempty"`
}

// routes are what a core is asked by the proxy: GET /boards/KEY is the board, and with an upgrade to WebSocket a
// connection of a player.
func (c *core) routes(m *member.Member) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /boards/{key}", func(w http.ResponseWriter, req *http.Request) {
		var epoch rooted.Epoch // without one the request is for whoever has the board here
		if text := req.Header.Get(router.HeaderEpoch); text != "" {
			var err error
			if epoch, err = router.ParseEpoch(text); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		var player *websocket.Conn
		defer func() {
			if player != nil { // the board is let go of first, so that no player holds it up
				_ = player.Close(websocket.StatusServiceRestart, "the board is elsewhere: connect again")
			}
		}()
		err := m.Do(req.Context(), member.Request{Keyspace: keyspace, Key: []byte(req.PathValue("key")), Epoch: epoch}, func(ctx context.Context, r member.Region) (err error) {
			c.mu.Lock()
			b := c.boards[r.ID]
			c.mu.Unlock()
			if b == nil { // dropped meanwhile: nothing was run
				return &member.NotOwned{Region: r.ID, Keyspace: keyspace}
			}
			if req.Header.Get("Upgrade") == "" {
				s, _ := b.now()
				w.Header().Set("Content-Type", "application/json")
				return json.NewEncoder(w).Encode(c.message(s, nil))
			}
			if player, err = websocket.Accept(w, req, nil); err == nil {
				c.serve(ctx, player, b, r.Leaving())
			}
			return nil // what was wrong with the upgrade has been answered
		})
		switch no := router.RefusalOf(err); {
		case player != nil:
		case no != nil:
			no.WriteHTTP(w)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

func (c *core) message(s State, no error) Message {
	m := Message{State: s, Core: c.id, PID: os.Getpid()}
	if no != nil {
		m.Refused = no.Error()
	}
	return m
}

// serve is a connection of a player, until it ends or the board leaves. The board is a level: who
// reads slowly is told the last one.
func (c *core) serve(ctx context.Context, player *websocket.Conn, b *board, leaving <-chan struct{}) {
	player.SetReadLimit(maxMove)
	moves, stop := make(chan Move), make(chan struct{})
	defer close(stop)
	go func() { // ends with the connection
		defer close(moves)
		for {
			var m Move
			if wsjson.Read(context.WithoutCancel(ctx), player, &m) != nil {
				return
			}
			select {
			case moves <- m:
			case <-stop:
			}
		}
	}()
	told := -1
	for {
		s, changed := b.now()
		if s.Turn != told {
			if tell(ctx, player, c.message(s, nil)) != nil {
				return
			}
			told = s.Turn
		}
		select {
		case <-leaving:
			return
		case <-changed:
		case m, ok := <-moves:
			if !ok {
				return
			}
			no, err := c.move(b, m)
			if err != nil {
				return
			}
			if s, _ := b.now(); no != nil || s.Turn == told { // refused, or said again
				if tell(ctx, player, c.message(s, no)) != nil {
					return
				}
				told = s.Turn
			}
		}
	}
}

func tell(ctx context.Context, player *websocket.Conn, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	return wsjson.Write(ctx, player, m)
}
