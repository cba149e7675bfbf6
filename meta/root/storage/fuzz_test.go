package storage_test

import (
	"bytes"
	"errors"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

// FuzzRecoverSegment writes anything anywhere into a log. It opens with a
// prefix of what was written, not shorter than what was marked, or is refused.
func FuzzRecoverSegment(f *testing.F) {
	base := disk.NewFake(1)
	s, err := storage.Open(workdir, onFake(base))
	must(f, err)
	log := entries(1, 13, 1, 500)
	for i := range 6 {
		must(f, s.Append(hard(1, 1, uint64(2*i)), log[2*i:2*i+2], true))
		if i == 3 {
			must(f, s.Maintain())
		}
	}
	base.Kill()
	closed := base.Clone(2)
	s, err = storage.Open(workdir, onFake(closed))
	must(f, err)
	must(f, s.Close())
	names, err := base.ReadDir(workdir + "/root.events.wal")
	must(f, err)
	f.Add(uint8(0), uint16(512), []byte("x"), false)
	f.Add(uint8(1), uint16(530), []byte{0, 0, 0, 0}, false)
	f.Add(uint8(1), uint16(1536), make([]byte, 600), false)
	f.Add(uint8(2), uint16(8), []byte{2}, true)
	f.Add(uint8(2), uint16(2048), bytes.Repeat([]byte{0xff}, 2000), false)
	f.Fuzz(func(t *testing.T, file uint8, off uint16, data []byte, clean bool) {
		g, least := base.Clone(3), uint64(8)
		if clean {
			g, least = closed.Clone(3), 12
		}
		name := walPath + names[int(file)%len(names)]
		st, err := g.Stat(name)
		must(t, err)
		at := int64(off) % st.Size
		data = data[:min(int64(len(data)), st.Size-at)]
		if len(data) > 0 {
			rewrite(t, g, name, at, at+int64(len(data)), func(b []byte) { copy(b, data) })
		}
		s, err := storage.Open(workdir, onFake(g))
		if err != nil {
			var v *storage.VersionError
			if !isDamage(err) && !errors.As(err, &v) {
				t.Fatalf("neither opened nor damaged: %v", err)
			}
			return
		}
		_, got, err := retainedLog(s)
		must(t, err)
		if uint64(len(got)) < least || len(got) > len(log) {
			t.Fatalf("%d entries, want %d to %d", len(got), least, len(log))
		}
		for i, e := range got {
			if !sameEntry(e, log[i]) {
				t.Fatalf("entry %v, want %v", e, log[i])
			}
		}
		must(t, s.Close())
	})
}

// FuzzCheckpoint receives anything. What is accepted can be installed and read.
func FuzzCheckpoint(f *testing.F) {
	good := foreignCheckpoint(f, 40, 5)
	f.Add(good)
	f.Add(good[:80])
	f.Add(append(bytes.Clone(good[:64]), 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := storage.Open(workdir, onFake(disk.NewFake(1)))
		must(t, err)
		m, err := s.ReceiveCheckpoint(bytes.NewReader(data))
		if err != nil {
			must(t, s.Append(hard(1, 1, 0), entries(1, 2, 1, 0), true))
			return
		}
		if m.Index == 0 {
			return
		}
		must(t, s.InstallCheckpoint(m))
		got, err := s.ReadCheckpoint(func([]byte) error { return nil })
		if err != nil || got != m {
			t.Fatalf("received %+v, read %+v: %v", m, got, err)
		}
	})
}

// FuzzCrashThenAppend appends as told, crashes as told, and must find what was
// acknowledged and go on.
func FuzzCrashThenAppend(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 4, 5}, uint16(30), uint64(1), true)
	f.Add([]byte{255, 255, 9, 9, 0, 128, 7}, uint16(45), uint64(2), false)
	f.Add(bytes.Repeat([]byte{77}, 40), uint16(70), uint64(3), true)
	f.Fuzz(func(t *testing.T, script []byte, crashAt uint16, seed uint64, powerCut bool) {
		script = script[:min(len(script), 200)]
		g := disk.NewFake(seed)
		g.SetFault(func(op disk.Op) disk.Fault {
			return disk.Fault{Crash: op.N == int(crashAt), Effect: seed%2 == 0, Short: int64(seed % 5000)}
		})
		var d diary
		if s, err := storage.Open(workdir, onFake(g)); err == nil {
			runScript(s, &d, script)
		}
		if powerCut {
			g.Reboot()
		} else {
			g.Kill()
		}
		if err := survive(g, &d, powerCut); err != nil {
			t.Fatal(err)
		}
	})
}

// runScript appends by the bytes of a script until something fails.
func runScript(s *storage.Storage, d *diary, script []byte) {
	for i, b := range script {
		term := uint64(i + 1)
		last := uint64(len(d.acked.log))
		first := last + 1 - min(uint64(b>>6), last) // takes up to three back
		var es []*raftpb.Entry
		if b%8 != 0 {
			es = entries(first, first+uint64(b%8), term, int(b)*8)
		}
		next := d.acked.appended(hard(term, uint64(b%3), 0), es)
		if d.step(next, func() error { return s.Append(next.hard, es, true) }) != nil {
			return
		}
		if b%5 == 0 && s.Maintain() != nil {
			return
		}
	}
}
