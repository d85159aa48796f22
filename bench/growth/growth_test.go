package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestMain makes this program the process of a step, as the command does.
func TestMain(m *testing.M) {
	if os.Getenv(stepEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func grown(linear bool, factor float64) *curve {
	c := &curve{axis: axis{name: "things", title: "Things & more", of: "things", linear: linear}, Steps: []int{1, 10, 100}}
	c.Values = map[string][][]float64{}
	for _, op := range operations {
		c.Values[op] = [][]float64{{100, 100, 900}, {100}, {100 * factor}}
	}
	return c
}

func TestCurve_write_marksGrowth(t *testing.T) {
	for _, test := range []struct {
		curve *curve
		want  string
	}{
		{grown(false, 1.1), "| create | 100 | 100 | 110 | 1.10x |"},
		{grown(false, 1.3), "| create | 100 | 100 | 130 | **1.30x** |"},
		{grown(true, 100), "| create | 100 | 100 | 10,000 | 100.00x, 100.0 us for each |"},
		{grown(true, 100), "| get | 100 | 100 | 10,000 | **100.00x** |"},
	} {
		var page bytes.Buffer
		test.curve.write(&page)
		if !strings.Contains(page.String(), test.want) {
			t.Errorf("no %s in\n%s", test.want, page.String())
		}
	}
}

// A run of one axis keeps the figures of the others.
func TestBench_keep(t *testing.T) {
	b, all := &bench{settings: settings{out: t.TempDir()}}, axes(false)
	of := func(i int, us float64) *curve {
		c := grown(false, 1)
		c.axis, c.Axis, c.Values["get"] = all[i], all[i].name, [][]float64{{us}, {us}, {us}}
		return c
	}
	for _, c := range []*curve{of(2, 7), of(0, 8), of(2, 9)} {
		if _, err := b.keep([]*curve{c}, all); err != nil {
			t.Fatal(err)
		}
	}
	curves, err := b.keep(nil, all)
	if err != nil || len(curves) != 2 || curves[0].us("get", 0) != 8 || curves[1].us("get", 2) != 9 || curves[1].axis.title != all[2].title {
		t.Fatalf("%v, %v", curves, err)
	}
	if err := b.report(curves, io.Discard); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(b.settings.out, "growth.md"))
	if err != nil || !bytes.Contains(page, []byte("growth-"+all[2].name+".svg")) {
		t.Errorf("%s, %v", page, err)
	}
	if err := os.WriteFile(filepath.Join(b.settings.out, "growth.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := b.keep(nil, all); err == nil {
		t.Error("damaged figures are read")
	}
}

func TestDraw_isXMLForBothThemes(t *testing.T) {
	picture := draw(grown(false, 9))
	if !bytes.Contains(picture, []byte("prefers-color-scheme:dark")) || !bytes.Contains(picture, []byte("list by label, 900 us")) {
		t.Errorf("%s", picture)
	}
	decoder := xml.NewDecoder(bytes.NewReader(picture))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestSpread_labelsThatTouch_areMovedApart(t *testing.T) {
	at := map[string]float64{}
	for _, op := range operations {
		at[op] = 50
	}
	spread(at, 0, 120)
	for i, a := range operations {
		if at[a] < 0 || at[a] > 120 {
			t.Errorf("%s is at %v", a, at[a])
		}
		for _, b := range operations[:i] {
			if apart := at[a] - at[b]; apart < labelHeight && apart > -labelHeight {
				t.Errorf("%s and %s are %v apart", a, b, apart)
			}
		}
	}
}

func TestRun_refusals(t *testing.T) {
	for want, args := range map[string][]string{
		"no axis \"things\"": {"-only", "things"}, "at least one": {"-rounds", "0"}, "not defined": {"-unknown"},
		"leave out -short": {"-short", "-out", "x"},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

var made []byte // keeps the compiler from leaving the allocation out

func TestServer_rest_waitsForTheEndOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		go func() {
			for range 20 {
				time.Sleep(time.Second)
				made = make([]byte, 2*restGarbage)
			}
		}()
		if err := (&server{ctx: t.Context()}).rest(); err != nil || time.Since(began) < 20*time.Second {
			t.Errorf("at rest after %s, %v", time.Since(began), err)
		}
	})
}

func TestServer_rest_neverAtRest_isAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &server{ctx: ctx}
		var working sync.WaitGroup
		working.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(time.Second)
				made = make([]byte, 2*restGarbage)
			}
		})
		defer working.Wait()
		defer cancel()
		if err := s.rest(); err == nil || !strings.Contains(err.Error(), "not at rest") {
			t.Error(err)
		}
	})
}

// Requests are charged with a part of a collection, whether one is due within them or not.
func TestServer_measure_collectsOnlyBefore(t *testing.T) {
	s := &server{ctx: t.Context(), objects: fewObjects}
	s.handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { made = make([]byte, 64<<10) })
	runtime.GC() // ends one that has begun
	collections, percent := value("/gc/cycles/total:gc-cycles"), value("/gc/gogc:percent")
	if us, err := s.measure("get"); err != nil || us <= 0 {
		t.Errorf("%v, %v", us, err)
	}
	if n := value("/gc/cycles/total:gc-cycles") - collections; n != 1 {
		t.Errorf("%d collections", n)
	}
	if now := value("/gc/gogc:percent"); now != percent {
		t.Errorf("the percentage of garbage is %d, and was %d", now, percent)
	}
	if part := (collection{cost: 100 * time.Millisecond, every: 50 << 20}).of(1 << 20); part != 2*time.Millisecond {
		t.Errorf("the part of 1 MiB in a collection of 100 ms every 50 MiB is %s", part)
	}
}

// An axis is measured as a whole, with a server for each step.
func TestRun_bindings(t *testing.T) {
	if testing.Short() {
		t.Skip("two servers with 1,000 objects each")
	}
	var page bytes.Buffer
	if err := run(t.Context(), []string{"-short", "-only", "bindings", "-rounds", "1", "-dir", t.TempDir()}, &page, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, op := range operations {
		if !strings.Contains(page.String(), "| "+op+" |") {
			t.Errorf("no %s in\n%s", op, page.String())
		}
	}
}
