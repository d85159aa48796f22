// Package lint compares API packages with those of an earlier commit, and finds changes that break clients or stored
// objects.
package lint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gobuffalo/flect"
)

// Options select the packages and the commit to compare.
type Options struct {
	// Dir is the folder to which patterns are relative; empty is the current one.
	Dir string
	// Patterns are patterns of the go command; none means ./... .
	Patterns []string
	// Against is a git commit, branch or tag. Empty means the commit at which the current branch left the main
	// branch, and on the main branch the last commit.
	Against string
}

// Finding is a breaking change.
type Finding struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	// Rule identifies the kind of change, such as field-removed.
	Rule string `json:"rule"`
	// Where is the group, version and kind, and the path of the field.
	Where string `json:"where"`
	// Message describes the consequence and the fix.
	Message string `json:"message"`
	// Note is set if the change breaks no promise, since the version is an alpha version.
	Note bool `json:"note,omitempty"`
	// Accepted is the reason in the file of accepted findings.
	Accepted string `json:"accepted,omitempty"`
}

func (f Finding) String() string {
	at := f.File
	if f.Line > 0 {
		at = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if f.Accepted != "" {
		return fmt.Sprintf("%s: accepted: %s: %s (%s)", at, f.Rule, f.Where, f.Accepted)
	}
	kind := ""
	if f.Note {
		kind = "note: "
	}
	return fmt.Sprintf("%s: %s%s: %s: %s", at, kind, f.Rule, f.Where, f.Message)
}

// Breaks reports whether lint fails for the finding.
func (f Finding) Breaks() bool { return !f.Note && f.Accepted == "" }

// Result is the result of Run.
type Result struct {
	// Against is the commit of the comparison.
	Against string `json:"against"`
	// Findings are sorted by file and line.
	Findings []Finding `json:"findings"`
	// Stale are the lines of accepted findings that match no finding.
	Stale []string `json:"stale,omitempty"`
}

// Run compares the packages. It changes nothing, and needs no network.
func Run(ctx context.Context, o Options) (Result, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return Result{}, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return Result{}, err
	}
	if inRepository(dir) {
		// Without git, lint would find nothing, and CI would pass.
		if _, err := exec.LookPath("git"); err != nil {
			return Result{}, errors.New("the git command is not in PATH, and annex lint api needs it to read the earlier commit: install git")
		}
	}
	root, err := git(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return Result{}, ErrNoRepository
	}
	if _, err := git(ctx, root, "rev-parse", "--verify", "--quiet", "HEAD"); err != nil {
		return Result{}, ErrNoRepository
	}
	commit, err := baseline(ctx, root, o.Against)
	if err != nil {
		return Result{}, err
	}
	copied, err := checkout(ctx, root, commit)
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(copied)
	if err := anchor(root, copied); err != nil {
		return Result{}, fmt.Errorf("check out %s: %w", commit, err)
	}
	result := Result{Against: commit}
	empty := true
	for _, m := range modules(dir, o.Patterns) {
		c, err := compare(ctx, root, copied, m, commit)
		if err != nil {
			return Result{}, err
		}
		empty = empty && len(c.after.versions) == 0 && len(c.before.versions) == 0
		stale, err := accept(m.dir, c.findings)
		if err != nil {
			return Result{}, err
		}
		result.Findings, result.Stale = append(result.Findings, c.findings...), append(result.Stale, stale...)
	}
	if empty {
		return Result{}, fmt.Errorf("no API packages in %s, neither now nor at %.12s: mark an API package with the comment // "+
			"+groupName=GROUP above its package clause", cmp.Or(strings.Join(o.Patterns, " "), "./..."), commit)
	}
	for i := range result.Findings {
		f := &result.Findings[i]
		if short, err := filepath.Rel(dir, filepath.Join(root, f.File)); err == nil {
			f.File = short
		}
	}
	slices.SortStableFunc(result.Findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line)
	})
	return result, nil
}

