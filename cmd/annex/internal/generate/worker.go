package generate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/types"
)

// request is what a worker is asked: the packages that Patterns match. Folders
// in Explicit were named one by one, and must be API packages.
type request struct {
	Patterns []string
	Explicit []string
}

// response is what a worker answers: packages, or problems.
type response struct {
	Packages []output
	Problems Problems
}

// output is one generated package.
type output struct {
	Package string
	Dir     string
	Group   string
	Version string
	Kinds   []string
	Source  string
}

// Work reads one request from in, generates in the current folder and answers
// on out. It writes no other file. It belongs in a process of its own: the
// generators' libraries end the process, through klog, when they meet a type
// they cannot handle.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	var req request
	if err := json.NewDecoder(in).Decode(&req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	packages, err := generateAll(ctx, req)
	resp := response{Packages: packages}
	if err != nil {
		resp = response{Problems: asProblems(err)}
	}
	if err := json.NewEncoder(out).Encode(resp); err != nil {
		return fmt.Errorf("write response: %w", err)
	}
	return nil
}

func generateAll(ctx context.Context, req request) ([]output, error) {
	l, err := load(ctx, req)
	if err != nil {
		return nil, err
	}
	stubs := map[string]string{}
	for _, s := range l.sources {
		stubs[s.path] = stub(s, l.universe[s.path])
	}
	problems, err := l.check(stubs)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, problems
	}
	for _, s := range l.sources {
		if s.group != "" && len(findObjects(l.universe[s.path]).kinds) == 0 {
			at := s.position()
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
				"package %s has no kinds: a kind is an exported struct that embeds metav1.TypeMeta and metav1.ObjectMeta", s.name)})
		}
		l.markDeepcopy(s)
		l.markDefaults(s)
		l.markOpenAPI(s)
	}
	if len(problems) > 0 {
		return nil, problems
	}

	var outputs []output
	sources := map[string]string{}
	for _, s := range l.sources {
		o, err := l.generate(s)
		if err != nil {
			return nil, err
		}
		sources[s.path] = o.Source
		outputs = append(outputs, o)
	}
	problems, err = l.check(sources)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, l.explain(problems)
	}
	return outputs, nil
}

// generate runs every generator on one package.
func (l *loaded) generate(s *source) (output, error) {
	pkg := l.universe[s.path]
	generators := []func(*source) ([]*generator.File, error){l.deepcopy, l.models}
	if s.group != "" {
		generators = append(generators, l.defaults, l.openapi)
	}
	m := newMerger(s)
	functions := map[string]bool{}
	for name := range s.declared {
		functions[name] = true
	}
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
	o := output{Package: s.path, Dir: s.dir, Group: s.group, Version: s.version, Kinds: []string{}}
	if s.group != "" {
		objects := findObjects(pkg)
		p, err := factsOf(s, objects, exportedTypes(pkg), functions).render()
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

// explain turns type errors in generated code, which a person has not written,
// into a hint about where they come from.
func (l *loaded) explain(problems Problems) Problems {
	out := slices.Clone(problems)
	for i, p := range out {
		if filepath.Base(p.File) == FileName {
			out[i].Message = "the generated code would not compile: " + p.Message
			out[i].File, out[i].Line, out[i].Column = filepath.Dir(p.File), 0, 0
		}
	}
	return out
}
