package spread

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Measures of the picture, in pixels.
const (
	width, height        = 1200, 700
	plotWidth, plotTall  = 310, 230
	plotLeft, plotTop    = 60, 92
	plotRight, plotBelow = 80, 68
)

// colours are readable on light and on dark ground.
var colours = []struct{ name, light, dark string }{
	{"bg", "#ffffff", "#0d1117"},
	{"fg", "#1f2328", "#e6edf3"},
	{"dim", "#6e7781", "#8d96a0"},
	{"grid", "#d8dee4", "#30363d"},
	{"s0", "#0969da", "#58a6ff"},
	{"s1", "#bc4c00", "#ffa657"},
	{"s2", "#8250df", "#bc8cff"},
}

// plots are what is drawn of a row, from left to right.
var plots = []struct {
	title string
	of    func(*Row) float64
}{
	{"highest load by the mean", func(r *Row) float64 { return r.Imbalance }},
	{"moved when one joins, by its fair part", func(r *Row) float64 { return r.JoinMoved }},
	{"moved when one leaves, by what it had", func(r *Row) float64 { return r.LeaveMoved }},
}

// canvas is a picture being drawn.
type canvas struct{ bytes.Buffer }

// Draw draws the report: an SVG file.
func (r *Report) Draw() []byte {
	c := &canvas{}
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="how evenly strategies place regions">`+"\n", width, height)
	c.WriteString(style())
	c.printf(`<rect width="%d" height="%d" class="c-bg"/>`+"\n", width, height)
	c.text(20, 28, "title", fmt.Sprintf("Regions on members: %d regions a member, median of %d", r.Config.PerMember, r.Config.Runs))
	c.legend()
	var loads []string
	for _, row := range r.Rows {
		if !slices.Contains(loads, row.Loads) {
			loads = append(loads, row.Loads)
		}
	}
	for down, name := range loads {
		rows := slices.DeleteFunc(slices.Clone(r.Rows), func(row Row) bool { return row.Loads != name })
		for right := range plots {
			c.plot(right, down, rows)
		}
	}
	c.WriteString("</svg>\n")
	return c.Bytes()
}

// style names the colours: .c-NAME fills, .l-NAME draws a line.
func style() string {
	var light, dark strings.Builder
	for _, c := range colours {
		fmt.Fprintf(&light, ".c-%s{fill:%s}.l-%s{stroke:%s}\n", c.name, c.light, c.name, c.light)
		fmt.Fprintf(&dark, ".c-%s{fill:%s}.l-%s{stroke:%s}\n", c.name, c.dark, c.name, c.dark)
	}
	return "<style>\ntext{font:13px system-ui,sans-serif}.small{font-size:11px}.title{font-size:16px;font-weight:600}" +
		".line{fill:none;stroke-width:2}.least{fill:none;stroke-width:1.5;stroke-dasharray:5 4}\n" +
		light.String() + "@media (prefers-color-scheme:dark){\n" + dark.String() + "}\n</style>\n"
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(c, format, args...) }

func (c *canvas) text(x, y float64, class, words string) {
	if !strings.HasPrefix(class, "c-") {
		class = strings.TrimSpace("c-fg " + class)
	}
	c.printf(`<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(words))
}

func (c *canvas) legend() {
	for i, name := range Strategies {
		x := 20 + float64(i)*170
		c.printf(`<line x1="%.1f" x2="%.1f" y1="48" y2="48" class="line l-s%d"/><circle cx="%.1f" cy="48" r="3" class="c-s%d"/>`+"\n", x, x+24, i, x+12, i)
		c.text(x+32, 52, "", name)
	}
	const x = 20 + 3*170
	c.printf(`<line x1="%d" x2="%d" y1="48" y2="48" class="least l-dim"/>`+"\n", x, x+24)
	c.text(x+32, 52, "", "the hottest region alone")
}

// plot draws one of plots for the rows of the same loads.
func (c *canvas) plot(right, down int, rows []Row) {
	left, top := float64(plotLeft+right*(plotWidth+plotRight)), float64(plotTop+down*(plotTall+plotBelow))
	of := plots[right].of
	most := 1.2
	for i := range rows {
		most = max(most, of(&rows[i])*1.08)
	}
	fewest, largest := rows[0].Members, rows[0].Members
	for _, r := range rows {
		fewest, largest = min(fewest, r.Members), max(largest, r.Members)
	}
	x := func(members int) float64 {
		if fewest == largest {
			return left + plotWidth/2
		}
		return left + math.Log(float64(members)/float64(fewest))/math.Log(float64(largest)/float64(fewest))*plotWidth
	}
	y := func(v float64) float64 { return top + plotTall - v/most*plotTall }
	c.text(left, top-10, "", fmt.Sprintf("%s; %s", plots[right].title, loadsOf(rows[0].Loads)))
	for at, step := 0.0, stepOf(most); at <= most; at += step {
		c.printf(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="l-grid"/>`+"\n", left, left+plotWidth, y(at), y(at))
		c.text(left-28, y(at)+4, "c-dim small", fmt.Sprintf("%.2g", at))
	}
	var marked []int
	for _, r := range rows {
		if !slices.Contains(marked, r.Members) {
			marked = append(marked, r.Members)
			c.text(x(r.Members)-8, top+plotTall+17, "c-dim small", fmt.Sprint(r.Members))
		}
	}
	c.text(left+plotWidth/2-24, top+plotTall+33, "c-dim small", "members")
	if right == 0 {
		c.line(rows, Balanced, "least l-dim", x, func(r *Row) float64 { return y(r.Least) })
	}
	for i, name := range slices.Backward(Strategies) { // the first one is on top
		c.line(rows, name, fmt.Sprintf("line l-s%d", i), x, func(r *Row) float64 { return y(of(r)) })
		for j := range rows {
			if r := &rows[j]; r.Strategy == name {
				c.printf(`<circle cx="%.1f" cy="%.1f" r="3" class="c-s%d"/>`+"\n", x(r.Members), y(of(r)), i)
			}
		}
	}
}

func (c *canvas) line(rows []Row, strategy, class string, x func(int) float64, y func(*Row) float64) {
	var points []string
	for i := range rows {
		if rows[i].Strategy == strategy {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(rows[i].Members), y(&rows[i])))
		}
	}
	c.printf(`<polyline points="%s" class="%s"/>`+"\n", strings.Join(points, " "), class)
}

// stepOf is how far apart the lines of a grid are.
func stepOf(most float64) float64 {
	for _, step := range []float64{0.2, 0.25, 0.5, 1, 2, 5, 10, 25, 50, 100} {
		if most/step <= 6 {
			return step
		}
	}
	return most / 5
}

func loadsOf(name string) string {
	if name == same {
		return "same loads"
	}
	return name
}
