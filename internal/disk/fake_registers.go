package disk

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// FakeRegisters are named values in one file of a Fake. A Put is one
// operation: all of it is durable on return, and a crash inside keeps all of
// it or nothing. They stand for a transactional store on the same disk.
type FakeRegisters struct {
	fake *Fake
	boot int
	path string
}

// OpenRegisters opens registers and makes their file when missing. The file
// is durable on return.
func (f *Fake) OpenRegisters(path string) (*FakeRegisters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &FakeRegisters{fake: f, boot: f.boot, path: path}
	if f.lookupLocked(path) != nil {
		return r, f.doLocked(f.boot, Op{Kind: OpOpen, Name: path}, func() error { return nil })
	}
	return r, f.doLocked(f.boot, Op{Kind: OpCreate, Name: path}, func() error {
		return r.storeLocked(map[string][]byte{})
	})
}

// ReadRegisters returns all values of registers.
func (f *Fake) ReadRegisters(path string) (map[string][]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &FakeRegisters{fake: f, boot: f.boot, path: path}
	var values map[string][]byte
	err := f.doLocked(f.boot, Op{Kind: OpRead, Name: path}, func() (err error) {
		values, err = r.loadLocked()
		return err
	})
	return values, err
}

// Get returns a copy of a value, nil when it was never put.
func (r *FakeRegisters) Get(key string) (value []byte, err error) {
	r.fake.mu.Lock()
	defer r.fake.mu.Unlock()
	err = r.fake.doLocked(r.boot, Op{Kind: OpRead, Name: r.path}, func() error {
		values, err := r.loadLocked()
		value = slices.Clone(values[key])
		return err
	})
	return value, err
}

// Put changes values, all or none.
func (r *FakeRegisters) Put(values map[string][]byte) error {
	r.fake.mu.Lock()
	defer r.fake.mu.Unlock()
	return r.fake.doLocked(r.boot, Op{Kind: OpPut, Name: r.path}, func() error {
		all, err := r.loadLocked()
		if err != nil {
			return err
		}
		maps.Copy(all, values)
		return r.storeLocked(all)
	})
}

// Close ends the use of the registers.
func (r *FakeRegisters) Close() error { return nil }

func (r *FakeRegisters) loadLocked() (map[string][]byte, error) {
	n := r.fake.lookupLocked(r.path)
	if n == nil {
		return nil, fmt.Errorf("registers %s are gone", r.path)
	}
	values := map[string][]byte{}
	if err := json.Unmarshal(n.cache, &values); err != nil {
		return nil, fmt.Errorf("registers %s: %w", r.path, err)
	}
	return values, nil
}

func (r *FakeRegisters) storeLocked(values map[string][]byte) error {
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	dir, base, err := r.fake.parentLocked(r.path)
	if err != nil {
		return err
	}
	n := newFile()
	n.cache, n.platter = text, slices.Clone(text)
	dir.names[base], dir.durable[base] = n, n
	return nil
}
