package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/rooted"
)

var vocabulary = strings.Fields("the root keeps what is durable and coordinators keep what is not a member owns regions and says so under an epoch")

// words are those of a text. Bytes that are no UTF-8 are counted as the sign for that: a checkpoint
// is JSON, which has no others.
func words(text []byte) iter.Seq[string] {
	return strings.FieldsSeq(strings.ToValidUTF8(string(text), "\uFFFD"))
}

// produce adds lines to the input of the partition of their key. Which that is takes no call: it
// is the slot of the key, which any program can compute.
func produce(ctx context.Context, dir string, lines int, rate float64) error {
	inputs := make([]*os.File, partitions)
	for i := range inputs {
		var err error
		if inputs[i], err = os.OpenFile(inputPath(dir, uint64(i)), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644); err != nil {
			return err
		}
		defer inputs[i].Close()
	}
	begun := time.Now()
	for i := 0; lines == 0 || i < lines; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(begun.Add(time.Duration(float64(i) / rate * float64(time.Second))))):
		}
		key := fmt.Appendf(nil, "user-%d", rand.IntN(1000))
		line := []string{string(key)}
		for range 1 + rand.IntN(8) {
			line = append(line, vocabulary[rand.IntN(len(vocabulary))])
		}
		if _, err := fmt.Fprintln(inputs[rooted.Slot(partitions, key)], strings.Join(line, " ")); err != nil {
			return err
		}
	}
	return nil
}

// totals are what was counted in all partitions, by their last checkpoints, and what there is
// to count up to the same offsets: to be exact is to have both the same.
type totals struct {
	Read, Written int64 // bytes
	Words         uint64
	Wrong         []string // words whose count is not what the input has
	Top           []string
}

func (t totals) String() string {
	s := fmt.Sprintf("%d words in checkpoints, of %d of %d bytes", t.Words, t.Read, t.Written)
	if len(t.Wrong) > 0 {
		return s + "; WRONG: " + strings.Join(t.Wrong, ", ")
	}
	return s + "; all counts are exact; most: " + strings.Join(t.Top, ", ")
}

func total(dir string) (t totals, err error) {
	if _, err := os.Stat(dir); err != nil { // that is not the same as an input with nothing in it
		return t, err
	}
	sum := map[string]uint64{}
	for n := range uint64(partitions) {
		s, _, err := newest(dir, n)
		if err != nil {
			return t, err
		}
		input, err := os.ReadFile(inputPath(dir, n))
		if err != nil && !os.IsNotExist(err) {
			return t, err
		}
		if int64(len(input)) < s.Offset {
			return t, tooShort(inputPath(dir, n), int64(len(input)), s.Offset)
		}
		t.Read, t.Written = t.Read+s.Offset, t.Written+int64(len(input))
		want := map[string]uint64{}
		for word := range words(input[:s.Offset]) {
			want[word]++
		}
		for word, n := range s.Counts {
			sum[word] += n
			t.Words += n
		}
		if !maps.Equal(s.Counts, want) {
			t.Wrong = append(t.Wrong, fmt.Sprintf("partition %d has %v, not %v", n, s.Counts, want))
		}
	}
	words := slices.SortedFunc(maps.Keys(sum), func(a, b string) int { return int(sum[b]) - int(sum[a]) })
	for _, word := range words[:min(len(words), 5)] {
		t.Top = append(t.Top, fmt.Sprintf("%s %d", word, sum[word]))
	}
	return t, nil
}