// module is a folder of a Go module with the patterns in it, since the go command works on one module at a time.
type module struct {
	dir      string
	patterns []string
}

// modules groups patterns by module. A pattern that is not a folder is resolved in dir.
func modules(dir string, patterns []string) []module {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	var all []module
	for _, pattern := range patterns {
		from, relative := dir, pattern
		folder, rest := strings.TrimSuffix(pattern, "/..."), ""
		if folder != pattern {
			rest = "/..."
		}
		if filepath.IsAbs(folder) || folder == "." || folder == ".." || strings.HasPrefix(folder, "./") || strings.HasPrefix(folder, "../") {
			if !filepath.IsAbs(folder) {
				folder = filepath.Join(dir, folder)
			}
			if root, ok := moduleRoot(folder); ok && root != dir {
				if rel, err := filepath.Rel(root, folder); err == nil {
					from, relative = root, "./"+filepath.ToSlash(rel)+rest
				}
			}
		}
		i := slices.IndexFunc(all, func(m module) bool { return m.dir == from })
		if i < 0 {
			i = len(all)
			all = append(all, module{dir: from})
		}
		all[i].patterns = append(all[i].patterns, relative)
	}
	return all
}

// moduleRoot returns the nearest folder with a go.mod at or above dir, which may not exist any more.
func moduleRoot(dir string) (string, bool) {
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}

// compare compares the packages of a module.
func compare(ctx context.Context, root, copied string, m module, commit string) (*comparison, error) {
	rel, err := filepath.Rel(root, m.dir)
	if err != nil {
		return nil, err
	}
	now, err := read(ctx, root, m.dir, m.patterns)
	if err != nil {
		return nil, err
	}
	was, err := read(ctx, copied, filepath.Join(copied, rel), m.patterns)
	if err != nil {
		return nil, fmt.Errorf("at %.12s: %w", commit, err)
	}
	c := &comparison{before: was, after: now, seen: map[string]bool{}, compared: map[string]bool{}}
	c.versions()
	c.findings = append(c.findings, now.unenforced()...)
	return c, nil
}

type comparison struct {
	before, after *source
	findings      []Finding
	seen          map[string]bool // findings
	compared      map[string]bool // pairs of types
	version       *version        // currently compared
	kind          string
}

// find adds a finding about the currently compared kind.
func (c *comparison) find(file string, line int, rule, path, format string, args ...any) {
	where := strings.TrimSpace(strings.TrimSpace(c.version.name+" "+c.kind) + " " + path)
	if c.seen[rule+where] {
		return
	}
	c.seen[rule+where] = true
	always := rule == "proto-number" || rule == "version-removed" || rule == "kind-removed"
	c.findings = append(c.findings, Finding{
		File: file, Line: line, Rule: rule, Where: where, Message: fmt.Sprintf(format, args...),
		Note: strings.Contains(c.version.version, "alpha") && !always,
	})
}

func (c *comparison) versions() {
	for _, name := range slices.Sorted(maps.Keys(c.before.versions)) {
		old := c.before.versions[name]
		c.version, c.kind = old, ""
		at := c.before.position(old.pkg.Syntax[0].Package)
		now := c.after.versions[name]
		if now == nil {
			if len(old.kinds) == 0 {
				continue
			}
			c.find(at.Filename, 0, "version-removed", "",
				"the version was removed: its clients get 404, and the server cannot read objects stored in it; check with SERVER storage "+
					"stats for such objects, and keep the version, Unserved, until none exist")
			continue
		}
		for _, kind := range old.kinds {
			c.kind = kind
			if !slices.Contains(now.kinds, kind) {
				file := c.after.position(now.pkg.Syntax[0].Package)
				c.find(file.Filename, file.Line, "kind-removed", "",
					"the kind was removed: its clients get 404, and the server cannot read its stored objects; check with SERVER storage "+
						"stats for such objects, and keep the kind, Unserved, until none exist%s", renamed(old, now))
				continue
			}
			c.kinds(old, now, kind)
		}
		c.kind = ""
		c.protos(old, now)
	}
}

