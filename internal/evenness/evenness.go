// Package evenness draws how even the load of members is.
//
// A picture is an SVG file that is readable on light and on dark ground, without fonts or
// scripts of its own. It promises that the same input draws the same bytes.
package evenness

import (
	"bytes"
	"fmt"
	"html"
	"strings"
)

// Measures of pictures, in pixels.
const (
	width  = 1000
	left   = 190
	right  = width - 120
	top    = 92
	rowGap = 34
)

// colours are readable on light and on dark ground.
var colours = []struct{ name, light, dark string }{
	{"bg", "#ffffff", "#0d1117"},
	{"fg", "#1f2328", "#e6edf3"},
	{"dim", "#6e7781", "#8d96a0"},
	{"grid", "#d8dee4", "#30363d"},
	{"before", "#8c959f", "#6e7681"},
	{"after", "#0969da", "#58a6ff"},
	{"other", "#bc4c00", "#ffa657"},
}

// style names the colours: .c-NAME fills, .l-NAME draws a line. Classes and not
// variables, which few programs but browsers know.
func style() string {
	var light, dark strings.Builder
	for _, c := range colours {
		fmt.Fprintf(&light, ".c-%s{fill:%s}.l-%s{stroke:%s;fill:none}\n", c.name, c.light, c.name, c.light)
		fmt.Fprintf(&dark, ".c-%s{fill:%s}.l-%s{stroke:%s}\n", c.name, c.dark, c.name, c.dark)
	}
	return "<style>\ntext{font:13px system-ui,sans-serif}.small{font-size:11px}.title{font-size:16px;font-weight:600}.thick{stroke-width:1.6}.dash{stroke-dasharray:4 3}\n" +
		light.String() + "@media (prefers-color-scheme:dark){\n" + dark.String() + "}\n</style>\n"
}

// canvas is a picture being drawn.
type canvas struct{ bytes.Buffer }

func begin(height float64, what, title, subtitle string) *canvas {
	c := &canvas{}
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" role="img" aria-label="%s">`+"\n", width, height, html.EscapeString(what))
	c.WriteString(style())
	c.printf(`<rect width="%d" height="%.0f" class="c-bg"/>`+"\n", width, height)
	c.text(20, 28, "c-fg title", title, "start")
	c.text(20, 50, "c-dim", subtitle, "start")
	return c
}

func (c *canvas) end() []byte {
	c.WriteString("</svg>\n")
	return c.Bytes()
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(c, format, args...) }

func (c *canvas) text(x, y float64, class, words, anchor string) {
	c.printf(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(words))
}

func (c *canvas) rect(x, y, w, h float64, class string) {
	c.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="c-%s"/>`+"\n", x, y, max(w, 0), h, class)
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	c.printf(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

// legend says what colours mean, from the left on.
func (c *canvas) legend(y float64, entries ...[2]string) {
	x := 20.0
	for _, e := range entries {
		c.rect(x, y, 12, 12, e[0])
		c.text(x+17, y+11, "c-fg small", e[1], "start")
		x += 40 + 6.3*float64(len(e[1]))
	}
}

// short cuts a name to what there is room for.
func short(name string) string {
	if r := []rune(name); len(r) > 24 {
		return string(r[:23]) + "…"
	}
	return name
}

// Bar is a member before a change and behind it.
type Bar struct {
	Name string
	// Before and After are what it has; Capacity is its part relative to others.
	Before, After, Capacity float64
	// Note is said beside it; "" for nothing.
	Note string
}

// MaxBars is how many members a picture shows; of more, the first.
const MaxBars = 60

// Bars draws what members have before a change and behind it, with the fair part of each.
// Unit is the word for what they have.
func Bars(title, subtitle, unit string, bars []Bar) []byte {
	more := max(len(bars)-MaxBars, 0)
	most, sum, capacity := 0.0, 0.0, 0.0
	for _, b := range bars {
		sum += b.After
		if b.After > 0 || b.Note == "" {
			capacity += b.Capacity
		}
	}
	fair := func(b Bar) float64 {
		if capacity == 0 {
			return 0
		}
		return sum * b.Capacity / capacity
	}
	bars = bars[:len(bars)-more]
	for _, b := range bars {
		most = max(most, b.Before, b.After, fair(b))
	}
	if most == 0 {
		most = 1
	}
	height := float64(top + len(bars)*rowGap + 70)
	c := begin(height, "what members have before and behind a plan", title, subtitle)
	x := func(v float64) float64 { return v / most * (right - left) }
	bottom := float64(top + len(bars)*rowGap)
	for _, at := range ticks(most) {
		c.line(left+x(at), top-6, left+x(at), bottom, "l-grid")
		c.text(left+x(at), top-12, "c-dim small", Number(at), "middle")
	}
	for i, b := range bars {
		y := float64(top + i*rowGap)
		c.text(left-10, y+18, "c-fg", short(b.Name), "end")
		c.rect(left, y+3, x(b.Before), 11, "before")
		c.rect(left, y+15, x(b.After), 11, "after")
		if f := fair(b); f > 0 && (b.After > 0 || b.Note == "") {
			c.line(left+x(f), y+1, left+x(f), y+28, "l-other thick dash")
		}
		words := Number(b.Before) + " → " + Number(b.After)
		if b.Note != "" {
			words += "  " + b.Note
		}
		c.text(min(left+x(max(b.Before, b.After))+8, right+4), y+19, "c-dim small", words, "start")
	}
	c.legend(bottom+22, [2]string{"before", "before, in " + unit}, [2]string{"after", "behind it"}, [2]string{"other", "fair part by capacity"})
	if more > 0 {
		c.text(20, bottom+56, "c-dim small", fmt.Sprintf("%d more members are not shown.", more), "start")
	}
	return c.end()
}

// Number is a number in as few letters as it can be told from its neighbours.
func Number(v float64) string {
	switch {
	case v >= 1e7:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e5:
		return fmt.Sprintf("%.3gk", v/1e3)
	case v == float64(int64(v)):
		return fmt.Sprintf("%d", int64(v))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// ticks are round numbers from 0 up to most, ten at most.
func ticks(most float64) (at []float64) {
	step := 1.0
	for most/step > 10 {
		step *= 10
	}
	for most/step < 1 {
		step /= 10
	}
	for _, part := range []float64{0.1, 0.2, 0.5} {
		if most/(step*part) <= 10 {
			step *= part
			break
		}
	}
	for v := 0.0; v <= most*1.0001; v += step {
		at = append(at, v)
	}
	return at
}
