package evenness

import (
	"fmt"
	"time"
)

// Line is how something went over time.
type Line struct {
	Name string
	// Colour is before, after or other.
	Colour string
	At     []time.Duration
	Y      []float64
}

// Measures of a diagram.
const (
	lineLeft, lineRight = 70, width - 30
	lineBottom          = 430
)

// Lines draws how things went over time; unit is the word for their height.
func Lines(title, subtitle, unit string, lines []Line) []byte {
	most, end := 1.0, time.Duration(1)
	for _, l := range lines {
		for i, y := range l.Y {
			most, end = max(most, y), max(end, l.At[i])
		}
	}
	c := begin(lineBottom+80, unit+" over time", title, subtitle)
	x := func(at time.Duration) float64 { return lineLeft + float64(at)/float64(end)*(lineRight-lineLeft) }
	y := func(v float64) float64 { return lineBottom - v/most*(lineBottom-top) }
	for _, v := range ticks(most) {
		c.line(lineLeft, y(v), lineRight, y(v), "l-grid")
		c.text(lineLeft-8, y(v)+4, "c-dim small", Number(v), "end")
	}
	step := stepOf(end)
	for at := time.Duration(0); at <= end; at += step {
		c.line(x(at), lineBottom, x(at), lineBottom+5, "l-grid")
		c.text(x(at), lineBottom+20, "c-dim small", clock(at), "middle")
	}
	var entries [][2]string
	for _, l := range lines {
		c.printf(`<path class="l-%s thick" d="`, l.Colour)
		for i, at := range l.At {
			letter := 'L'
			if i == 0 {
				letter = 'M'
			}
			c.printf("%c%.1f %.1f", letter, x(at), y(l.Y[i]))
		}
		c.WriteString("\"/>\n")
		entries = append(entries, [2]string{l.Colour, l.Name})
	}
	c.legend(lineBottom+44, entries...)
	c.text(lineLeft, top-14, "c-dim small", unit, "start")
	return c.end()
}

// stepOf is between two marks of a time line, of which there are twelve at most.
func stepOf(end time.Duration) time.Duration {
	for _, s := range []time.Duration{
		time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	} {
		if end/s <= 12 {
			return s
		}
	}
	day := 24 * time.Hour
	return (end/12/day + 1) * day
}

func clock(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	default:
		return fmt.Sprintf("%d s", d/time.Second)
	}
}
