package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

func TestFlameGraph(t *testing.T) {
	function := func(id uint64, name string) *profile.Location {
		f := &profile.Function{ID: id, Name: name}
		return &profile.Location{ID: id, Line: []profile.Line{{Function: f}}}
	}
	main, get, list, copied := function(
		1,
		"main.main",
	), function(
		2,
		"k8s.io/x.get",
	), function(
		3,
		"example.com/y.list<int>",
	), function(
		4,
		"runtime.memmove",
	)
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Sample: []*profile.Sample{ // from the innermost call on
			{Location: []*profile.Location{get, main}, Value: []int64{1, 30}},
			{Location: []*profile.Location{copied, list, main}, Value: []int64{1, 60}},
			{Location: []*profile.Location{list, main}, Value: []int64{1, 10}},
		},
	}
	svg, err := flameGraph("Annex & Co", p)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("it is no XML: %v", err)
		}
	}
	for _, want := range []string{
		`<title>Annex &amp; Co, 100.0 %</title><rect x="0.0" y="-16" width="1200.0"`,
		`<title>main.main, 100.0 %</title><rect x="0.0" y="-32" width="1200.0"`,
		`<title>example.com/y.list&lt;int&gt;, 70.0 %</title><rect x="0.0" y="-48" width="840.0"`,
		`<title>runtime.memmove, 60.0 %</title><rect x="0.0" y="-64" width="720.0"`,
		`<title>k8s.io/x.get, 30.0 %</title><rect x="840.0" y="-48" width="360.0"`,
	} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("there is no %s in\n%s", want, svg)
		}
	}
	if _, err := flameGraph("nothing", &profile.Profile{SampleType: p.SampleType}); err == nil {
		t.Error("an empty profile is drawn")
	}
	if _, err := flameGraph("memory", &profile.Profile{SampleType: p.SampleType[:1]}); err == nil {
		t.Error("a profile without processor time is drawn")
	}
}
