package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

// counter counts the words of the partitions that a worker owns. It implements member.Handler,
// Evicter and Checkpointer.
type counter struct {
	id, dir string

	mu    sync.Mutex
	parts map[rooted.RegionID]*partition // guarded by mu
}

func newCounter(id, dir string) *counter {
	return &counter{id: id, dir: dir, parts: map[rooted.RegionID]*partition{}}
}

// partition is one that is owned: what was counted up to an offset of its input.
type partition struct {
	number uint64
	epoch  rooted.Epoch
	input  *os.File
	stop   context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	state state // guarded by mu
}

// state is a checkpoint: the counts and the offset are one, which is why no word is counted twice
// and none is left out, whoever reads on from there.
type state struct {
	Offset int64             `json:"offset"`
	Counts map[string]uint64 `json:"counts"`
}

// Acquire goes on where the last checkpoint is. What the control plane was told to be counted
// has to be in the input at least: else this is not the folder that it was counted in.
func (c *counter) Acquire(_ context.Context, r member.Region) error {
	p := &partition{number: r.Slot(), epoch: r.Epoch}
	var err error
	var at rooted.Epoch
	if p.state, at, err = newest(c.dir, p.number); err != nil {
		return err
	}
	if at.NewerThan(p.epoch) { // what is counted here nobody would read
		return fmt.Errorf("%s is of a later epoch than this worker's, %s: another one has the partition by now; or this is the folder of another cluster or keyspace: name one of its own, or remove its checkpoints, and all is counted again", checkpointPath(c.dir, p.number, at), p.epoch)
	}
	known := int64(0)
	if r.Frontier != "" {
		if known, err = strconv.ParseInt(r.Frontier, 10, 64); err != nil {
			return fmt.Errorf("frontier of partition %d: %w", p.number, err)
		}
	}
	if p.input, err = os.OpenFile(inputPath(c.dir, p.number), os.O_RDONLY|os.O_CREATE, 0o644); err != nil {
		return err
	}
	from := p.state.Offset
	if err = p.check(c.dir, max(known, from)); err == nil {
		err = p.begin()
	}
	if err != nil {
		return errors.Join(err, p.input.Close())
	}
	fmt.Printf("partition %d at %s from offset %d\n", p.number, p.epoch, from)
	c.mu.Lock()
	c.parts[r.ID] = p
	c.mu.Unlock()
	return nil
}

// check looks whether the input still is the file that is read, and has what was counted of it.
func (p *partition) check(dir string, counted int64) error {
	opened, err := p.input.Stat()
	if err != nil {
		return err
	}
	path := inputPath(dir, p.number)
	there, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("the input is gone: %w: put it back, and start the worker again", err)
	case !os.SameFile(opened, there):
		return fmt.Errorf("%s was replaced while it was read: start the worker again", path)
	case there.Size() < counted:
		return tooShort(path, there.Size(), counted)
	}
	return nil
}

func tooShort(path string, size, counted int64) error {
	return fmt.Errorf("%s has %d bytes, and %d of it have been counted: it is only ever added to; put it back, or name the folder that it is in", path, size, counted)
}

// begin counts on from what was counted.
func (p *partition) begin() error {
	if _, err := p.input.Seek(p.state.Offset, io.SeekStart); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.done = stop, make(chan struct{})
	go p.run(ctx)
	return nil
}

// end ends what begin began.
func (p *partition) end() {
	p.stop()
	<-p.done
}

// run counts lines as they come.
func (p *partition) run(ctx context.Context) {
	defer close(p.done)
	var half []byte // of a line that is being written
	for in := bufio.NewReader(p.input); ctx.Err() == nil; {
		part, err := in.ReadSlice('\n')
		half = append(half, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			again := 10 * time.Millisecond
			if !errors.Is(err, io.EOF) {
				fmt.Printf("partition %d is not counted on until it can be read: %v\n", p.number, err)
				again = time.Second
			}
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
			continue
		}
		p.mu.Lock()
		p.state.Offset += int64(len(half))
		for word := range words(half) {
			p.state.Counts[word]++
		}
		p.mu.Unlock()
		half = half[:0]
	}
}

// Checkpoint makes durable what was counted. Counting goes on beside it, and nobody waits for
// the other workers.
func (c *counter) Checkpoint(_ context.Context, r member.Region) ([]byte, error) {
	return c.part(r).save(c.dir)
}

// Release stops and saves: the next owner counts on without reading a line twice. What cannot be
// saved is counted on here, until it is asked for again.
func (c *counter) Release(_ context.Context, r member.Region) ([]byte, error) {
	p := c.part(r)
	p.end()
	offset, err := p.save(c.dir)
	if err != nil {
		return nil, errors.Join(err, p.begin())
	}
	c.forget(r, p)
	fmt.Printf("partition %d is let go\n", p.number)
	return offset, nil
}

