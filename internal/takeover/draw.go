package takeover

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/history"
)

// Measures of the picture, in pixels.
const (
	width      = 1200
	laneLeft   = 190
	laneRight  = width - 20
	laneTop    = 150
	laneHeight = 34
	barTop     = 62
	barHeight  = 22
)

// colours are readable on light and on dark ground.
var colours = []struct{ name, light, dark string }{
	{"bg", "#ffffff", "#0d1117"},
	{"fg", "#1f2328", "#e6edf3"},
	{"dim", "#6e7781", "#8d96a0"},
	{"grid", "#d8dee4", "#30363d"},
	{"era0", "#0969da", "#58a6ff"},
	{"era1", "#bc4c00", "#ffa657"},
	{"kill", "#cf222e", "#ff7b72"},
	{"standby", "#d0d7de", "#484f58"},
	{"claiming", "#d4a72c", "#d29922"},
	{"begun", "#8250df", "#a371f7"},
	{"serving", "#2da44e", "#3fb950"},
	{"leader", "#8250df", "#a371f7"},
	{"down", "#ffcecb", "#67060c"},
	{"p0", "#8c959f", "#8b949e"},
	{"p1", "#bf8700", "#d29922"},
	{"p2", "#cf222e", "#ff7b72"},
	{"p3", "#8250df", "#bc8cff"},
	{"p4", "#0969da", "#58a6ff"},
	{"p5", "#1a7f37", "#3fb950"},
	{"p6", "#bc4c00", "#ffa657"},
}

// style names the colours: .c-NAME fills, .l-NAME draws a line. Classes and not
// variables, which few programs but browsers know.
func style() string {
	var light, dark strings.Builder
	for _, c := range colours {
		fmt.Fprintf(&light, ".c-%s{fill:%s}.l-%s{stroke:%s}\n", c.name, c.light, c.name, c.light)
		fmt.Fprintf(&dark, ".c-%s{fill:%s}.l-%s{stroke:%s}\n", c.name, c.dark, c.name, c.dark)
	}
	return "<style>\ntext{font:13px system-ui,sans-serif}.small{font-size:11px}.title{font-size:16px;font-weight:600}.l-kill{stroke-width:2}\n" +
		light.String() + "@media (prefers-color-scheme:dark){\n" + dark.String() + "}\n</style>\n"
}

// canvas is a picture being drawn.
type canvas struct {
	bytes.Buffer
	r        *Round
	from, to time.Duration
	lanes    int
	// eras in the picture, in order.
	eras []uint64
}

// Draw draws the round on a time line around a gap: an SVG file.
func (r *Round) Draw(g Gap) []byte {
	c := newCanvas(r, g)
	clients := c.clients()
	c.begin(len(clients), "a takeover", fmt.Sprintf("%s: %s went %s ms without a timestamp", r.what(), g.Client, millis(g.Length())))
	c.bar("gap and its parts", r.Parts(g))
	for i, client := range clients {
		c.client(i, client)
	}
	return c.end(len(clients), "Each tick is a successful reply.")
}

// newCanvas makes one around a gap.
func newCanvas(r *Round, g Gap) *canvas {
	margin := max(g.Length()/5, 10*time.Millisecond)
	return &canvas{r: r, from: min(g.From, r.At) - margin, to: g.To + margin}
}

// begin begins a picture with lanes above those of the processes.
func (c *canvas) begin(lanes int, what, title string) {
	c.lanes = lanes + len(c.r.Members)
	height := laneTop + c.lanes*laneHeight + 100
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="time line of %s">`+"\n", width, height, what)
	c.WriteString(style())
	c.printf(`<rect width="%d" height="%d" class="c-bg"/>`+"\n", width, height)
	c.text(20, 28, "title", title)
	c.grid()
}

// end draws the processes below the lanes that there are, and says what ticks are.
func (c *canvas) end(lanes int, ticks string) []byte {
	for i, member := range c.r.Members {
		c.member(lanes+i, member)
	}
	c.kill()
	c.legend(ticks)
	c.WriteString("</svg>\n")
	return c.Bytes()
}

// what is the deed in words.
func (r *Round) what() string {
	names := ""
	for i, v := range r.Victims {
		if i > 0 {
			names += " and "
		}
		names += v
	}
	switch r.Action {
	case Hang:
		return "SIGSTOP " + names
	case Restart:
		return "restart " + names
	}
	return "kill -9 " + names
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(c, format, args...) }

func (c *canvas) text(x, y float64, class, words string) {
	if !strings.HasPrefix(class, "c-") {
		class = strings.TrimSpace("c-fg " + class)
	}
	c.printf(`<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(words))
}

// x is where a moment is, inside the lanes.
func (c *canvas) x(at time.Duration) float64 {
	at = min(max(at, c.from), c.to)
	return laneLeft + float64(at-c.from)/float64(c.to-c.from)*(laneRight-laneLeft)
}

func laneY(row int) float64 { return float64(laneTop + row*laneHeight) }

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }

