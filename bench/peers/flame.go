package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// profileTime is the duration of a profile.
const profileTime = 8 * time.Second

// drawn are the operations that have a flame graph.
var drawn = []string{"create", "get", "update", "merge patch"}

// profiles takes profiles of Annex's processor time while 64 clients make requests, and while 1,000 watches follow a
// burst of changes. It draws some of them as flame graphs, if there is a directory for these, and writes the sum of
// all for the compiler, if there is a file for it.
func (b *bench) profiles(int) error {
	for _, p := range b.fleet.peers {
		if p.name != embedded {
			continue
		}
		clients, err := p.clients(64)
		if err != nil {
			return err
		}
		defer func() {
			for _, c := range clients {
				c.conn.close()
			}
		}()
		var all []*profile.Profile
		take := func(name string, draw bool, work func() error) error {
			draw = draw && b.settings.out != ""
			if !draw && b.settings.pgo == "" {
				return nil
			}
			taken, err := p.profile(work)
			if err != nil {
				return fmt.Errorf("profile of %s: %w", name, err)
			}
			all = append(all, taken)
			if !draw {
				return nil
			}
			svg, err := flameGraph("Annex, "+name, taken)
			if err != nil {
				return fmt.Errorf("profile of %s: %w", name, err)
			}
			return os.WriteFile(filepath.Join(b.settings.out, "flame-"+strings.ReplaceAll(name, " ", "-")+".svg"), svg, 0o644)
		}
		driven := func(do operation) func() error {
			return func() error {
				_, err := p.drive(clients, do, profileTime+time.Second)
				return err
			}
		}
		for _, op := range operations {
			if op.name == "delete" {
				continue // It comes last, and ends when there is nothing left.
			}
			if err := take(op.name, slices.Contains(drawn, op.name), driven(op.do)); err != nil {
				return err
			}
		}
		if err := take("page", false, driven((*client).page)); err != nil {
			return err
		}
		if err := take("delete", false, func() error { _, err := p.drive(clients, (*client).delete, patience); return err }); err != nil {
			return err
		}
		if _, err := p.drive(clients, (*client).delete, patience); err != nil {
			return err
		}
		// Enough changes for about this time.
		if err := take(
			"watch",
			true,
			func() error { return b.fanOut(p, fanOut{watchers: 1000, burst: true, updates: 1500, unmeasured: true}) },
		); err != nil {
			return err
		}
		if b.settings.pgo == "" {
			return nil
		}
		return writeProfile(b.settings.pgo, all)
	}
	return nil
}

// profile returns a profile of a server's processor time during some work.
func (p *peer) profile(work func() error) (*profile.Profile, error) {
	worked := make(chan error, 1)
	go func() { worked <- work() }()
	c, err := p.dial()
	if err != nil {
		return nil, errors.Join(err, <-worked)
	}
	defer c.close()
	answer, err := c.do(http.MethodGet, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(profileTime.Seconds())), "", nil)
	if err := errors.Join(err, <-worked); err != nil {
		return nil, err
	}
	return profile.Parse(bytes.NewReader(answer))
}

// call is a function in a stack, with its time and that of its calls.
type call struct {
	time  int64
	calls map[string]*call
}

func (c *call) to(name string) *call {
	if c.calls[name] == nil {
		c.calls[name] = &call{calls: map[string]*call{}}
	}
	return c.calls[name]
}

// The width and the height of flame graphs, in pixels. Narrower calls are left out.
const (
	flameWidth    = 1200.0
	flameRow      = 16
	flameNarrow   = 1.5
	flameLetter   = 6.2
	flameMaxDepth = 120
)

// flameGraph draws a profile of processor time: callers below their calls, with widths proportional to their time.
func flameGraph(title string, p *profile.Profile) ([]byte, error) {
	value := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == "cpu" })
	if value < 0 {
		return nil, errors.New("it has no processor time")
	}
	root := &call{calls: map[string]*call{}}
	for _, sample := range p.Sample {
		time := sample.Value[value]
		root.time += time
		at := root
		for _, location := range slices.Backward(sample.Location) {
			for _, line := range slices.Backward(location.Line) {
				if line.Function == nil {
					continue
				}
				at = at.to(line.Function.Name)
				at.time += time
			}
		}
	}
	if root.time == 0 {
		return nil, errors.New("it is empty")
	}
	var boxes bytes.Buffer
	depth := 0
	var draw func(c *call, name string, x float64, level int)
	draw = func(c *call, name string, x float64, level int) {
		width := flameWidth * float64(c.time) / float64(root.time)
		if width < flameNarrow || level > flameMaxDepth {
			return
		}
		depth = max(depth, level)
		drawBox(&boxes, name, 100*float64(c.time)/float64(root.time), x, width, level)
		names := slices.SortedFunc(maps.Keys(c.calls), func(a, b string) int {
			return cmp.Or(cmp.Compare(c.calls[b].time, c.calls[a].time), strings.Compare(a, b))
		})
		for _, called := range names {
			draw(c.calls[called], called, x, level+1)
			x += flameWidth * float64(c.calls[called].time) / float64(root.time)
		}
	}
	draw(root, title, 0, 0)
	var svg bytes.Buffer
	height := (depth + 1) * flameRow
	fmt.Fprintf(
		&svg,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 %d %d %d" font-family="monospace" font-size="10">`+"\n",
		-height,
		int(flameWidth),
		height,
	)
	svg.Write(boxes.Bytes())
	svg.WriteString("</svg>\n")
	return svg.Bytes(), nil
}

// colours map parts of the names of functions to colours; the first match counts.
var colours = []struct{ part, colour string }{
	{
		"annexapi/annex",
		"#8fd694",
	},
	{"k8s.io/", "#8ab6f9"},
	{"structured-merge-diff", "#8ab6f9"},
	{"net/http", "#f9c38a"},
	{"x/net", "#f9c38a"},
	{"crypto/", "#e8a0bf"},
	{"encoding/json", "#f4e285"},
	{"syscall", "#c9ada7"},
	{"runtime.", "#d3d3d3"},
}

func drawBox(to *bytes.Buffer, name string, percent, x, width float64, level int) {
	colour := "#eeeeee"
	for _, c := range colours {
		if strings.Contains(name, c.part) {
			colour = c.colour
			break
		}
	}
	short := name[strings.LastIndex(name, "/")+1:]
	if letters := int(width / flameLetter); letters < len(short) {
		short = short[:max(0, letters)]
	}
	y := -(level + 1) * flameRow
	to.WriteString("<g><title>")
	_ = xml.EscapeText(to, []byte(name)) // a buffer accepts everything
	fmt.Fprintf(
		to,
		`, %.1f %%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#fff" stroke-width="0.5"/>`,
		percent,
		x,
		y,
		width,
		flameRow-1,
		colour,
	)
	if len(short) > 3 {
		fmt.Fprintf(to, `<text x="%.1f" y="%d">`, x+2, y+flameRow-5)
		_ = xml.EscapeText(to, []byte(short))
		to.WriteString("</text>")
	}
	to.WriteString("</g>\n")
}
