package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// maxCopy is the most bytes of a slot that are taken from another node.
const maxCopy = 64 << 20

// node has the actors of its slots in memory. It implements member.Handler, Evicter, Preparer and
// Checkpointer.
type node struct {
	id, dir string
	http    *http.Client

	mu    sync.Mutex
	slots map[rooted.RegionID]*slot // that it owns; guarded by mu, as are the next two
	// coming are slots that are to be its own next, as far as they were copied.
	coming map[rooted.RegionID]*slot
	// left are slots that it released, for their next owners: what they were at the end. There are
	// never more than slots in all.
	left map[rooted.RegionID]*slot

	moved, file, fresh, actors atomic.Int64 // how slots began since they were told of
}

func newNode(id, dir string) *node {
	return &node{
		id: id, dir: dir, http: &http.Client{Timeout: 5 * time.Second},
		slots: map[rooted.RegionID]*slot{}, coming: map[rooted.RegionID]*slot{}, left: map[rooted.RegionID]*slot{},
	}
}

// slot is the state of the actors of one slot.
type slot struct {
	number uint64
	epoch  rooted.Epoch
	// began says what it was made of, to callers: an actor that lost something says so.
	began string
	from  string // the address that it was copied from

	mu    sync.Mutex
	state state    // guarded by mu
	files []string // checkpoints that may be there still, oldest first; of calls of the control plane
}

// state is what is copied, and what a checkpoint has.
type state struct {
	// Changes counts them since the slot was made.
	Changes uint64           `json:"changes"`
	Actors  map[string]actor `json:"actors"`
}

// actor is a counter. Changed is the change of its slot that was its last.
type actor struct {
	Value   int64  `json:"value"`
	Changed uint64 `json:"changed"`
}

// Prepare copies the actors while their owner serves them.
func (n *node) Prepare(ctx context.Context, r member.Region, from member.Peer) error {
	s := &slot{number: r.Slot(), from: from.Address}
	s.began = "moved from " + string(from.ID)
	if err := n.copy(ctx, s, r.ID, ""); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.coming[r.ID] = s
	return nil
}

// Abandon drops what was copied.
func (n *node) Abandon(_ context.Context, r member.Region) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.coming, r.ID)
	return nil
}

// Acquire goes on where the slot's frontier is, which names a checkpoint. What was copied before
// lacks only the last changes, which the owner before still has in memory; if it does not answer
// any more, the checkpoint has them too. After a crash the frontier is the last checkpoint that
// the control plane knows of, and what came behind it is lost.
func (n *node) Acquire(ctx context.Context, r member.Region) error {
	n.mu.Lock()
	s := n.coming[r.ID]
	delete(n.coming, r.ID)
	delete(n.left, r.ID)
	n.mu.Unlock()
	switch {
	case s != nil && n.copy(ctx, s, r.ID, r.Frontier) == nil:
		n.moved.Add(1)
	case r.Frontier == "":
		s = &slot{began: "anew", state: state{Actors: map[string]actor{}}}
		n.fresh.Add(1)
	default:
		s = &slot{began: "from checkpoint " + r.Frontier}
		path := n.path(r.Slot(), r.Frontier)
		if err := readFile(path, &s.state); err != nil {
			return fmt.Errorf("checkpoint of slot %d: %w: restore %s, or write {} there to have its actors begin anew", r.Slot(), err, path)
		}
		if s.state.Actors == nil { // that is what the file says
			s.state.Actors = map[string]actor{}
		}
		// An older one may stand there: a name has to say when something has changed behind it.
		s.state.Changes = max(s.state.Changes, changes(r.Frontier))
		n.file.Add(1)
	}
	s.number, s.epoch = r.Slot(), r.Epoch
	if r.Frontier != "" {
		s.files = []string{r.Frontier}
	}
	n.actors.Add(int64(len(s.state.Actors)))
	n.mu.Lock()
	n.slots[r.ID] = s
	n.mu.Unlock()
	return nil
}

// Release saves the slot, and keeps it for the next owner. No call is let in any more.
func (n *node) Release(_ context.Context, r member.Region) ([]byte, error) {
	n.mu.Lock()
	s := n.slots[r.ID]
	n.mu.Unlock()
	frontier, err := n.save(s, r.Frontier)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	delete(n.slots, r.ID)
	n.left[r.ID] = s
	n.mu.Unlock()
	return frontier, nil
}

// Evict drops a slot that is another's.
func (n *node) Evict(_ context.Context, r member.Region) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.slots, r.ID)
	return nil
}

// Checkpoint saves a slot while it is served.
func (n *node) Checkpoint(_ context.Context, r member.Region) ([]byte, error) {
	n.mu.Lock()
	s := n.slots[r.ID]
	n.mu.Unlock()
	return n.save(s, r.Frontier)
}