// clients in order of name.
func (c *canvas) clients() []string {
	var names []string
	for client := range c.r.returns(history.OpTSO) {
		names = append(names, client)
	}
	slices.Sort(names)
	return names
}

// steps of the grid.
var steps = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
}

// grid marks time, counted from the kill.
func (c *canvas) grid() {
	step := steps[len(steps)-1]
	for _, s := range steps {
		if (c.to-c.from)/s <= 16 {
			step = s
			break
		}
	}
	bottom := laneY(c.lanes)
	for n := (c.from - c.r.At) / step; c.r.At+n*step <= c.to; n++ {
		at := c.r.At + n*step
		if at < c.from {
			continue
		}
		c.printf(`<line class="l-grid" x1="%.1f" x2="%.1f" y1="%d" y2="%.1f"/>`+"\n", c.x(at), c.x(at), laneTop-14, bottom)
		c.printf(`<text x="%.1f" y="%.1f" class="c-dim small" text-anchor="middle">%d ms</text>`+"\n", c.x(at), bottom+16, (n*step)/time.Millisecond)
	}
}

// bar is a time and its parts, each with its milliseconds below.
func (c *canvas) bar(words string, parts []Part) {
	x := float64(laneLeft)
	c.text(20, barTop+16, "", words)
	for i, p := range parts {
		if p.Length() == 0 {
			continue
		}
		colour := fmt.Sprintf("c-p%d", i%7)
		c.printf(`<rect x="%.1f" y="%d" width="%.1f" height="%d" class="%s"/>`+"\n", c.x(p.From), barTop, max(c.x(p.To)-c.x(p.From), 1), barHeight, colour)
		words := p.Name + " " + millis(p.Length()) + " ms"
		c.printf(`<rect x="%.1f" y="%d" width="10" height="10" class="%s"/>`+"\n", x, barTop+barHeight+14, colour)
		c.text(x+14, barTop+barHeight+23, "small", words)
		x += 30 + 6.4*float64(len(words))
	}
}

// client is a lane with a tick for each reply, in the colour of its era.
func (c *canvas) client(row int, name string) {
	y := laneY(row)
	c.text(20, y+20, "", name)
	last := make(map[uint64]float64)
	for _, call := range c.replies(name) {
		x := c.x(time.Duration(call.ReturnNS))
		if before, ok := last[call.Era]; ok && x-before < 0.8 {
			continue // one pixel shows one tick
		}
		last[call.Era] = x
		c.tick(x, y, c.era(call.Era))
	}
}

func (c *canvas) tick(x, y float64, colour int) {
	c.printf(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="l-era%d"/>`+"\n", x, x, y+6, y+26, colour)
}

// replies are the timestamps of a client inside the picture, in order.
func (c *canvas) replies(client string) []history.Call {
	var out []history.Call
	for _, call := range c.r.Calls {
		at := time.Duration(call.ReturnNS)
		if call.Client == client && call.Op == history.OpTSO && call.Err == "" && call.ReturnNS != 0 && at >= c.from && at <= c.to {
			out = append(out, call)
		}
	}
	slices.SortStableFunc(out, func(a, b history.Call) int { return cmp.Compare(a.ReturnNS, b.ReturnNS) })
	return out
}

// era is the colour of an era: neighbours differ.
func (c *canvas) era(era uint64) int {
	if !slices.Contains(c.eras, era) {
		c.eras = append(c.eras, era)
		slices.Sort(c.eras)
	}
	return int(era % 2)
}

// kill marks the moment over all lanes.
func (c *canvas) kill() {
	x := c.x(c.r.At)
	line := func(from, to float64) { // not over the words below the bar
		c.printf(`<line class="l-kill" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", x, x, from, to)
	}
	line(barTop-6, barTop+barHeight+6)
	line(laneTop-14, laneY(c.lanes))
	c.printf(`<text x="%.1f" y="%d" class="small c-kill" text-anchor="middle">%s</text>`+"\n", x, barTop-10, html.EscapeString(c.r.what()))
}

// legend says what colours mean.
func (c *canvas) legend(ticks string) {
	y, x := laneY(c.lanes)+44, 20.0
	entry := func(colour, words string) {
		c.printf(`<rect x="%.1f" y="%.1f" width="12" height="12" class="c-%s"/>`+"\n", x, y, colour)
		c.text(x+17, y+11, "small", words)
		x += 40 + 6.3*float64(len(words))
	}
	for _, era := range c.eras {
		entry(fmt.Sprintf("era%d", era%2), fmt.Sprintf("timestamp of era %d", era))
	}
	for _, s := range []lane{down, standby, claiming, begun, serving, leads} {
		entry(string(s), legends[s])
	}
	moment := "kill"
	if c.r.Action == Hang || c.r.Action == Restart {
		moment = "signal"
	}
	c.text(20, y+36, "c-dim small", "Times are milliseconds from the "+moment+". "+ticks)
}
