package breadth_test

import (
	"slices"
	"testing"

	"github.com/nokv/nokv/internal/testing/breadth"
)

// Each world is found by its value, however many there are, and the way to it is the one
// that it was first reached by.
func TestGraph(t *testing.T) {
	type world struct{ a, b uint32 }
	const n = 100_000
	g := breadth.New[world]()
	for i := range uint32(n) {
		if !g.Visit(&world{i, i % 7}, int(i/2)) || g.Visit(&world{i, i % 7}, 0) {
			t.Fatalf("world %d is new once", i)
		}
	}
	for i := range n {
		if at, known := g.Find(&world{uint32(i), uint32(i % 7)}); !known || at != i || g.At(at).a != uint32(i) {
			t.Fatalf("world %d is found at %d: %v", i, at, known)
		}
	}
	if _, known := g.Find(&world{1, 2}); known || g.Len() != n {
		t.Errorf("%d worlds, and one that never came: %v", g.Len(), known)
	}
	var way []uint32
	for _, w := range g.Path(9) {
		way = append(way, w.a)
	}
	if !slices.Equal(way, []uint32{0, 1, 2, 4, 9}) {
		t.Errorf("the way to 9 is %v", way)
	}
}

// What is not only values is not hashed by its bytes.
func TestPadding(t *testing.T) {
	breadth.NewSet[struct {
		a [2]uint16
		b struct{ c, d bool }
		e int8
		f uint8
	}]()
	for name, f := range map[string]func(){
		"padding": func() {
			breadth.NewSet[struct {
				a, b uint16
				c    bool
			}]()
		},
		"a blank field": func() {
			breadth.NewSet[struct {
				a uint16
				_ uint16
			}]()
		},
		"a string":  func() { breadth.NewSet[struct{ a string }]() },
		"a pointer": func() { breadth.NewSet[*int]() },
		"two zeros": func() { breadth.NewSet[[2]float64]() },
		"a nested hole": func() {
			breadth.New[[2]struct {
				a uint32
				b uint8
			}]()
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: values are hashed by bytes that are not theirs", name)
				}
			}()
			f()
		}()
	}
}