// renamed returns a hint about the kind's possible new name.
func renamed(old, now *version) string {
	for _, kind := range now.kinds {
		if !slices.Contains(old.kinds, kind) {
			return fmt.Sprintf("; if the kind moved to %s, serve both with AlsoServedAs", kind)
		}
	}
	return ""
}

func (c *comparison) kinds(old, now *version, kind string) {
	wasKey, isKey := old.pkg.PkgPath+"."+kind, now.pkg.PkgPath+"."+kind
	was, is := c.before.types[wasKey], c.after.types[isKey]
	at := c.after.position(is.spec.Pos())
	wasServed, isServed := c.before.servedAs(old.pkg.PkgPath, kind), c.after.servedAs(now.pkg.PkgPath, kind)
	if wasServed == nil || isServed == nil {
		// A server's definition has the resource, and may have the scope; without a definition, markers have both.
		c.markedNames(at, was.marks, is.marks, kind)
	}
	if is.marks.has("kubebuilder:unservedversion") && !was.marks.has("kubebuilder:unservedversion") {
		c.find(
			at.Filename,
			at.Line,
			"version-unserved",
			"",
			"the version is no longer served: its clients get 404; deprecate it first, and wait",
		)
	}
	if wasServed == nil || c.before.served[wasKey] == wasServed {
		// A server's definition is compared once, with the hub.
		c.definitions(wasServed, isServed, was.marks, is.marks)
		if wasServed == nil || isServed != nil {
			c.lostSubresources(
				at,
				c.before.subresources(old, was, wasServed),
				c.after.subresources(now, is, isServed),
				isServed != nil && isServed.opaque,
			)
		}
		if wasServed != nil && isServed == nil && !c.after.named[isKey] {
			c.find(at.Filename, at.Line, "kind-unserved", "", "no server passes the kind to KindOf any more, as the server at %s did: its "+
				"clients get 404, and nobody can read its stored objects; serve the kind, or delete the objects with the last server that "+
				"serves it",
				wasServed.pos.Filename)
		}
	}
	oldType, ok := was.object.Type().(*types.Named)
	newType, also := is.object.Type().(*types.Named)
	if ok && also {
		c.tighten(at.Filename, at.Line, "", was.marks, is.marks)
		c.structs("", oldType, newType)
	}
}

// markedNames compares the resource and the scope in a kind's markers.
func (c *comparison) markedNames(at token.Position, was, is marks, kind string) {
	for _, name := range []string{"path", "scope"} {
		before, after := resourceArgument(was, name), resourceArgument(is, name)
		ordinary := "Namespaced"
		if name == "path" {
			ordinary = strings.ToLower(flect.Pluralize(kind)) // the default of controller-tools
		}
		before, after = cmp.Or(before, ordinary), cmp.Or(after, ordinary)
		if before != after {
			c.find(at.Filename, at.Line, name+"-changed", "", "+kubebuilder:resource:%s was %q and is %q: clients no longer find the "+
				"objects; revert the change, or create a new kind", name, before, after)
		}
	}
}

