package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"syscall"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/test/size"
)

// truth is what one state of a workdir must hold.
type truth struct {
	// log[i] is entry i+1, from the beginning of time; entries behind the
	// base are nil when only a checkpoint knew them.
	log        []*raftpb.Entry
	hard       *raftpb.HardState
	commit     uint64 // lowest commit index allowed
	checkpoint uint64
	compacted  uint64
	identity   bool
}

func (m truth) appended(hs *raftpb.HardState, es []*raftpb.Entry) truth {
	if hs != nil {
		m.hard, m.commit = hs, hs.GetCommit()
	}
	if len(es) > 0 {
		keep := es[0].GetIndex() - 1
		m.log = append(m.log[:keep:keep], es...)
	}
	return m
}

// diary records what was acknowledged and what was under way.
type diary struct {
	acked, maybe truth
}

// step runs one operation: until it returns, both outcomes are possible.
func (d *diary) step(next truth, op func() error) error {
	d.maybe = next
	if err := op(); err != nil {
		return err
	}
	d.acked = next
	return nil
}

// scenario drives a workdir through every kind of operation and stops at the
// first error.
func scenario(f *disk.Fake, d *diary, incoming []byte) (err error) {
	s, err := storage.Open(workdir, onFake(f))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, failStop(s, err))
		}
	}()
	add := func(hs *raftpb.HardState, es []*raftpb.Entry) error {
		return d.step(d.acked.appended(hs, es), func() error { return s.Append(hs, es, true) })
	}
	with := func(change func(*truth)) truth {
		next := d.acked
		change(&next)
		return next
	}
	steps := []func() error{
		func() error {
			return d.step(with(func(m *truth) { m.identity = true }), func() error { return s.SaveIdentity(identity) })
		},
		func() error { return add(hard(1, 2, 0), nil) },
		func() error { return add(hard(1, 2, 0), entries(1, 4, 1, 30)) },
		s.Maintain,
		func() error { // a commit index alone: not durable, not written
			next := with(func(m *truth) { m.hard = hard(1, 2, 3) })
			d.maybe = next
			err := s.Append(hard(1, 2, 3), nil, false)
			d.acked = next
			return err
		},
		func() error { return add(nil, entries(4, 9, 1, 300)) }, // several sectors
		func() error { return add(nil, entries(9, 12, 1, 700)) },
		func() error { return add(hard(2, 3, 9), entries(11, 14, 2, 100)) }, // replaces 11
		func() error { return add(nil, entries(14, 18, 2, 2000)) },          // larger than a segment
		s.Maintain,
		func() error {
			return d.step(with(func(m *truth) { m.checkpoint = 9 }), func() error { return s.WriteCheckpoint(meta(9, 1), yieldRecords(9)) })
		},
		func() error {
			return d.step(with(func(m *truth) { m.compacted = 9 }), func() error { return s.Compact(9) })
		},
		func() error { return add(hard(2, 3, 17), entries(18, 20, 2, 600)) },
		func() error {
			return d.step(with(func(m *truth) { m.checkpoint = 17 }), func() error { return s.WriteCheckpoint(meta(17, 2), yieldRecords(17)) })
		},
		func() error {
			return d.step(with(func(m *truth) { m.compacted = 17 }), func() error { return s.Compact(17) })
		},
		s.Maintain, // reuses a spent segment
		func() error { return add(hard(3, 3, 17), entries(20, 23, 3, 900)) },
		func() error { return add(nil, entries(23, 25, 3, 900)) },
		func() error {
			m, err := s.ReceiveCheckpoint(bytes.NewReader(incoming))
			if err != nil {
				return err
			}
			return d.step(with(func(m *truth) {
				m.log, m.checkpoint, m.compacted = make([]*raftpb.Entry, 40), 40, 40
				m.commit, m.hard = 40, hard(5, 0, 40)
			}), func() error { return s.InstallCheckpoint(m) })
		},
		func() error { return add(hard(6, 1, 41), entries(41, 43, 6, 200)) },
		s.Maintain, // retires what the install left
		s.Close,
		func() (err error) {
			s, err = storage.Open(workdir, onFake(f))
			return err
		},
		func() error { return add(hard(6, 1, 42), entries(43, 45, 6, 200)) },
		func() error { return s.Close() },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// failStop checks that a failed storage does nothing any more.
func failStop(s *storage.Storage, cause error) error {
	if s == nil || errors.Is(cause, storage.ErrClosed) || errors.As(cause, new(*storage.NoRoomError)) {
		return nil
	}
	var failed *storage.FailedError
	last, _ := s.LastIndex()
	err := s.Append(nil, entries(last+1, last+2, 99, 0), true)
	if err == nil || !errors.As(err, &failed) && !errors.Is(err, storage.ErrClosed) {
		return fmt.Errorf("PROMISE BROKEN: after %w an append gave %v", cause, err)
	}
	return nil
}

// check compares a reopened workdir with what it may hold.
func check(s *storage.Storage, d *diary) error {
	errAcked := d.acked.check(s)
	if errAcked == nil {
		return nil
	}
	if err := d.maybe.check(s); err != nil {
		return fmt.Errorf("neither what was acknowledged (%w) nor what was under way (%w)", errAcked, err)
	}
	return nil
}

func (m truth) check(s *storage.Storage) error {
	id, ok := s.Identity()
	if ok != m.identity || ok && !reflect.DeepEqual(id, identity) {
		return fmt.Errorf("identity %v %+v", ok, id)
	}
	first, log, err := retainedLog(s)
	if err != nil {
		return err
	}
	if first > m.compacted+1 || first-1+uint64(len(log)) != uint64(len(m.log)) {
		return fmt.Errorf("log [%d, %d), want up to [%d, %d)", first, first+uint64(len(log)), m.compacted+1, len(m.log)+1)
	}
	for i, e := range log {
		if want := m.log[first-1+uint64(i)]; want != nil && !sameEntry(e, want) {
			return fmt.Errorf("entry %v, want %v", e, want)
		}
	}
	if err := m.checkHard(s); err != nil {
		return err
	}
	if c, ok := s.Checkpoint(); ok != (m.checkpoint > 0) || c.Index != m.checkpoint {
		return fmt.Errorf("checkpoint %+v, want %d", c, m.checkpoint)
	}
	if m.checkpoint == 0 {
		return nil
	}
	return checkCheckpoint(s, m.checkpoint)
}

func (m truth) checkHard(s *storage.Storage) error {
	got, conf, err := s.InitialState()
	if err != nil {
		return err
	}
	if m.identity && len(conf.GetVoters()) != 3 {
		return fmt.Errorf("voters %v", conf.GetVoters())
	}
	if got.GetTerm() != m.hard.GetTerm() || got.GetCommit() < m.commit || got.GetCommit() > uint64(len(m.log)) {
		return fmt.Errorf("hard state %v, want %v, commit from %d", got, m.hard, m.commit)
	}
	if got.GetVote() != m.hard.GetVote() && m.checkpoint < 40 {
		return fmt.Errorf("hard state %v, want %v", got, m.hard)
	}
	return nil
}

// survive reopens a workdir after a crash, checks it, appends, crashes again
// and checks again.
func survive(f *disk.Fake, d *diary, powerCut bool) error {
	for round := range 3 {
		s, err := storage.Open(workdir, onFake(f))
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if err := check(s, d); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		_, log, err := retainedLog(s)
		if err != nil {
			return err
		}
		first, _ := s.FirstIndex()
		c, _ := s.Checkpoint()
		_, has := s.Identity()
		got := truth{log: make([]*raftpb.Entry, first-1), checkpoint: c.Index, compacted: first - 1, identity: has}
		got.log = append(got.log, log...)
		last := uint64(len(got.log))
		next := got.appended(hard(uint64(50+round), 1, last), entries(last+1, last+3, uint64(50+round), 150))
		if err := s.Append(next.hard, next.log[last:], true); err != nil {
			return fmt.Errorf("round %d: append after the repair: %w", round, err)
		}
		d.acked, d.maybe = next, next
		if report, err := storage.Verify(workdir, onFake(f)); err != nil || len(report.Damage) > 0 {
			return fmt.Errorf("round %d: verify: %v %v", round, err, report.Damage)
		}
		if powerCut || round > 0 {
			f.Reboot()
		} else {
			f.Kill()
		}
	}
	return nil
}

var errIO = fmt.Errorf("injected: %w", syscall.EIO)

// faults are the ways one operation can go wrong.
func faults(op disk.Op) map[string]disk.Fault {
	all := map[string]disk.Fault{"error without effect": {Err: errIO}}
	if !op.Kind.Changes() {
		return all
	}
	all["error after effect"] = disk.Fault{Err: errIO, Effect: true}
	all["crash before"] = disk.Fault{Crash: true}
	all["crash after"] = disk.Fault{Crash: true, Effect: true}
	if op.Kind == disk.OpWrite && op.Len > disk.SectorBytes {
		all["short write"] = disk.Fault{Err: syscall.ENOSPC, Short: op.Len / 2}
		all["crash inside"] = disk.Fault{Crash: true, Short: op.Len/2 + 100}
	}
	return all
}

var crashSeeds = size.Int("crash.seeds", 1, 4, "what a crash leaves behind, so many times for each operation")

// TestCrashEnumeration fails and crashes at every disk operation of a life.
func TestCrashEnumeration(t *testing.T) {
	incoming := foreignCheckpoint(t, 40, 5)
	ops := scenarioOps(t, incoming)
	fired, reopened := 0, 0
	for n, op := range ops {
		for name, fault := range faults(op) {
			f := disk.NewFake(uint64(n))
			f.SetFault(func(op disk.Op) disk.Fault {
				if op.N == n+1 {
					fired++
					return fault
				}
				return disk.Fault{}
			})
			var d diary
			if err := scenario(f, &d, incoming); err == nil {
				if op.Kind.Changes() && op.Kind != disk.OpRemove && !disk.NoRoom(fault.Err) {
					t.Fatalf("op %d %v: %s: nobody noticed", n+1, op, name)
				}
			} else if errors.Is(err, io.EOF) || isDamage(err) || contains(err, "PROMISE BROKEN") {
				t.Fatalf("op %d %v: %s: %v", n+1, op, name, err)
			}
			for seed := range uint64(*crashSeeds) {
				for _, powerCut := range []bool{true, false} {
					g, e := f.Clone(seed), d
					if powerCut {
						g.Reboot()
					} else {
						g.Kill()
					}
					reopened++
					if err := survive(g, &e, powerCut); err != nil {
						t.Fatalf("op %d %v: %s: seed %d, power cut %v: %v", n+1, op, name, seed, powerCut, err)
					}
				}
			}
		}
	}
	if fired < len(ops) {
		t.Fatalf("%d faults fired in %d operations", fired, len(ops))
	}
	t.Logf("%d operations, %d faults, %d crashed workdirs reopened three times", len(ops), fired, reopened)
}

func contains(err error, s string) bool { return bytes.Contains([]byte(err.Error()), []byte(s)) }

func scenarioOps(t *testing.T, incoming []byte) []disk.Op {
	t.Helper()
	f := disk.NewFake(0)
	f.SetTrace(true)
	var d diary
	must(t, scenario(f, &d, incoming))
	return f.Trace()
}
