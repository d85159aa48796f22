package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/google/pprof/profile"
)

// callSite identifies a call for the compiler: the functions, and the line in the caller, as an offset to its first
// one.
type callSite struct {
	caller, callee string
	offset         int64
}

// kept is the part of all calls that a profile for the compiler keeps, the most frequent first. The compiler looks at
// 99 % of them (pgoinlinecdfthreshold of cmd/compile).
const kept = 0.995

// writeProfile writes the sum of profiles to a file that go build accepts as a default.pgo. Of the stacks it keeps
// only the part that the compiler uses, the number of calls of each function by each line: no addresses, and no files
// of this machine.
func writeProfile(path string, profiles []*profile.Profile) error {
	calls := map[callSite]int64{}
	var total int64
	for _, p := range profiles {
		of, err := countCalls(p)
		if err != nil {
			return err
		}
		for site, times := range of {
			calls[site] += times
			total += times
		}
	}
	if total == 0 {
		return errors.New("profile for the compiler: no calls were seen")
	}
	sites := slices.SortedFunc(maps.Keys(calls), func(a, b callSite) int {
		return cmp.Or(
			cmp.Compare(calls[b], calls[a]),
			cmp.Compare(a.caller, b.caller),
			cmp.Compare(a.callee, b.callee),
			cmp.Compare(a.offset, b.offset),
		)
	})
	sum := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}}}
	functions, locations := map[string]*profile.Function{}, map[callSite]*profile.Location{}
	at := func(name string, offset int64) *profile.Location {
		f := functions[name]
		if f == nil {
			f = &profile.Function{ID: uint64(len(functions) + 1), Name: name, StartLine: 1}
			functions[name] = f
			sum.Function = append(sum.Function, f)
		}
		key := callSite{caller: name, offset: offset}
		l := locations[key]
		if l == nil {
			l = &profile.Location{ID: uint64(len(locations) + 1), Line: []profile.Line{{Function: f, Line: f.StartLine + offset}}}
			locations[key] = l
			sum.Location = append(sum.Location, l)
		}
		return l
	}
	var written int64
	for _, site := range sites {
		if float64(written) >= kept*float64(total) {
			break
		}
		written += calls[site]
		sum.Sample = append(sum.Sample, &profile.Sample{
			Location: []*profile.Location{at(site.callee, 0), at(site.caller, site.offset)},
			Value:    []int64{calls[site]},
		})
	}
	var file bytes.Buffer
	if err := sum.Write(&file); err != nil {
		return fmt.Errorf("profile for the compiler: %w", err)
	}
	return os.WriteFile(path, file.Bytes(), 0o644)
}

// countCalls counts how often each call is the innermost one in the stacks of a profile, together with the functions
// inlined in it. It counts like the compiler, for which a call of an outer function is one call, however often it is
// seen.
func countCalls(p *profile.Profile) (map[callSite]int64, error) {
	index := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == "samples" })
	if index < 0 {
		return nil, errors.New("profile for the compiler: no profile of processor time")
	}
	calls := map[callSite]int64{}
	for _, sample := range p.Sample {
		var stack []profile.Line // the innermost first
		for _, l := range sample.Location[:min(2, len(sample.Location))] {
			stack = append(stack, l.Line...)
		}
		seen := map[callSite]bool{}
		for i := 1; i < len(stack); i++ {
			caller, callee := stack[i], stack[i-1]
			site := callSite{caller.Function.Name, callee.Function.Name, caller.Line - caller.Function.StartLine}
			if !seen[site] {
				seen[site] = true
				calls[site] += sample.Value[index]
			}
		}
	}
	return calls, nil
}