// subresources returns the subresources of a version of a kind, each with the way to keep it. It reads servers'
// definitions that are one expression, and returns nil for others.
func (s *source) subresources(v *version, d *declaration, served *servedKind) map[string]string {
	if served == nil && s.named[v.pkg.PkgPath+"."+d.spec.Name.Name] {
		return nil
	}
	all := map[string]string{}
	status := served == nil || !served.withoutStatus
	if v.marked &&
		(d.marks.has("kubebuilder:subresource:status", "kubebuilder:subresource:scale") ||
			slices.Contains(d.marks["kubebuilder:object:root"], "true")) {
		status = d.marks.has("kubebuilder:subresource:status")
	}
	if named, ok := d.object.Type().(*types.Named); ok && status {
		if f, ok := s.fields(named)["status"]; ok && f.goName == "Status" {
			all["status"] = "add +kubebuilder:subresource:status above the kind, and remove WithoutStatus"
		}
	}
	if v.marked && d.marks.has("kubebuilder:subresource:scale") || served != nil && served.scale {
		all["scale"] = "add +kubebuilder:subresource:scale above the kind, or Scale to its registration"
	}
	if served == nil {
		return all
	}
	for name := range served.subresources {
		all[name] = "keep it, or create a new version"
	}
	return all
}

func (c *comparison) lostSubresources(at token.Position, was, is map[string]string, opaque bool) {
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if _, kept := is[name]; kept || is == nil || opaque && name != "status" && name != "scale" {
			continue
		}
		c.find(at.Filename, at.Line, "subresource-removed", "/"+name, "is no longer served: its clients get 404%s; %s", map[string]string{
			"status": ", and everyone who may write the object may also write its status",
		}[name], was[name])
	}
}

func resourceArgument(m marks, name string) string {
	for _, value := range m["kubebuilder:resource"] {
		for _, argument := range strings.Split(value, ",") {
			if v, ok := strings.CutPrefix(argument, name+"="); ok {
				return v
			}
		}
	}
	return ""
}

// definitions compares the servers' definitions of a kind.
func (c *comparison) definitions(was, is *servedKind, wasMarks, isMarks marks) {
	if was == nil || is == nil {
		return
	}
	if was.resource != is.resource {
		c.find(is.pos.Filename, is.pos.Line, "path-changed", "", "the resource was %q and is %q: neither clients nor the server find the "+
			"stored objects any more; revert the change", was.resource, is.resource)
	}
	cluster := func(k *servedKind, m marks) bool { return k.clusterScoped || resourceArgument(m, "scope") == "Cluster" }
	if cluster(was, wasMarks) != cluster(is, isMarks) {
		c.find(is.pos.Filename, is.pos.Line, "scope-changed", "", "the scope changed: neither clients nor the server find the stored "+
			"objects any more; revert the change, or create a new kind")
	}
	for _, path := range slices.Sorted(maps.Keys(was.versions)) {
		if !is.versions[path] && c.after.packages[path] != nil {
			c.find(is.pos.Filename, is.pos.Line, "version-unserved", c.after.packages[path].Name,
				"the version is no longer served: its clients get 404; deprecate the version first. While objects are stored in it, which "+
					"SERVER storage stats counts, keep it declared with Unserved")
		}
	}
}

// structs compares the fields of two struct types.
func (c *comparison) structs(path string, was, is *types.Named) {
	// A type is compared once for a version: it may occur in many places, and be recursive.
	pair := c.version.name + " " + typeKey(was) + " " + typeKey(is)
	if c.compared[pair] {
		return
	}
	c.compared[pair] = true
	before, after := c.before.fields(was), c.after.fields(is)
	at := c.typePosition(is)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		old := before[name]
		now, ok := after[name]
		if ok {
			c.field(path+"."+name, old, now)
			continue
		}
		if other, ok := sameGoName(old, before, after); ok {
			c.find(other.pos.Filename, other.pos.Line, "field-renamed", path+"."+name, "was renamed to %s: values that clients write and "+
				"stored values are lost; keep the name, or keep both fields", other.name)
			continue
		}
		c.find(at.file, at.line, "field-removed", path+"."+name, "was removed: values that clients write and stored values are lost; keep "+
			"the field as deprecated, or create a new version")
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		now := after[name]
		if _, ok := before[name]; ok {
			continue
		}
		_, defaulted := now.marks.defaultOf()
		if now.required && !defaulted {
			c.find(now.pos.Filename, now.pos.Line, "field-required", path+"."+name, "is new and required: objects of clients and stored "+
				"objects do not have it; make the field optional, or add a default")
		}
		for _, old := range before {
			if _, kept := after[old.name]; old.number != "" && old.number == now.number && (!kept || after[old.name].number != old.number) {
				c.find(now.pos.Filename, now.pos.Line, "proto-number", path+"."+name, "has the protobuf number %s, which %s had before: "+
					"the server misreads objects stored as protobuf; use a new number", now.number, old.name)
			}
		}
	}
}