// save writes a checkpoint and returns its name, which is the frontier. A name has the epoch in it:
// what an owner that was replaced still writes is named by no frontier, and read by nobody. Files
// go when the rooted frontier is past them.
func (n *node) save(s *slot, rooted string) ([]byte, error) {
	s.mu.Lock()
	name := fmt.Sprintf("%s-%d", s.epoch, s.state.Changes)
	if len(s.files) > 0 && changes(s.files[len(s.files)-1]) == s.state.Changes {
		name = s.files[len(s.files)-1] // nothing has changed
	}
	raw, err := json.Marshal(s.state)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if len(s.files) == 0 || s.files[len(s.files)-1] != name {
		if err := writeFile(n.path(s.number, name), raw); err != nil {
			return nil, err
		}
		s.files = append(s.files, name)
	}
	for len(s.files) > 1 && changes(s.files[0]) < changes(rooted) {
		if err := os.Remove(n.path(s.number, s.files[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		s.files = s.files[1:]
	}
	return []byte(name), nil
}

// changes are those that a checkpoint has, by its name.
func changes(name string) (n uint64) {
	var e rooted.Epoch
	_, _ = fmt.Sscanf(name, "%d.%d-%d", &e.Version, &e.ConfVersion, &n)
	return n
}

func (n *node) path(slot uint64, name string) string {
	return filepath.Join(n.dir, "checkpoints", fmt.Sprintf("%04d", slot), name+".json")
}

// copy brings a slot up to what another node has of it: of a slot that it released exactly what
// its frontier says.
func (n *node) copy(ctx context.Context, s *slot, id rooted.RegionID, frontier string) error {
	q := url.Values{"since": {fmt.Sprint(s.state.Changes)}, "frontier": {frontier}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/slots/%d?%s", s.from, id, q.Encode()), nil)
	if err != nil {
		return err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("copy slot %d from %s: %s", s.number, s.from, resp.Status)
	}
	var rest state
	limited := &io.LimitedReader{R: resp.Body, N: maxCopy}
	switch err := json.NewDecoder(limited).Decode(&rest); {
	case err != nil && limited.N == 0:
		return fmt.Errorf("copy slot %d from %s: it has more than %d MiB, and moves by its checkpoint", s.number, s.from, maxCopy>>20)
	case err != nil:
		return fmt.Errorf("copy slot %d from %s: %w", s.number, s.from, err)
	}
	if s.state.Actors == nil {
		s.state.Actors = map[string]actor{}
	}
	for name, a := range rest.Actors {
		s.state.Actors[name] = a
	}
	s.state.Changes = rest.Changes
	return nil
}

// since is what has changed behind a number of changes.
func (s *slot) since(behind uint64) state {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := state{Changes: s.state.Changes, Actors: map[string]actor{}}
	for name, a := range s.state.Actors {
		if a.Changed > behind {
			some.Actors[name] = a
		}
	}
	return some
}

// reply is what an actor answers.
type reply struct {
	Actor string `json:"actor"`
	Value int64  `json:"value"`
	Node  string `json:"node"`
	Slot  uint64 `json:"slot"`
	Began string `json:"began"`
}

// routes are what a node is asked: actors by callers, slots by other nodes.
func (n *node) routes(m *member.Member) http.Handler {
	mux := http.NewServeMux()
	call := func(add int64) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			var epoch rooted.Epoch // without one the call is for whoever has the slot here, as of curl
			if text := req.Header.Get(router.HeaderEpoch); text != "" {
				var err error
				if epoch, err = router.ParseEpoch(text); err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
			}
			said := reply{Actor: req.PathValue("name"), Node: n.id}
			err := m.Do(req.Context(), member.Request{Keyspace: keyspace, Key: []byte(said.Actor), Epoch: epoch}, func(_ context.Context, r member.Region) error {
				n.mu.Lock()
				s := n.slots[r.ID]
				n.mu.Unlock()
				if s == nil { // evicted meanwhile: nothing was run
					return &member.NotOwned{Region: r.ID, Keyspace: keyspace}
				}
				said.Slot, said.Began, said.Value = r.Slot(), s.began, s.add(said.Actor, add)
				return nil
			})
			if no := router.RefusalOf(err); no != nil {
				no.WriteHTTP(w)
				return
			} else if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			answer(w, said)
		}
	}
	mux.HandleFunc("GET /actors/{name}", call(0))
	mux.HandleFunc("POST /actors/{name}/add", call(1))
	mux.HandleFunc("GET /slots/{region}", func(w http.ResponseWriter, req *http.Request) {
		id, err := strconv.ParseUint(req.PathValue("region"), 10, 64)
		behind, bad := strconv.ParseUint(req.FormValue("since"), 10, 64)
		if err = errors.Join(err, bad); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		frontier := req.FormValue("frontier")
		n.mu.Lock()
		s := n.slots[rooted.RegionID(id)]
		if frontier != "" {
			s = n.left[rooted.RegionID(id)]
		}
		n.mu.Unlock()
		if s == nil || frontier != "" && s.files[len(s.files)-1] != frontier {
			http.Error(w, "the slot is not here as it is asked for", http.StatusNotFound)
			return
		}
		answer(w, s.since(behind))
	})
	return mux
}

// add changes an actor, and returns its value.
func (s *slot) add(name string, by int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.state.Actors[name]
	if by != 0 {
		s.state.Changes++
		a = actor{Value: a.Value + by, Changed: s.state.Changes}
		s.state.Actors[name] = a
	}
	return a.Value
}

// tell says each second how slots began.
func (n *node) tell(ctx context.Context) {
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n.mu.Lock()
		owned := len(n.slots)
		n.mu.Unlock()
		moved, file, fresh, actors := n.moved.Swap(0), n.file.Swap(0), n.fresh.Swap(0), n.actors.Swap(0)
		if moved+file+fresh > 0 {
			fmt.Printf("%d slots: %d came with their actors, %d begin again from a checkpoint, %d anew; %d actors\n", owned, moved, file, fresh, actors)
		}
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a caller that is gone needs no answer
}

func readFile(path string, to any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, to)
}

// writeFile writes a file as a whole, durably.
func writeFile(path string, raw []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "*.new")
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
