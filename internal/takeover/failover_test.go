package takeover_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/takeover"
)

// memberKilled is a failover: a verdict after 24 ms, everything done after 60.
func memberKilled() *takeover.Failover {
	const msec = time.Millisecond
	return &takeover.Failover{
		Round: takeover.Round{
			Action: takeover.Kill, Victim: takeover.Member, Victims: []string{"w1"}, Members: []string{"w1", "meta-root-1", "coordinator-c1"},
			Roots: []string{"meta-root-1"}, At: at, Gone: at + 5*msec, Until: at + 100*msec,
			Events: []takeover.Event{
				{At: 10 * msec, Who: "coordinator-c1", Kind: takeover.Serves, Number: 1},
				{At: at + 24*msec, Who: "coordinator-c1", Kind: takeover.Judges},
			},
		},
		Regions: 2, Rooted: at + 27*msec, Granted: at + 35*msec, Told: at + 60*msec, Learned: at + 50*msec,
		Lanes: []takeover.Ticks{{Name: "root: grants", Colour: 1, At: []time.Duration{at + 35*msec}}, {Name: "member w2", At: []time.Duration{at + 40*msec, at + 60*msec}}},
	}
}

func TestFailoverParts(t *testing.T) {
	f := memberKilled()
	check := func(want ...int) {
		t.Helper()
		sum := time.Duration(0)
		for i, p := range f.Parts() {
			if p.Name != takeover.FailoverParts[i] || p.Length() != time.Duration(want[i])*time.Millisecond {
				t.Errorf("part %d is %s of %s, want %s of %d ms", i, p.Name, p.Length(), takeover.FailoverParts[i], want[i])
			}
			sum += p.Length()
		}
		if sum != f.Done()-f.At {
			t.Errorf("the parts are %s together, the failover took %s", sum, f.Done()-f.At)
		}
	}
	check(5, 19, 3, 8, 25, 0)
	f.Learned, f.Gone = at+80*time.Millisecond, at+30*time.Millisecond // told of the end behind the verdict
	check(24, 0, 3, 8, 25, 20)
	f.Events = nil
	check(30, 0, 0, 5, 25, 20)
}

func TestFailoverIsDrawn(t *testing.T) {
	f := memberKilled()
	svg := f.Draw()
	if !bytes.Equal(svg, memberKilled().Draw()) {
		t.Error("the same failover has two pictures")
	}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, words := range []string{"kill -9 w1", "after 60.0 ms", "member w2", "root: grants", "verdict", "told 25.0 ms", "w1 (victim)"} {
		if !strings.Contains(string(svg), words) {
			t.Errorf("the picture does not say %q", words)
		}
	}
}
