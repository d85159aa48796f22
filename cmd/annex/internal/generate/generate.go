// Package generate generates the code that a server needs for an API package, beside its types: copying methods,
// defaults, OpenAPI definitions and registration, in one file per package.
//
// A process of its own, the worker, does the work, because the upstream generators exit their process on errors. The
// worker parses the packages once, runs every generator over the same types, and returns the text of the files. Only
// then does the caller write files, so that a failed run changes nothing.
package generate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/annexapi/annex/cmd/annex/internal/generate/protobuf"
)

// Options configure a run.
type Options struct {
	// Args are folders, or patterns of the go command such as ./apis/... or
	// example.com/apis/v1. Empty means ./... .
	Args []string

	// Dir is the folder to which relative arguments are relative. Empty means the current one.
	Dir string

	// Check compares the result with the files, and writes nothing.
	Check bool

	// For is the import path of a package that cannot be edited. Its facts are written into the package in the one
	// folder of Args, for the group version As, or for the package's own group version if As is empty.
	For, As string

	// Clients is the folder for typed clients of the packages' kinds, in packages below it. Empty means none.
	Clients string

	// Header is a file with comments for the beginning of generated Go files, such as a licence. If it is empty, each
	// file keeps its current header.
	Header string

	// Anew generates even if nothing has changed since an earlier run.
	Anew bool

	// Module is the tool's own module, which fixes the versions of generators that are separate programs.
	Module Module

	// Worker is the command that runs Work.
	Worker []string
}

// Package is the result for one package.
type Package struct {
	// Package is the import path.
	Package string `json:"package"`
	// File is the generated file, relative to Options.Dir.
	File string `json:"file"`
	// Proto is the .proto file beside it, empty for a package without protobuf.
	Proto string `json:"proto,omitempty"`
	// Group and Version are empty for a package of shared types, which has no group.
	Group   string `json:"group,omitempty"`
	Version string `json:"version,omitempty"`
	// Kinds are the names of the package's kinds, sorted, without their lists.
	Kinds []string `json:"kinds"`
	// Changed reports whether one of the files was written, or with Check would be; FileChanged and ProtoChanged
	// report which.
	Changed      bool `json:"changed"`
	FileChanged  bool `json:"-"`
	ProtoChanged bool `json:"-"`
}

// Result is the result of a run: its packages, sorted by import path, and the files of the clients, sorted by path.
type Result struct {
	Packages []Package
	Clients  []ClientFile
}

// Run generates the matching packages, writes the files that differ and returns all. Every file is replaced
// atomically, and no file is written if there is any problem. The error is Problems if the packages are its cause.
func Run(ctx context.Context, o Options) (Result, error) {
	packages, clients, err := run(ctx, o)
	if err != nil {
		return Result{}, err
	}
	return Result{packages, clients}, nil
}

func run(ctx context.Context, o Options) ([]Package, []ClientFile, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("generate: %w", err)
	}
	requests, err := requestsOf(dir, o)
	if err != nil {
		return nil, nil, err
	}
	header, err := readHeader(o.Header)
	if err != nil {
		return nil, nil, err
	}
	into := ""
	if o.Clients != "" {
		if into, err = clientsDir(dir, o, requests); err != nil {
			return nil, nil, err
		}
	}
	var outputs []output
	var made []clientFile
	for _, r := range requests {
		r.Module, r.Clients = o.Module, into
		start := time.Now()
		path, workspace := "", ""
		if !o.Anew {
			path, workspace = recordOf(ctx, r)
		}
		if packages, clients, ok := recall(path, r); ok {
			outputs, made = append(outputs, packages...), append(made, clients...)
			continue
		}
		resp, err := work(ctx, o.Worker, r)
		if err != nil {
			return nil, nil, err
		}
		if len(resp.Problems) > 0 {
			return nil, nil, relative(resp.Problems, dir)
		}
		// Without a record the next run takes longer, but is still correct.
		_ = remember(path, workspace, r, resp, start)
		outputs, made = append(outputs, resp.Packages...), append(made, resp.Clients...)
	}
	slices.SortFunc(outputs, func(a, b output) int { return strings.Compare(a.Package, b.Package) })

	for i, out := range outputs {
		if outputs[i].Source, err = withHeader(filepath.Join(out.Dir, FileName), out.Source, header); err != nil {
			return nil, nil, err
		}
	}
	for i, f := range made {
		if made[i].Source, err = withHeader(filepath.Join(into, filepath.FromSlash(f.Name)), f.Source, header); err != nil {
			return nil, nil, err
		}
	}
	packages := make([]Package, len(outputs))
	for i, out := range outputs {
		p := Package{Package: out.Package, Group: out.Group, Version: out.Version, Kinds: out.Kinds}
		for file, text := range out.files() {
			before, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, nil, fmt.Errorf("generate: %w", err)
			}
			changed := !bytes.Equal(before, []byte(text))
			if filepath.Base(file) == FileName {
				p.File, p.FileChanged = shorten(file, dir), changed
			} else {
				p.Proto, p.ProtoChanged = shorten(file, dir), changed
			}
			p.Changed = p.Changed || changed
		}
		packages[i] = p
	}
	clients, err := compareClients(into, dir, made)
	if err != nil {
		return nil, nil, err
	}
	if o.Check {
		return packages, clients, nil
	}
	for i, out := range outputs {
		if !packages[i].Changed {
			continue
		}
		if err := os.MkdirAll(out.Dir, 0o755); err != nil {
			return nil, nil, fmt.Errorf("generate: %w", err)
		}
		for file, text := range out.files() {
			changed := packages[i].FileChanged
			if filepath.Base(file) != FileName {
				changed = packages[i].ProtoChanged
			}
			if !changed {
				continue
			}
			if err := writeWhole(file, []byte(text), 0o644); err != nil {
				return nil, nil, err
			}
		}
	}
	if err := writeClients(into, made); err != nil {
		return nil, nil, err
	}
	return packages, clients, nil
}

