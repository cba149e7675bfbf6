package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nokv/nokv/rooted"
)

// errReplaced says that a later owner of a board writes its record by now.
var errReplaced = errors.New("another core has the board by now, or this is the folder of another cluster, which needs one of its own")

// errRemoved says that what was written is in no folder any more.
var errRemoved = errors.New("it was removed while a core wrote it: put it back")

// record is where an owner of a board writes what became of it: a file of its own in the board's
// folder, named by its region and epoch, and by how often it acquired it at that, so that names are in
// the order of owners. A line is the board behind a move. A move is acknowledged when its line is on disk and the folder has
// no later file.
//
// So nothing acknowledged is lost, whatever pauses where: who comes later makes its file
// first and reads the others behind that. Of an owner before, it has read each line that was written
// before its file was there, and those that come behind that are acknowledged to nobody.
// This takes a folder that shows each process at once what another one did, as that of one machine.
type record struct {
	dir, name string
	file      *os.File
	// older are files of owners before, until this one says as much as they do.
	older []string
}

// openRecord begins the record of an owner, and returns the board as the owners before left it. It makes the board's
// folder, and none above that: what is gone has not to look like boards that nobody has played.
func openRecord(dir string, id rooted.RegionID, epoch rooted.Epoch) (_ *record, s State, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, s, err
	}
	r := &record{dir: dir}
	if r.name, err = nameOf(dir, fmt.Sprintf("%016x-%016x-%016x-", uint64(id), epoch.Version, epoch.ConfVersion)); err != nil {
		return nil, s, err
	}
	if err := r.isLast(); err != nil && !errors.Is(err, errRemoved) { // it is not there yet
		return nil, s, err
	}
	path := filepath.Join(dir, r.name)
	if r.file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return nil, s, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(), os.Remove(path))
		}
	}()
	if err := r.isLast(); err != nil {
		return nil, s, err
	}
	names, err := names(dir)
	if err != nil {
		return nil, s, err
	}
	r.older = names[:slices.Index(names, r.name)]
	for i := len(r.older) - 1; i >= 0 && s.Turn == 0; i-- {
		if s, err = last(filepath.Join(dir, r.older[i])); err != nil {
			return nil, s, err
		}
	}
	return r, s, r.write(s) // whoever comes next need not look further back
}

// add makes a move durable. After errReplaced nobody may be told of it; after another error it is
// not known what the file has.
func (r *record) add(s State) error {
	if err := r.write(s); err != nil {
		return err
	}
	if err := r.sync(); err != nil {
		return err
	}
	if err := r.isLast(); err != nil {
		return err
	}
	for _, name := range r.older {
		// One that is not there a later owner has removed, who has read this line.
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	r.older = nil
	return nil
}

// sync makes what was written durable, and with the first move, at the same time, the names of the
// file and its folder.
func (r *record) sync() error {
	if r.older == nil {
		return r.file.Sync()
	}
	names := make(chan error, 2)
	for _, dir := range []string{r.dir, filepath.Dir(r.dir)} {
		go func() { names <- syncDir(dir) }()
	}
	return errors.Join(r.file.Sync(), <-names, <-names)
}

func (r *record) write(s State) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(line, '\n'))
	return err
}

// nameOf is the next name of an owner. It has one already if it let go of the board for a move that was
// given up: then it acquires it again, at the same epoch.
func nameOf(dir, owner string) (string, error) {
	all, err := names(dir)
	if err != nil || len(all) == 0 || !strings.HasPrefix(all[len(all)-1], owner) {
		return fmt.Sprintf("%s%016x", owner, 0), err
	}
	times, err := strconv.ParseUint(all[len(all)-1][len(owner):], 16, 64)
	return fmt.Sprintf("%s%016x", owner, times+1), err
}

// isLast says whether its own file is there, and none that is later: if not, it is errRemoved or errReplaced.
func (r *record) isLast() error {
	all, err := names(r.dir)
	if err == nil && !slices.Contains(all, r.name) {
		all, err = names(r.dir) // a later owner has made its own before it removes this one
	}
	switch {
	case err != nil:
		return err
	case len(all) > 0 && all[len(all)-1] > r.name:
		return fmt.Errorf("%w: %s/%s is later than %s", errReplaced, r.dir, all[len(all)-1], r.name)
	case !slices.Contains(all, r.name):
		return fmt.Errorf("%s/%s: %w", r.dir, r.name, errRemoved)
	}
	return nil
}

func (r *record) close() error { return r.file.Close() }

var recordName = regexp.MustCompile("^[0-9a-f]{16}(-[0-9a-f]{16}){3}$")

// names are the records in a folder, of the first owner to the last.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // in the order of names
	all := []string{}
	for _, e := range entries {
		if recordName.MatchString(e.Name()) {
			all = append(all, e.Name())
		}
	}
	return all, err
}

// last is the last line that is whole: what is behind it was not acknowledged. No crash leaves a line that is whole
// and no board, but as the last one: any other is damage, and nobody knows what was behind it.
func last(path string) (s State, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(raw, []byte{'\n'})
		if !whole {
			return s, nil
		}
		next, err := parse(line)
		if err != nil && len(rest) == 0 && !json.Valid(line) {
			return s, nil
		}
		if err != nil {
			return s, fmt.Errorf("%s is damaged, line %d: %w: put it back as it was; or remove it, and the board is as the file before has it, or empty", path, n, err)
		}
		s, raw = next, rest
	}
}

// parse is a board of a line, which is as write writes it.
func parse(line []byte) (s State, err error) {
	if err := json.Unmarshal(line, &s); err != nil {
		return s, err
	}
	again, err := json.Marshal(s)
	if err == nil && (!bytes.Equal(again, line) || !s.sound()) {
		err = errors.New("it is no board of connect four, or of a later version")
	}
	return s, err
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
