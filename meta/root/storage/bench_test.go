package storage_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// BenchmarkAppend appends batches of entries of 100 bytes, each batch synced.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []uint64{1, 64, 1000} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			s, err := storage.Open(b.TempDir(), storage.Options{})
			must(b, err)
			go func() { _ = s.Run(b.Context()) }()
			next := uint64(1)
			batch := entries(next, next+n, 1, 100)
			b.SetBytes(int64(n) * 100)
			b.ReportAllocs()
			for b.Loop() {
				for i, e := range batch {
					index := next + uint64(i)
					e = entry(index, 1, "")
					e.Data = batch[i].Data
					batch[i] = e
				}
				if err := s.Append(nil, batch, true); err != nil {
					b.Fatal(err)
				}
				next += n
			}
			b.ReportMetric(float64(next-1)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

// BenchmarkRecover opens a workdir of 1,000,000 entries of 100 bytes.
func BenchmarkRecover(b *testing.B) {
	const n, batch = 1_000_000, 1000
	dir := b.TempDir()
	s, err := storage.Open(dir, storage.Options{})
	must(b, err)
	for i := uint64(1); i < n; i += batch {
		must(b, s.Append(hard(1, 1, i-1), entries(i, i+batch, 1, 100), true))
	}
	must(b, s.Close())
	b.ResetTimer()
	for range b.N {
		s, err := storage.Open(dir, storage.Options{})
		must(b, err)
		if last, _ := s.LastIndex(); last != n {
			b.Fatalf("last index %d", last)
		}
		b.StopTimer()
		must(b, s.Close())
		b.StartTimer()
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkCheckpoint writes, reads and receives 200,000 records.
func BenchmarkCheckpoint(b *testing.B) {
	const n = 200_000
	record := &rootv1.Record{Kind: &rootv1.Record_Region{Region: &rootv1.Region{
		Id: 12345, KeyspaceId: 1, StartKey: []byte("key-000012345"), EndKey: []byte("key-000012346"),
		Epoch: &rootv1.RegionEpoch{Version: 3, ConfVersion: 2}, Revision: 99999,
	}}}
	s, err := storage.Open(b.TempDir(), storage.Options{})
	must(b, err)
	must(b, s.Append(hard(1, 1, 1000), entries(1, 1001, 1, 10), true))
	index := uint64(0)
	wire := encoded(record)
	write := func(b *testing.B) {
		index++
		must(b, s.WriteCheckpoint(meta(index, 1), func(yield func([]byte) error) error {
			for range n {
				if err := yield(wire); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	write(b)
	c, _ := s.Checkpoint()
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(c.Bytes))
		for b.Loop() {
			write(b)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(c.Bytes))
		for b.Loop() {
			_, err := s.ReadCheckpoint(func([]byte) error { return nil })
			must(b, err)
		}
	})
	b.Run("receive", func(b *testing.B) {
		in, _, err := s.OpenCheckpoint()
		must(b, err)
		raw, err := io.ReadAll(in)
		must(b, err)
		must(b, in.Close())
		other, err := storage.Open(b.TempDir(), storage.Options{})
		must(b, err)
		b.SetBytes(int64(c.Bytes))
		for b.Loop() {
			_, err := other.ReceiveCheckpoint(bytes.NewReader(raw))
			must(b, err)
		}
	})
}