// files returns the files of a package, by name. The .proto file comes first, since it is the record of the field
// numbers in the Go file.
func (o output) files() iter.Seq2[string, string] {
	return func(yield func(file, text string) bool) {
		if o.Proto != "" && !yield(filepath.Join(o.Dir, protobuf.FileName), o.Proto) {
			return
		}
		yield(filepath.Join(o.Dir, FileName), o.Source)
	}
}

// moduleRequest is a request, with the folder of its module.
type moduleRequest struct {
	dir string
	request
}

func requestsOf(dir string, o Options) ([]moduleRequest, error) {
	if o.For == "" {
		return requestsByModule(dir, o.Args)
	}
	r, err := foreignRequest(dir, o)
	return []moduleRequest{r}, err
}

// requestsByModule groups arguments by their Go module, since the go command works on one module at a time.
func requestsByModule(dir string, args []string) ([]moduleRequest, error) {
	if len(args) == 0 {
		args = []string{"./..."}
	}
	var all []moduleRequest
	for _, arg := range args {
		folder, wildcard := strings.CutSuffix(filepath.ToSlash(arg), "/...")
		if folder == "..." {
			folder, wildcard = ".", true
		}
		abs := folder
		if !filepath.IsAbs(abs) {
			abs = filepath.Join(dir, folder)
		}
		info, err := os.Stat(abs)
		explicitPath := filepath.IsAbs(folder) || folder == "." || folder == ".." || strings.HasPrefix(folder, "./") ||
			strings.HasPrefix(folder, "../")
		switch {
		case err == nil && info.IsDir():
		case err == nil:
			return nil, Problem{File: arg, Message: "is a file: pass the folder of a Go package"}
		case explicitPath:
			return nil, Problem{File: arg, Message: "no such folder"}
		default:
			all = addRequest(all, dir, arg, "")
			continue
		}
		// The go command names packages by the real path of their folder.
		if abs, err = filepath.EvalSymlinks(abs); err != nil {
			return nil, fmt.Errorf("generate: %w", err)
		}
		root, ok := moduleRoot(abs)
		if !ok {
			return nil, Problem{File: arg, Message: "is not in a Go module: run go mod init in the module's folder"}
		}
		if wildcard {
			all = addRequest(all, root, filepath.Join(abs, "..."), "")
		} else {
			all = addRequest(all, root, abs, abs)
		}
	}
	return all, nil
}

func addRequest(all []moduleRequest, dir, pattern, explicit string) []moduleRequest {
	i := slices.IndexFunc(all, func(r moduleRequest) bool { return r.dir == dir })
	if i < 0 {
		all = append(all, moduleRequest{dir: dir})
		i = len(all) - 1
	}
	all[i].Patterns = append(all[i].Patterns, pattern)
	if explicit != "" {
		all[i].Explicit = append(all[i].Explicit, explicit)
	}
	return all
}

// moduleRoot returns the nearest folder at or above dir that has a go.mod.
func moduleRoot(dir string) (string, bool) {
	for {
		if info, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil && !info.IsDir() {
			return dir, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}

// work runs one worker.
func work(ctx context.Context, command []string, r moduleRequest) (response, error) {
	in, err := json.Marshal(r.request)
	if err != nil {
		return response{}, fmt.Errorf("start worker: %w", err)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = r.dir
	// PWD makes the go command print paths below the folder under the name that the user gave.
	cmd.Env = append(os.Environ(), "PWD="+r.dir)
	cmd.Stdin = bytes.NewReader(in)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return response{}, fmt.Errorf("generate: %w", ctx.Err())
		}
		return response{Problems: Problems{lastWords(stderr.String(), err)}}, nil
	}
	var resp response
	if err := json.Unmarshal(stdout.Bytes(), &resp); err != nil {
		return response{}, fmt.Errorf("read worker's answer: %w", err)
	}
	return resp, nil
}

var fatalLine = regexp.MustCompile(`(?m)^(?:F\d{4} \S+\s+\d+ \S+\] |panic: |annex: )(.*)$`)

// lastWords finds the reason for a worker's end, and the package that caused it, in its standard error.
func lastWords(stderr string, err error) Problem {
	p := Problem{Message: "code generation failed: " + err.Error()}
	for _, m := range fatalLine.FindAllStringSubmatch(stderr, -1) {
		if dir, ok := strings.CutPrefix(m[0], workingOn); ok {
			p.File = dir
			continue
		}
		p.Message = "code generation failed: " + oneLine(m[1])
		break
	}
	return p
}

func relative(ps Problems, dir string) Problems {
	out := slices.Clone(ps)
	for i := range out {
		if out[i].File != "" {
			out[i].File = shorten(out[i].File, dir)
		}
	}
	return out
}

// shorten returns path relative to dir.
func shorten(path, dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if rel, err := filepath.Rel(dir, path); err == nil {
		return rel
	}
	return path
}