// Evict stops. The partition is another's, who has read the checkpoint before: what was counted
// since then is dropped here, and counted there.
func (c *counter) Evict(_ context.Context, r member.Region) error {
	p := c.part(r)
	p.end()
	c.forget(r, p)
	fmt.Printf("partition %d was lost\n", p.number)
	return nil
}

func (c *counter) part(r member.Region) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parts[r.ID]
}

func (c *counter) forget(r member.Region, p *partition) {
	c.mu.Lock()
	delete(c.parts, r.ID)
	c.mu.Unlock()
	_ = p.input.Close()
}

// save writes a checkpoint. It has the epoch in its name: one of an owner before, who was stopped
// and goes on, does not replace that of the owner now.
func (p *partition) save(dir string) ([]byte, error) {
	p.mu.Lock()
	raw, err := json.Marshal(p.state)
	offset := p.state.Offset
	p.mu.Unlock()
	if err = errors.Join(err, p.check(dir, offset)); err != nil {
		return nil, err
	}
	path := checkpointPath(dir, p.number, p.epoch)
	if err := writeFile(path, raw); err != nil {
		return nil, err
	}
	if err := removeOlder(dir, p.number, p.epoch); err != nil {
		fmt.Printf("partition %d: older checkpoints stay: %v\n", p.number, err)
	}
	return strconv.AppendInt(nil, offset, 10), nil
}

// saved is a checkpoint in the folder.
type saved struct {
	path    string
	epoch   rooted.Epoch
	written bool // as a whole
}

// checkpoints are those of a partition.
func checkpoints(dir string, number uint64) (all []saved, err error) {
	prefix := fmt.Sprintf("p%03d.", number)
	entries, err := os.ReadDir(filepath.Join(dir, "checkpoints"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		var at rooted.Epoch
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if n, _ := fmt.Sscanf(rest, "%d.%d.json", &at.Version, &at.ConfVersion); ok && n == 2 {
			all = append(all, saved{filepath.Join(dir, "checkpoints", e.Name()), at, !strings.HasSuffix(rest, ".new")})
		}
	}
	return all, nil
}

// newest is the checkpoint of the highest epoch, and that epoch.
func newest(dir string, number uint64) (s state, epoch rooted.Epoch, err error) {
	for {
		all, err := checkpoints(dir, number)
		path := ""
		for _, c := range all {
			if c.written && (path == "" || c.epoch.NewerThan(epoch)) {
				path, epoch = c.path, c.epoch
			}
		}
		if err != nil || path == "" {
			return state{Counts: map[string]uint64{}}, epoch, err
		}
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile: there is a newer one
		}
		if err != nil {
			return s, epoch, err
		}
		s = state{}
		if err = json.Unmarshal(raw, &s); err == nil {
			again, _ := json.Marshal(s) // as save writes it
			if s.Offset < 0 || s.Counts == nil || !bytes.Equal(again, raw) {
				err = errors.New("it is not counts up to an offset, or of a later version")
			}
		}
		if err != nil {
			return s, epoch, fmt.Errorf("checkpoint %s is damaged: %w: remove it, and the partition is counted from the one before", path, err)
		}
		return s, epoch, nil
	}
}

// removeOlder removes the checkpoints of epochs before this one, whose own is durable, but for the
// one before it, in case this one is damaged. Whoever comes next reads this one, or a newer one; an
// owner that was replaced finds none to remove but those that it replaced itself. What a crash leaves
// here is removed with the next checkpoint.
func removeOlder(dir string, number uint64, epoch rooted.Epoch) error {
	all, err := checkpoints(dir, number)
	all = slices.DeleteFunc(all, func(c saved) bool { return !epoch.NewerThan(c.epoch) })
	var before rooted.Epoch
	for _, c := range all {
		if c.written && c.epoch.NewerThan(before) {
			before = c.epoch
		}
	}
	for _, c := range all {
		if c.written && c.epoch == before {
			continue
		}
		if e := os.Remove(c.path); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func checkpointPath(dir string, number uint64, e rooted.Epoch) string {
	return filepath.Join(dir, "checkpoints", fmt.Sprintf("p%03d.%d.%d.json", number, e.Version, e.ConfVersion))
}

func inputPath(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("input-%03d.log", number))
}

// writeFile replaces a file as a whole, durably. It makes its folder, and none above that.
func writeFile(path string, raw []byte) error {
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new")
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
