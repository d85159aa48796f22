package generate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"

	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/types"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
)

// request is the input of a worker: the packages that match Patterns. Folders in Explicit were named individually,
// and must be API packages.
type request struct {
	Patterns []string
	Explicit []string
	Module   Module
	Foreign  *foreign // in place of Patterns
	Clients  string   // the folder of the clients, empty for none
}

// response is the output of a worker: packages, or problems.
type response struct {
	Packages []output
	Clients  []clientFile
	Problems Problems
	// Read lists the input files of the packages, except for files of module versions, which cannot change.
	Read []string
}

// output is one generated package.
type output struct {
	Package string
	Dir     string
	Group   string
	Version string
	Kinds   []string
	Source  string
	Proto   string // the .proto file, empty if there is none
}

// workingOn begins a line in standard error with the package that a worker works on, so that an unexpected end can be
// explained.
const workingOn = "annex: generating "

// heapLimit is the heap size, in bytes, from which a worker collects garbage. A package of three kinds takes 0.7 GB,
// one of fifty 0.85 GB.
const heapLimit = 2 << 30

// Work reads one request from in, generates in the current folder and writes the response to out. It writes no other
// file. It needs a process of its own: the generators' libraries exit the process, through klog, at a type that they
// cannot handle.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	// The process is short-lived, and so is its heap, mostly syntax trees: a collection would free little, and cost a
	// fifth of the time.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(heapLimit))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))

	var req request
	if err := json.NewDecoder(in).Decode(&req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	resp, err := generateAll(ctx, req)
	if err != nil {
		resp = response{Problems: asProblems(err)}
	}
	if err := json.NewEncoder(out).Encode(resp); err != nil {
		return fmt.Errorf("write response: %w", err)
	}
	return nil
}

func generateAll(ctx context.Context, req request) (response, error) {
	if req.Foreign != nil {
		packages, read, err := generateForeign(ctx, *req.Foreign)
		return response{Packages: packages, Read: read}, err
	}
	if req.Clients != "" {
		if err := checkClientPackages(ctx); err != nil {
			return response{}, err
		}
	}
	l, err := load(ctx, req)
	if err != nil {
		return response{}, err
	}
	defer l.validations.stop()
	var problems Problems
	for _, s := range l.sources {
		problems = append(problems, l.methodless(s)...)
	}
	if len(problems) > 0 {
		return response{}, problems
	}
	stubs := map[string]string{}
	for _, s := range slices.Concat(l.sources, l.neighbours) {
		stubs[s.path] = l.stub(s)
	}
	problems, err = l.check(stubs)
	if err != nil {
		return response{}, err
	}
	if len(problems) > 0 {
		return response{}, problems
	}
	for _, s := range l.sources {
		problems = append(problems, l.validate(s)...)
	}
	if len(problems) > 0 {
		return response{}, problems
	}

	for _, s := range l.sources {
		s.keepComments(l.universe[s.path])
	}
	// All packages are marked before any is generated, since they may refer to each other.
	for _, s := range slices.Concat(l.sources, l.neighbours) {
		l.universe.Package(s.path).Comments = s.lines()
		l.markDeepcopy(s)
		l.markDefaults(s)
		l.markOpenAPI(s)
	}
	validations, err := l.validations.wait()
	if err != nil {
		return response{}, err
	}
	marked, err := l.markers()
	if err != nil {
		return response{}, err
	}
	var outputs []output
	sources := maps.Clone(stubs)
	for _, s := range l.sources {
		fmt.Fprintf(os.Stderr, "%s%s\n", workingOn, s.dir)
		o, err := l.generate(s, validations[s.path], marked)
		if err != nil {
			for _, p := range asProblems(err) {
				p.File = cmp.Or(p.File, s.dir)
				problems = append(problems, p)
			}
			continue
		}
		sources[s.path] = o.Source
		outputs = append(outputs, o)
	}
	if len(problems) > 0 {
		return response{}, problems
	}
	problems, err = l.check(sources)
	if err != nil {
		return response{}, err
	}
	if len(problems) > 0 {
		return response{}, l.explain(problems, sources)
	}
	for _, s := range l.sources {
		problems = append(problems, l.sameKinds(s)...)
	}
	if len(problems) > 0 {
		return response{}, problems
	}
	resp := response{Packages: outputs, Read: l.read()}
	if req.Clients != "" {
		fmt.Fprintf(os.Stderr, "%s%s\n", workingOn, req.Clients)
		if resp.Clients, err = l.clients(req.Clients, marked); err != nil {
			return response{}, err
		}
	}
	return resp, nil
}

// generate runs all generators on one package; validations is the code from validation-gen, and marked holds the
// packages with kubebuilder markers.
func (l *packageSet) generate(s *source, validations part, marked *schema.Packages) (output, error) {
	generators := []func(*source) ([]*generator.File, error){l.deepcopy, l.models}
	if s.group != "" {
		generators = append(generators, l.defaults, l.conversions, l.openapi)
	}
	m := newMerger(s)
	functions := map[string]bool{}
	for name := range s.declared {
		functions[name] = true
	}
	o := output{Package: s.path, Dir: s.dir, Group: s.group, Version: s.version, Kinds: []string{}}
	for _, generate := range generators {
		files, err := generate(s)
		if err != nil {
			return output{}, err
		}
		for _, f := range files {
			p, err := partOf(f)
			if err != nil {
				return output{}, err
			}
			if err := m.add(p, functions); err != nil {
				return output{}, err
			}
		}
	}
	if err := m.add(validations, functions); err != nil {
		return output{}, err
	}
	if s.protobuf {
		p, proto, err := l.protobuf(s)
		if err != nil {
			return output{}, err
		}
		if err := m.add(p, functions); err != nil {
			return output{}, err
		}
		o.Proto = proto
	}
	if s.group != "" {
		objects := findObjects(l.universe[s.path])
		markers, err := customResources(marked, s, names(objects.kinds), names(objects.other))
		if err != nil {
			return output{}, err
		}
		if markers != nil {
			if err := m.add(*markers, functions); err != nil {
				return output{}, err
			}
		}
		facts := factsOf(s, objects, functions)
		facts.Options = l.validationOptions(s)
		p, err := facts.render()
		if err != nil {
			return output{}, err
		}
		if err := m.add(p, functions); err != nil {
			return output{}, err
		}
		o.Kinds = names(objects.kinds)
	}
	text, err := m.file()
	o.Source = string(text)
	return o, err
}

func names(ts []*types.Type) []string {
	all := make([]string, len(ts))
	for i, t := range ts {
		all[i] = t.Name.Name
	}
	slices.Sort(all)
	return all
}
