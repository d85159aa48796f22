package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// The size of a picture in pixels, and the margins around its curves.
const (
	width, height            = 760.0, 330.0
	left, right, top, bottom = 56.0, 190.0, 18.0, 46.0
	labelHeight              = 15.0
)

// colours can be read on white and on black.
var colours = []string{"#d1495b", "#2a9d8f", "#7a7a7a", "#e08e1a", "#3b82d6", "#9b5de5", "#5b8c2a", "#b5651d"}

// draw returns the picture of a curve: the growth of each operation since the first step. Both scales are logarithmic.
func draw(c *curve) []byte {
	most, least := 2.0, 0.7
	for _, op := range operations {
		for i := range c.Steps {
			most, least = max(most, 1.05*c.us(op, i)/c.us(op, 0)), min(least, 0.95*c.us(op, i)/c.us(op, 0))
		}
	}
	first, last := float64(c.Steps[0]), float64(c.Steps[len(c.Steps)-1])
	x := func(n float64) float64 { return left + (width-left-right)*math.Log(n/first)/math.Log(last/first) }
	y := func(factor float64) float64 {
		return top + (height-top-bottom)*math.Log(most/factor)/math.Log(most/least)
	}
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n",
		width, height)
	fmt.Fprintf(&svg, "<title>%s</title>\n", escaped(c.axis.title))
	svg.WriteString("<style>text{fill:#24292f}.rule{stroke:#8884}.band{fill:#8882}" +
		"@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>\n")
	fmt.Fprintf(&svg, `<rect class="band" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`+"\n",
		left, y(flat), width-left-right, y(1/flat)-y(flat))
	for _, factor := range []float64{0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64} {
		if factor >= least && factor <= most {
			fmt.Fprintf(&svg, `<path class="rule" d="M%.1f %.1fH%.1f"/><text x="%.1f" y="%.1f" text-anchor="end">%gx</text>`+"\n",
				left, y(factor), width-right, left-8, y(factor)+4, factor)
		}
	}
	for _, n := range c.Steps {
		fmt.Fprintf(&svg, `<path class="rule" d="M%.1f %.1fV%.1f"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n",
			x(float64(n)), top, height-bottom, x(float64(n)), height-bottom+18, grouped(float64(n)))
	}
	fmt.Fprintf(&svg, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", left+(width-left-right)/2, height-8, escaped(c.axis.of))
	labels := map[string]float64{}
	for _, op := range operations {
		labels[op] = y(c.growth(op))
	}
	spread(labels, top, height-bottom)
	for i, op := range operations {
		var points []string
		for step, n := range c.Steps {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(float64(n)), y(c.us(op, step)/c.us(op, 0))))
		}
		fmt.Fprintf(&svg, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`, strings.Join(points, " "), colours[i])
		fmt.Fprintf(&svg, `<path d="M%.1f %.1fL%.1f %.1f" stroke="%s" stroke-width="1"/>`,
			width-right, y(c.growth(op)), width-right+14, labels[op], colours[i])
		fmt.Fprintf(&svg, `<text x="%.1f" y="%.1f">%s, %s us</text>`+"\n",
			width-right+18, labels[op]+4, escaped(op), grouped(c.us(op, len(c.Steps)-1)))
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

// spread moves labels apart, and keeps their order.
func spread(at map[string]float64, from, to float64) {
	names := slices.Clone(operations)
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case at[a] < at[b]:
			return -1
		case at[a] > at[b]:
			return 1
		}
		return 0
	})
	free := from
	for _, name := range names {
		at[name] = max(at[name], free)
		free = at[name] + labelHeight
	}
	end := to
	for _, name := range slices.Backward(names) {
		at[name] = min(at[name], end)
		end = at[name] - labelHeight
	}
}

func escaped(text string) string {
	var to bytes.Buffer
	_ = xml.EscapeText(&to, []byte(text)) // a buffer accepts everything
	return to.String()
}

// release returns the release of the kernel.
func release() string {
	data, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(data))
}
