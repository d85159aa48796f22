package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// function returns a function that begins at line 10.
func function(name string) *profile.Function {
	return &profile.Function{Name: name, Filename: "/home/user/" + name, StartLine: 10}
}

// processor returns a profile of stacks, the innermost function first. Inlined functions share a location.
func processor(samples ...*profile.Sample) *profile.Profile {
	return &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Sample:     samples,
	}
}

func seen(times int64, stack ...*profile.Location) *profile.Sample {
	return &profile.Sample{Location: stack, Value: []int64{times, times * 1e7}}
}

func TestWriteProfile_innermostCalls(t *testing.T) {
	hash, encode, serve := function("hash"), function("encode"), function("serve")
	inlined := &profile.Location{Line: []profile.Line{{Function: hash, Line: 11}, {Function: encode, Line: 15}}} // hash in encode
	within := &profile.Location{Line: []profile.Line{{Function: encode, Line: 12}}}
	top := &profile.Location{Line: []profile.Line{{Function: serve, Line: 30}}}
	path := filepath.Join(t.TempDir(), "server.pgo")
	all := []*profile.Profile{
		processor(seen(600, inlined, top), seen(1, top)),
		processor(seen(400, within, top, top, top), seen(1, top, within, within)),
	}
	if err := writeProfile(path, all); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got, err := profile.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := countCalls(got)
	if err != nil {
		t.Fatal(err)
	}
	// The single call from encode to serve is among the least frequent, which are left out.
	if want := (map[callSite]int64{{"serve", "encode", 20}: 1000, {"encode", "hash", 5}: 600}); !maps.Equal(calls, want) {
		t.Errorf("calls are %v, want %v", calls, want)
	}
	if text := got.String(); strings.Contains(text, "/home") {
		t.Errorf("there are files of the machine in it:\n%s", text)
	}
}

func TestWriteProfile_noCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.pgo")
	if err := writeProfile(path, []*profile.Profile{processor()}); err == nil || !strings.Contains(err.Error(), "no calls were seen") {
		t.Errorf("error %v", err)
	}
	memory := &profile.Profile{SampleType: []*profile.ValueType{{Type: "inuse_space", Unit: "bytes"}}}
	if err := writeProfile(path, []*profile.Profile{memory}); err == nil || !strings.Contains(err.Error(), "no profile of processor time") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was written")
	}
}