type place struct {
	file string
	line int
}

func (c *comparison) typePosition(named *types.Named) place {
	p := c.after.position(named.Obj().Pos())
	return place{p.Filename, p.Line}
}

// sameGoName returns the new field with the Go name of a removed one.
func sameGoName(old field, before, after map[string]field) (field, bool) {
	for _, f := range after {
		if _, had := before[f.name]; !had && f.goName == old.goName {
			return f, true
		}
	}
	return field{}, false
}

func (c *comparison) field(path string, was, is field) {
	at := is.pos
	if is.required && !was.required {
		c.find(
			at.Filename,
			at.Line,
			"field-required",
			path,
			"was optional: the server rejects objects without it; make the field optional again, or add a default",
		)
	}
	if was.number != "" && is.number != was.number {
		c.find(at.Filename, at.Line, "proto-number", path, "had the protobuf number %s and has %q: the server misreads objects stored as "+
			"protobuf; revert the change", was.number, is.number)
	}
	oldMarks, newMarks := c.before.allMarks(was), c.after.allMarks(is)
	before, had := oldMarks.defaultOf()
	after, has := newMarks.defaultOf()
	switch {
	case had && !has:
		c.find(
			at.Filename,
			at.Line,
			"default-changed",
			path,
			"the default %s was removed: objects without the field change their meaning; keep the default",
			before,
		)
	case has && !had && !was.required:
		c.find(at.Filename, at.Line, "default-changed", path, "has the new default %s: objects without the field change their meaning; "+
			"create a new field or a new version", after)
	case before != after && had:
		c.find(at.Filename, at.Line, "default-changed", path, "the default was %s and is %s: objects without the field change their "+
			"meaning; keep the default, or create a new version", before, after)
	}
	if before, after := oldMarks.listType(), newMarks.listType(); before != after {
		c.find(at.Filename, at.Line, "list-type-changed", path, "the list type was %q and is %q: patches and server-side apply merge the "+
			"list in another way, and the owners of its items are lost; keep the list type", before, after)
	}
	c.tighten(at.Filename, at.Line, path, oldMarks, newMarks)
	c.types(path, at.Filename, at.Line, was.typ, is.typ)
}

// allMarks returns the markers of a field and of its type.
func (s *source) allMarks(f field) marks {
	if named, ok := namedOf(f.typ); ok {
		if d := s.types[typeKey(named)]; d != nil {
			return f.marks.with(d.marks)
		}
	}
	return f.marks
}

func (c *comparison) tighten(file string, line int, path string, was, is marks) {
	for _, what := range tightened(was, is) {
		c.find(file, line, "validation-tightened", strings.TrimSpace(path+" ("+what+")"), "the server rejects values that it accepted "+
			"before, in new objects and in changes; keep the validation, or create a new version")
	}
	if values, ok := is.enumOf(); ok {
		old, had := was.enumOf()
		c.enum(file, line, path, old, values, had)
	}
}

func (c *comparison) enum(file string, line int, path string, old, now []string, had bool) {
	if !had {
		c.find(
			file,
			line,
			"validation-tightened",
			path+" (enum)",
			"accepted any value and now accepts %s: the server rejects objects with other values; create a new version",
			strings.Join(now, ", "),
		)
		return
	}
	for _, value := range old {
		if !slices.Contains(now, value) {
			c.find(
				file,
				line,
				"enum-value-removed",
				fmt.Sprintf("%s %q", path, value),
				"the value is no longer accepted: the server rejects objects with it; keep the value",
			)
		}
	}
}

