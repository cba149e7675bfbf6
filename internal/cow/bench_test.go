package cow_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nokv/nokv/internal/cow"
)

const benchSize = 1_000_000

func benchKey(i int) string { return fmt.Sprintf("user/%09d", i) }

// benchKeys are keys at random, and the numbers of their values.
func benchKeys() (keys []cow.Key, numbers []int) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1 << 16 {
		n := r.IntN(benchSize)
		keys, numbers = append(keys, cow.Key{Group: 1, Text: benchKey(n)}), append(numbers, n)
	}
	return keys, numbers
}

// BenchmarkIndex measures an Index of a million values, by a random key each.
func BenchmarkIndex(b *testing.B) {
	x := cow.NewIndex(keyOf)
	values := make([]*item, benchSize)
	for i := range values {
		values[i] = &item{cow.Key{Group: 1, Text: benchKey(i)}, i}
		x.Set(values[i])
	}
	keys, numbers := benchKeys()
	at := func(i int) int { return i & (len(keys) - 1) }
	b.Run("Floor", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			x.Floor(keys[at(i)])
		}
	})
	b.Run("Floors", func(b *testing.B) {
		var found [32]*item
		for i := 0; b.Loop(); i++ {
			if from := at(i); from%len(found) == 0 {
				x.Floors(keys[from:from+len(found)], found[:])
			}
		}
	})
	b.Run("Set", func(b *testing.B) {
		b.ReportAllocs()
		y := x.Fork()
		for i := 0; b.Loop(); i++ {
			y.Set(values[numbers[at(i)]])
		}
	})
	b.Run("Set, Fork", func(b *testing.B) {
		b.ReportAllocs()
		y := x.Fork()
		for i := 0; b.Loop(); i++ {
			y.Set(values[numbers[at(i)]])
			y.Fork()
		}
	})
	b.Run("Delete, Set, Fork", func(b *testing.B) {
		b.ReportAllocs()
		y := x.Fork()
		for i := 0; b.Loop(); i++ {
			y.Delete(keys[at(i)])
			y.Set(values[numbers[at(i)]])
			y.Fork()
		}
	})
}

// BenchmarkMap is BenchmarkIndex with a Map.
func BenchmarkMap(b *testing.B) {
	m := cow.New[string, *item]()
	for i := range benchSize {
		m.Set(benchKey(i), &item{cow.Key{}, i})
	}
	keys, _ := benchKeys()
	v := &item{}
	at := func(i int) int { return i & (len(keys) - 1) }
	b.Run("Floor", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			m.Descend(keys[at(i)].Text, func(string, *item) bool { return false })
		}
	})
	b.Run("Set", func(b *testing.B) {
		b.ReportAllocs()
		y := m.Fork()
		for i := 0; b.Loop(); i++ {
			y.Set(keys[at(i)].Text, v)
		}
	})
	b.Run("Set, Fork", func(b *testing.B) {
		b.ReportAllocs()
		y := m.Fork()
		for i := 0; b.Loop(); i++ {
			y.Set(keys[at(i)].Text, v)
			y.Fork()
		}
	})
	b.Run("Delete, Set, Fork", func(b *testing.B) {
		b.ReportAllocs()
		y := m.Fork()
		for i := 0; b.Loop(); i++ {
			y.Delete(keys[at(i)].Text)
			y.Set(keys[at(i)].Text, v)
			y.Fork()
		}
	})
}
