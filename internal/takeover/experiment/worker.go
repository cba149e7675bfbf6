package experiment

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/rooted"
)

// worker is a member that hosts regions: a process, and what it said.
type worker struct {
	id      rooted.MemberID
	args    []string
	self    string
	log     string
	process *procs.Process

	// read is how much of the log has been, part what of it had no end.
	read int64
	part []byte
	// starts counts its processes, held is what the newest one has, by region, served
	// when it acquired what, in order.
	starts int
	held   map[uint64]string
	served []served
	let    []served // go of
}

// served is a region that was acquired, or let go of.
type served struct {
	at     time.Duration
	region uint64
	epoch  string
}

func newWorker(dir, self string, id rooted.MemberID, coordinators string) *worker {
	return &worker{
		id: id, self: self, log: filepath.Join(dir, string(id)+".log"), held: map[uint64]string{},
		// Of all keyspaces the strictest settings would hold: also those of "default".
		args: []string{"worker", "--id", string(id), "--keyspaces", hostedKeyspace, "--coordinator-addr", coordinators, "--noise", "0", "--step", "0s", "-o", "json"},
	}
}

func (w *worker) startProcess() (err error) {
	w.process, err = procs.Start(procs.Options{Name: string(w.id), Path: w.self, Args: w.args, Env: []string{"NOKV_CERTS="}, Log: w.log})
	return err
}

// said is a line of `nokv worker -o json`.
type said struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"`
	Address string    `json:"address"`
	Region  uint64    `json:"region"`
	Epoch   string    `json:"epoch"`
}

// listen reads what was said since. hear is told of every line of which it is one.
func (w *worker) listen(hear func(said)) error {
	f, err := os.Open(w.log)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(w.read, io.SeekStart); err != nil {
		return err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	w.read += int64(len(raw))
	w.part = append(w.part, raw...)
	for {
		line, rest, whole := bytes.Cut(w.part, []byte("\n"))
		if !whole {
			return nil
		}
		w.part = rest
		var s said
		if json.Unmarshal(line, &s) == nil && s.Event != "" {
			hear(s)
		}
	}
}

// owners finds out whether two processes act for one region at one epoch, by what they say.
type owners struct {
	by     map[string]string
	broken []string
}

const maxBroken = 100

// acquired notes who says so.
func (o *owners) acquired(who string, region uint64, epoch string) {
	key := fmt.Sprint(region, "@", epoch)
	if other, taken := o.by[key]; taken && other != who && len(o.broken) < maxBroken {
		o.broken = append(o.broken, fmt.Sprintf("region %d at epoch %s was acquired by %s and by %s", region, epoch, other, who))
	}
	o.by[key] = who
}

// hear takes in what the worker said.
func (w *worker) hear(start time.Time, o *owners) error {
	return w.listen(func(s said) {
		switch s.Event {
		case "starts":
			w.starts++
			clear(w.held)
		case "acquired":
			w.held[s.Region] = s.Epoch
			w.served = append(w.served, served{s.Time.Sub(start), s.Region, s.Epoch})
			o.acquired(fmt.Sprintf("process %d of %s", w.starts, w.id), s.Region, s.Epoch)
		case "released", "lost":
			delete(w.held, s.Region)
			w.let = append(w.let, served{s.Time.Sub(start), s.Region, s.Epoch})
		}
	})
}

// handedOver finds regions that somebody acquired before whoever had them had let go: in
// words. It is for workers that are alive all the time.
func handedOver(workers []*worker) (broken []string) {
	type turn struct {
		served
		who    rooted.MemberID
		begins bool
	}
	by := map[uint64][]turn{}
	for _, w := range workers {
		for _, s := range w.let {
			by[s.region] = append(by[s.region], turn{s, w.id, false})
		}
	}
	for _, w := range workers {
		for _, s := range w.served {
			by[s.region] = append(by[s.region], turn{s, w.id, true})
		}
	}
	for _, region := range slices.Sorted(maps.Keys(by)) {
		turns := by[region]
		slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Compare(a.at, b.at) }) // who let go comes first, as it was added
		has := rooted.MemberID("")
		for _, t := range turns {
			switch {
			case !t.begins && t.who == has:
				has = ""
			case t.begins && has != "" && has != t.who && len(broken) < maxBroken:
				broken = append(broken, fmt.Sprintf("region %d was acquired by %s while %s had it", region, t.who, has))
				has = t.who
			case t.begins:
				has = t.who
			}
		}
	}
	return broken
}

// since is what it acquired from a moment on, as it says itself.
func (w *worker) since(at time.Duration) []served {
	i := len(w.served)
	for i > 0 && w.served[i-1].at >= at {
		i--
	}
	return w.served[i:]
}