// types compares the possible values of a field.
func (c *comparison) types(path, file string, line int, was, is types.Type) {
	oldNamed, oldOK := namedOf(was)
	newNamed, newOK := namedOf(is)
	if oldOK && newOK {
		if c.before.own(oldNamed) && c.after.own(newNamed) {
			old, enum := c.before.constants(oldNamed), c.after.constants(newNamed)
			if len(enum) > 0 {
				c.enum(file, line, path, old, enum, len(old) > 0)
			}
		}
		if !c.before.own(oldNamed) && !c.after.own(newNamed) {
			if typeKey(oldNamed) != typeKey(newNamed) && shape(was) != shape(is) {
				c.retyped(path, file, line, was, is)
			}
			return
		}
	}
	old, now := underlying(was), underlying(is)
	if shape(was) != shape(is) {
		c.retyped(path, file, line, was, is)
		return
	}
	switch o := old.(type) {
	case *types.Struct:
		if oldOK && newOK && c.before.own(oldNamed) && c.after.own(newNamed) {
			c.structs(path, oldNamed, newNamed)
		}
	case *types.Slice:
		c.types(path+"[*]", file, line, o.Elem(), now.(*types.Slice).Elem())
	case *types.Map:
		c.types(path+"[*]", file, line, o.Elem(), now.(*types.Map).Elem())
	}
}

func (c *comparison) retyped(path, file string, line int, was, is types.Type) {
	c.find(file, line, "field-retyped", path, "was %s and is %s: the server cannot read values of clients and stored values; keep the "+
		"type, or create a new field", show(was), show(is))
}

func underlying(t types.Type) types.Type {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		return p.Elem().Underlying()
	}
	return t.Underlying()
}

// shape returns the JSON type of a Go type, one level deep. A type with an encoding of its own is a shape of its own.
func shape(t types.Type) string {
	if named, ok := namedOf(t); ok && encodesItself(named) {
		return typeKey(named)
	}
	switch u := underlying(t).(type) {
	case *types.Basic:
		return u.Name()
	case *types.Struct:
		return "object"
	case *types.Slice:
		if b, ok := u.Elem().Underlying().(*types.Basic); ok && b.Kind() == types.Byte {
			return "bytes"
		}
		return "list"
	case *types.Map:
		return "map"
	}
	return t.String()
}

func encodesItself(named *types.Named) bool {
	for _, method := range []string{"MarshalJSON", "MarshalText"} {
		if object, _, _ := types.LookupFieldOrMethod(types.NewPointer(named), true, named.Obj().Pkg(), method); object != nil {
			if f, ok := object.(*types.Func); ok && f != nil {
				return true
			}
		}
	}
	return false
}

func show(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string { return p.Name() })
}

// protos compares the field numbers in generated.proto.
func (c *comparison) protos(old, now *version) {
	for _, message := range slices.Sorted(maps.Keys(old.proto)) {
		fields, ok := now.proto[message]
		if !ok {
			continue
		}
		file := filepath.Join(filepath.Dir(c.after.position(now.pkg.Syntax[0].Package).Filename), "generated.proto")
		for _, name := range slices.Sorted(maps.Keys(old.proto[message])) {
			number := old.proto[message][name]
			if is, ok := fields[name]; ok && is != number {
				c.find(file, 0, "proto-number", message+"."+name, "had the number %d and has %d: the server misreads objects stored as "+
					"protobuf; revert the change", number, is)
			}
			for other, is := range fields {
				if _, had := old.proto[message][other]; !had && is == number {
					c.find(file, 0, "proto-number", message+"."+other, "has the number %d, which %s had before: the server misreads "+
						"objects stored as protobuf; use a new number", is, name)
				}
			}
		}
	}
}
