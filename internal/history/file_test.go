package history_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nokv/nokv/internal/history"
)

var recorded = []history.Call{
	{Client: "a", Endpoint: "127.0.0.1:1", Op: history.OpTSO, CallNS: 1, ReturnNS: 5, First: 100, Count: 2, Era: 1, Holder: "c1", Incarnation: 1<<64 - 1, WallMS: 7},
	{Client: "b", Op: history.OpID, CallNS: 2, First: 6, Count: 3, Era: 1},
	{Client: "b", Op: history.OpID, CallNS: 3},
	{Client: "b", Op: history.OpTSO, CallNS: 3, ReturnNS: 4, Err: "tenure not held"},
	{Client: "c", Op: history.OpRoute, CallNS: 3, ReturnNS: 4},
	{Client: "c", Op: history.OpPublish, CallNS: 5, ReturnNS: 8, Err: "deadline"},
}

func TestWrittenCallsAreReadBack(t *testing.T) {
	var file bytes.Buffer
	w := history.NewWriter(&file)
	for _, c := range recorded {
		if err := w.Write(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	got, err := history.Read(&file)
	if err != nil || !slices.Equal(got, recorded) {
		t.Fatalf("%v: %+v", err, got)
	}
	h := history.FromCalls(got)
	if len(h.Grants) != 2 {
		t.Fatalf("%d grants, want those of the two calls with values", len(h.Grants))
	}
	if g := h.Grants[0]; g.Mandate != tso || g.Last() != 101 || g.Called != 1 || g.Returned != 5 || g.Wall != 7 || g.Incarnation != 1<<64-1 {
		t.Errorf("%+v", g)
	}
	if g := h.Grants[1]; g.Mandate != ids || g.Returned != history.Never {
		t.Errorf("%+v", g)
	}
}

func TestWriterIsSafeForManyCallers(t *testing.T) {
	var file bytes.Buffer
	w := history.NewWriter(&file)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range uint64(500) {
				if err := w.Write(history.Call{Op: history.OpID, CallNS: 1, ReturnNS: 2, First: i + 1, Count: 1, Era: 1}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, err := history.Read(&file); err != nil || len(got) != 4000 {
		t.Fatalf("%d calls, %v", len(got), err)
	}
}

// A file that is not a history is refused by the line that is wrong.
func TestReadRefuses(t *testing.T) {
	const ok = `{"op":"id","call_ns":1,"return_ns":2,"first":1,"count":1,"era":1}` + "\n"
	for _, c := range []struct{ line, want string }{
		{`{"op":"id","call_ns":1,"return_ns":2,"first":1,"count":1,"era":1,"node":3}` + "\n", `unknown field "node"`},
		{`{"op":"idd","call_ns":1,"return_ns":2}` + "\n", `op is "idd"`},
		{`{"call_ns":1,"return_ns":2}` + "\n", `op is ""`},
		{`{"op":"id","call_ns":3,"return_ns":2}` + "\n", "called at 3 ns, returned at 2 ns"},
		{`{"op":"id","call_ns":1,"return_ns":2,"first":1,"count":1,"era":1,"err":"x"}` + "\n", "1 values with an error"},
		{`{"op":"id","call_ns":1,"return_ns":2,"first":1,"count":1}` + "\n", "needs first, count and era"},
		{`{"op":"tso","call_ns":1,"return_ns":2,"first":1,"era":1}` + "\n", "needs first, count and era"},
		{`{"op":"tso","call_ns":1,"first":18446744073709551615,"count":2,"era":1}` + "\n", "pass the end of 64 bits"},
		{`{"op":"id","call_ns":1,"return_ns":2,"first":-1}` + "\n", "first"},
		{strings.TrimSuffix(ok, "\n"), "is cut off"},
		{strings.TrimSuffix(ok, "\n") + ok, "more than one value"},
		{"\n", "EOF"},
		{`{"op":"id","client":"` + strings.Repeat("x", 70_000) + `"}` + "\n", "longer than"},
	} {
		_, err := history.Read(strings.NewReader(ok + c.line))
		if err == nil || !strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want line 2 and %q", c.line, err, c.want)
		}
	}
}

func TestWriterRefusesWhatReadWould(t *testing.T) {
	w := history.NewWriter(&bytes.Buffer{})
	if err := w.Write(history.Call{Op: "x"}); err == nil {
		t.Error("a call without a meaning was written")
	}
	if err := w.Write(history.Call{Op: history.OpID, Client: strings.Repeat("x", 70_000)}); err == nil {
		t.Error("a line that is too long was written")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("disk full")

func TestWriterKeepsItsError(t *testing.T) {
	w := history.NewWriter(full{})
	if err := w.Write(recorded[0]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Flush(); !errors.Is(err, errFull) {
			t.Error(err)
		}
	}
	if err := w.Write(recorded[0]); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

// Callers that do not know who replied still prove the eras.
func TestUnknownHolderIsNoContradiction(t *testing.T) {
	h := good()
	h.Grants[3].Holder, h.Grants[3].Incarnation = "", 0
	if v := h.Check(); len(v) != 0 {
		t.Error(v)
	}
}
