package scaffold

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const conversionTag = "+k8s:conversion-gen="

// convert adds the tag for conversion to the hub's package to the package of a version. If former is given, it
// replaces the tag for that package.
func (k *projectKind) convert(spoke, hub kindData, former string) error {
	if pkg := k.packages[hub.Version]; pkg != nil {
		for _, s := range pkg.sources {
			if at := s.mentions(spoke.Import); at.IsValid() {
				return k.project.problem(s, at, "%s already depends on %s for another kind, and the reverse dependency would be an import "+
					"cycle: give both kinds the same hub", pkg.dir, spoke.Import)
			}
		}
	}
	pkg := k.packages[spoke.Version]
	if pkg == nil {
		return nil // it is written with the tag
	}
	for _, s := range pkg.sources {
		if slices.Contains(s.tags(conversionTag), hub.Import) {
			return nil
		}
	}
	for _, s := range pkg.sources {
		if line := s.tagLine(conversionTag + former); former != "" && line != nil {
			s.replace(line.Pos(), line.End(), "// "+conversionTag+hub.Import)
			return nil
		}
	}
	for _, s := range pkg.sources {
		if name, _ := groupOf(s); name != "" {
			s.insert(s.file.Package, "// "+conversionTag+hub.Import+"\n")
			return nil
		}
	}
	return k.project.problem(
		pkg.sources[0],
		pkg.sources[0].file.Package,
		"the package has no "+groupTag+": write // %s%s below that",
		conversionTag,
		hub.Import,
	)
}

// tags returns the values of a tag in the file's comments.
func (s *source) tags(tag string) []string {
	var values []string
	s.eachTag(func(_ *ast.Comment, text string) {
		if value, ok := strings.CutPrefix(text, tag); ok {
			values = append(values, strings.TrimSpace(value))
		}
	})
	return values
}

// tagLine returns the comment line that consists of the tag, or nil.
func (s *source) tagLine(tag string) *ast.Comment {
	var found *ast.Comment
	s.eachTag(func(line *ast.Comment, text string) {
		if text == tag {
			found = line
		}
	})
	return found
}

func (s *source) eachTag(do func(line *ast.Comment, text string)) {
	for _, group := range s.file.Comments {
		for _, line := range group.List {
			if text := strings.TrimSpace(strings.TrimPrefix(line.Text, "//")); strings.HasPrefix(text, "+") {
				do(line, text)
			}
		}
	}
}

// mentions returns the position of the import of a package, or of the tag for conversions to it.
func (s *source) mentions(importPath string) token.Pos {
	if slices.Contains(s.tags(conversionTag), importPath) {
		return s.file.Package
	}
	if spec := s.importSpec(importPath); spec != nil {
		return spec.Pos()
	}
	return token.NoPos
}

func (s *source) importSpec(importPath string) *ast.ImportSpec {
	for _, spec := range s.file.Imports {
		if value, err := strconv.Unquote(spec.Path.Value); err == nil && value == importPath {
			return spec
		}
	}
	return nil
}

// ofHub returns the names of the hub's package in the kind's registration, except for those of other versions and for
// API.
func (k *projectKind) ofHub() []string {
	var names []string
	k.eachOfHub(func(sel *ast.SelectorExpr) {
		if sel.Sel.Name != "API" {
			names = append(names, sel.Sel.Name)
		}
	})
	return names
}

func (k *projectKind) eachOfHub(do func(*ast.SelectorExpr)) {
	versions := k.call("Versions")
	ast.Inspect(k.element, func(n ast.Node) bool {
		if versions != nil && slices.ContainsFunc(versions.Args, func(a ast.Expr) bool { return a == n }) {
			return false
		}
		if sel, ok := n.(*ast.SelectorExpr); ok && isSelector(sel, k.pkg, sel.Sel.Name) {
			do(sel)
		}
		return true
	})
}

// moveHub changes all code for the kind's hub to another package, which declares names. It returns a line for each
// place that it could not change.
func (k *projectKind) moveHub(old, added kindData, names map[string]bool) ([]string, error) {
	p := k.project
	pkg := p.server.use(added.Import, added.Pkg)
	k.eachOfHub(func(sel *ast.SelectorExpr) { p.server.replace(sel.X.Pos(), sel.X.End(), pkg) })
	next, err := k.moveVersions(added, pkg)
	if err != nil {
		return nil, err
	}
	moved, err := k.moveFunctions(added)
	if err != nil {
		return nil, err
	}
	k.moveRequests()
	hooks, err := k.moveHooks(old, added, names)
	return slices.Concat(next, moved, hooks), err
}

// requestTypes returns the types of the hub's package, other than the kind, that the functions of the kind's
// subresources take and return. The server registers these types in every version of the kind, so only the hub's
// package can declare them.
func (k *projectKind) requestTypes(hub string) ([]string, error) {
	call := k.call("Subresources")
	if call == nil {
		return nil, nil
	}
	handlers := map[string]bool{}
	for _, arg := range call.Args {
		mentioned(arg, func(id *ast.Ident) { handlers[id.Name] = true })
	}
	p := k.project
	files, err := p.readFiles(filepath.Join(p.root, filepath.FromSlash(path.Dir(p.server.path))))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range files {
		pkg := s.importName(hub)
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !handlers[f.Name.Name] || pkg == "" {
				continue
			}
			ast.Inspect(f.Type, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && isSelector(sel, pkg, sel.Sel.Name) && sel.Sel.Name != k.kind &&
					!slices.Contains(names, sel.Sel.Name) {
					names = append(names, sel.Sel.Name)
				}
				return true
			})
		}
	}
	return names, nil
}

// moveRequests removes declarations from the old hub that only the requests of subresources need. The new hub
// declares them.
func (k *projectKind) moveRequests() {
	theirs := k.hub.reachable(k.requests...)
	for again := true; again; {
		again = false
		for _, s := range k.hub.sources {
			for _, d := range s.file.Decls {
				if slices.ContainsFunc(namesOf(d), func(name string) bool { return theirs[name] }) {
					continue
				}
				mentioned(d, func(id *ast.Ident) {
					if theirs[id.Name] {
						delete(theirs, id.Name)
						again = true
					}
				})
			}
		}
	}
	for _, s := range k.hub.sources {
		for _, d := range s.file.Decls {
			if slices.ContainsFunc(namesOf(d), func(name string) bool { return theirs[name] }) {
				s.remove(d)
			}
		}
	}
}

// emptied reports whether the file would contain nothing but imports.
func (s *source) emptied() bool {
	if len(s.removed) == 0 || s.file.Doc != nil {
		return false
	}
	return !slices.ContainsFunc(s.file.Decls, func(d ast.Decl) bool {
		g, ok := d.(*ast.GenDecl)
		return !slices.Contains(s.removed, d) && (!ok || g.Tok != token.IMPORT)
	})
}

// moveClients changes the calls of typed clients of the kind, as generated by annex generate --clients, to the new
// hub's version. It returns the folder of the clients.
func (s *source) moveClients(k *projectKind, old, added kindData) (folder string) {
	group, _, _ := strings.Cut(k.group, ".")
	title := func(name string) string { return strings.ToUpper(name[:1]) + name[1:] }
	ofKind := func(name string) bool {
		return strings.EqualFold(name, k.resource) || strings.EqualFold(name, k.kind) || strings.HasPrefix(name, k.kind+"Apply") ||
			strings.HasPrefix(name, k.kind+"Lister")
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		kind, ok := n.(*ast.SelectorExpr)
		if !ok || !ofKind(kind.Sel.Name) {
			return true
		}
		call, ok := kind.X.(*ast.CallExpr)
		if !ok {
			return true
		}
		version, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		// For example, clientset.AnimalV1alpha1().Cats(...), and informers.Animal().V1alpha1().Cats().
		for _, prefix := range []string{title(strings.ReplaceAll(group, "-", "")), ""} {
			if version.Sel.Name == prefix+title(old.Version) {
				s.replace(version.Sel.Pos(), version.Sel.End(), prefix+title(added.Version))
				break
			}
		}
		return true
	})
	for _, spec := range s.file.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		own, inModule := strings.CutPrefix(importPath, k.project.module+"/")
		if err != nil || !inModule {
			continue
		}
		for _, part := range []string{"/clientset/", "/informers/", "/listers/", "/applyconfiguration/"} {
			dir, rest, ok := strings.Cut("/"+own, part)
			if !ok {
				continue
			}
			folder = strings.TrimPrefix(dir, "/")
			if path.Base(rest) != old.Version ||
				slices.ContainsFunc(
					s.selectors(importPath, nil),
					func(sel *ast.SelectorExpr) bool { return !ofKind(strings.TrimPrefix(sel.Sel.Name, "New")) },
				) {
				continue
			}
			s.replace(spec.Pos(), spec.End(), fmt.Sprintf("%s %q", s.importName(importPath), path.Join(path.Dir(importPath), added.Version)))
		}
	}
	return folder
}

// dropTwins removes a call of the new hub's AddToScheme that duplicates an existing one: the whole statement, or an
// argument.
func (s *source) dropTwins(moved []*ast.SelectorExpr, there string) map[*ast.SelectorExpr]bool {
	dropped := map[*ast.SelectorExpr]bool{}
	if there == "" {
		return dropped
	}
	text := func(n ast.Node) string { return string(s.text[s.offset(n.Pos()):s.offset(n.End())]) }
	for _, sel := range moved {
		if sel.Sel.Name != "AddToScheme" {
			continue
		}
		after := func(n ast.Node) string {
			from, to := s.offset(sel.X.Pos())-s.offset(n.Pos()), s.offset(sel.X.End())-s.offset(n.Pos())
			whole := text(n)
			return whole[:from] + there + whole[to:]
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if n == nil || n.Pos() > sel.Pos() || n.End() < sel.End() || dropped[sel] {
				return false
			}
			switch n := n.(type) {
			case *ast.BlockStmt:
				for i, stmt := range n.List {
					if !within(sel, stmt) {
						continue
					}
					for j, other := range n.List {
						if i != j && text(other) == after(stmt) {
							s.replace(stmt.Pos(), stmt.End(), "")
							dropped[sel] = true
							return false
						}
					}
				}
			case *ast.CallExpr:
				for i, arg := range n.Args {
					if !within(sel, arg) {
						continue
					}
					for j, other := range n.Args {
						if i == j || text(other) != after(arg) {
							continue
						}
						from, to := arg.Pos(), arg.End()
						if i > 0 {
							from = n.Args[i-1].End()
						} else {
							to = n.Args[i+1].Pos()
						}
						s.replace(from, to, "")
						dropped[sel] = true
						return false
					}
				}
			}
			return true
		})
	}
	return dropped
}

func within(inner, outer ast.Node) bool {
	return outer.Pos() <= inner.Pos() && inner.End() <= outer.End()
}

// moveVersions converts the kind's other versions to the new hub.
func (k *projectKind) moveVersions(added kindData, pkg string) ([]string, error) {
	p := k.project
	call := k.call("Versions")
	if call == nil {
		return nil, nil
	}
	var next []string
	for _, arg := range call.Args {
		version := innermost(arg)
		if version == nil {
			continue
		}
		if generated, ok := version.Fun.(*ast.IndexListExpr); ok && len(generated.Indices) == 2 {
			spoke, _ := generated.Indices[0].(*ast.SelectorExpr)
			hub, _ := generated.Indices[1].(*ast.SelectorExpr)
			if spoke == nil || hub == nil {
				continue
			}
			p.server.replace(hub.X.Pos(), hub.X.End(), pkg)
			if other := k.packageOf(spoke.X); other != nil {
				former := path.Join(p.module, k.hub.dir)
				if k.convertedBeside(spoke.X) {
					former = ""
				}
				if err := k.convert(newKindData(p, k.group, path.Base(other.dir), k.kind, k.resource), added, former); err != nil {
					return nil, err
				}
			}
			continue
		}
		for _, by := range version.Args[min(1, len(version.Args)):] {
			at := fmt.Sprintf("%s:%d", p.show(p.server.path), p.server.fset.Position(by.Pos()).Line)
			if sel, ok := by.(*ast.SelectorExpr); ok {
				if other := k.packageOf(sel.X); other != nil {
					if s, f := other.function(sel.Sel.Name); f != nil {
						at = fmt.Sprintf("%s:%d", p.show(s.path), s.fset.Position(f.Pos()).Line)
					}
				}
			}
			next = append(next, fmt.Sprintf("edit %s   # convert to %s, the new hub", at, added.Version))
		}
	}
	return next, nil
}

// convertedBeside reports whether another kind of the package is converted to the kind's hub.
func (k *projectKind) convertedBeside(pkg ast.Expr) bool {
	name, _ := pkg.(*ast.Ident)
	found := false
	ast.Inspect(k.project.server.file, func(n ast.Node) bool {
		if n == k.element {
			return false
		}
		if generated, ok := n.(*ast.IndexListExpr); ok && len(generated.Indices) == 2 && name != nil {
			spoke, _ := generated.Indices[0].(*ast.SelectorExpr)
			hub, _ := generated.Indices[1].(*ast.SelectorExpr)
			found = found || spoke != nil && hub != nil && isSelector(spoke, name.Name, spoke.Sel.Name) && isSelector(hub, k.pkg, hub.Sel.Name)
		}
		return true
	})
	return found
}

// innermost returns the first call in a chain of method calls.
func innermost(e ast.Expr) *ast.CallExpr {
	for {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return nil
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return call
		}
		if _, chained := sel.X.(*ast.CallExpr); !chained {
			return call
		}
		e = sel.X
	}
}

// packageOf returns the version's package with that import name in the server's file, or nil.
func (k *projectKind) packageOf(name ast.Expr) *apiPackage {
	id, ok := name.(*ast.Ident)
	if !ok {
		return nil
	}
	for _, pkg := range k.packages {
		if k.project.server.importName(path.Join(k.project.module, pkg.dir)) == id.Name {
			return pkg
		}
	}
	return nil
}

// moveFunctions removes from the old hub the functions that the server now calls in the new hub, unless the old
// package calls them, too.
func (k *projectKind) moveFunctions(added kindData) ([]string, error) {
	p := k.project
	all, err := p.readFiles(filepath.Join(p.root, filepath.FromSlash(k.hub.dir)))
	if err != nil {
		return nil, err
	}
	var next []string
	for _, name := range k.ofHub() {
		s, f := k.hub.function(name)
		if f == nil {
			continue
		}
		if caller, at := callerOf(all, name); caller != nil {
			next = append(next, fmt.Sprintf("edit %s:%d   # the server now calls %s of %s, but %s:%d still calls this one",
				p.show(s.path), s.fset.Position(f.Pos()).Line, name, added.Version, p.show(caller.path), caller.fset.Position(at).Line))
			continue
		}
		s.remove(f)
	}
	return next, nil
}

// callerOf returns a use of a function outside its own declaration.
func callerOf(sources []*source, name string) (*source, token.Pos) {
	for _, s := range sources {
		var at token.Pos
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				continue
			}
			mentioned(d, func(id *ast.Ident) {
				if id.Name == name {
					at = id.Pos()
				}
			})
		}
		if at.IsValid() {
			return s, at
		}
	}
	return nil, token.NoPos
}

// remove removes a declaration from the file, and the imports that only the declaration uses.
func (s *source) remove(d ast.Decl) {
	from := d.Pos()
	if doc := docOf(d); doc != nil {
		from = doc.Pos()
	}
	s.replace(from, d.End(), "")
	s.removed = append(s.removed, d)
	used := map[string]string{}
	for _, other := range s.file.Decls {
		if !slices.Contains(s.removed, other) {
			for importPath, spec := range s.importsOf(other) {
				used[importPath] = spec
			}
		}
	}
	for importPath := range s.importsOf(d) {
		if _, still := used[importPath]; still {
			continue
		}
		spec := s.importSpec(importPath)
		from, to := spec.Pos(), spec.End()
		for _, d := range s.file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT && len(g.Specs) == 1 && g.Specs[0] == spec {
				from, to = g.Pos(), g.End()
			}
		}
		s.replace(from, to, "")
	}
}

// moveHooks changes the files beside the server's definition to the new hub, and returns where other files use the
// old one.
func (k *projectKind) moveHooks(old, added kindData, names map[string]bool) ([]string, error) {
	p := k.project
	beside := filepath.Join(p.root, filepath.FromSlash(path.Dir(p.server.path)))
	files, err := p.readFiles(beside)
	if err != nil {
		return nil, err
	}
	var next, clients []string
	for _, s := range files {
		if s.path == p.server.path {
			s = p.server
		}
		mine := s.selectors(old.Import, names)
		if s == p.server {
			k.eachOfHub(func(sel *ast.SelectorExpr) {
				mine = slices.DeleteFunc(mine, func(other *ast.SelectorExpr) bool { return other == sel })
			})
			if versions := k.call("Versions"); versions != nil {
				mine = slices.DeleteFunc(mine, func(sel *ast.SelectorExpr) bool { return versions.Pos() <= sel.Pos() && sel.End() <= versions.End() })
			}
		}
		if folder := s.moveClients(k, old, added); folder != "" && !slices.Contains(clients, folder) {
			clients = append(clients, folder)
		}
		if len(mine) == 0 {
			if s != p.server && len(s.edits) > 0 {
				k.hooks = append(k.hooks, s)
			}
			continue
		}
		if s != p.server {
			facts, rest := s.facts(old.Import, names)
			mine = append(mine, facts...)
			if rest != nil {
				next = append(next, fmt.Sprintf("edit %s:%d   # %s is from %s, the former hub, and this file also uses other kinds: if "+
					"this use is for %s, change it to %s",
					p.show(s.path), s.fset.Position(rest.Pos()).Line, rest.Sel.Name, old.Version, k.kind, added.Version))
			}
			s.rename(old.GroupVersion, added.GroupVersion)
			k.hooks = append(k.hooks, s)
		}
		there := s.importName(added.Import)
		dropped := s.dropTwins(mine, there)
		pkg := added.Pkg
		switch spec := s.importSpec(old.Import); {
		case s == p.server || len(s.selectors(old.Import, nil)) > len(mine):
			pkg = s.use(added.Import, added.Pkg)
		case there != "":
			s.replace(spec.Pos(), spec.End(), "")
			pkg = there
		default:
			s.replace(spec.Pos(), spec.End(), fmt.Sprintf("%s %q", pkg, added.Import))
		}
		for _, sel := range mine {
			if !dropped[sel] {
				s.replace(sel.X.Pos(), sel.X.End(), pkg)
			}
		}
	}
	for _, folder := range clients {
		next = append(next, "annex generate --clients "+p.show(folder)+"   # the clients of "+added.Version+", which other code uses now")
	}
	others, err := k.elsewhere(beside, old, added, names)
	return append(next, others...), err
}

// facts returns the places where the file uses a package's API or AddToScheme. If the file also uses kinds of the
// package that are not in names, these uses may be for the other kinds: then facts returns one such place as rest,
// and no others.
func (s *source) facts(importPath string, names map[string]bool) (all []*ast.SelectorExpr, rest *ast.SelectorExpr) {
	others := false
	for _, sel := range s.selectors(importPath, nil) {
		switch {
		case sel.Sel.Name == "API" || sel.Sel.Name == "AddToScheme":
			all = append(all, sel)
		case !names[sel.Sel.Name]:
			others = true
		}
	}
	if others && len(all) > 0 {
		return nil, all[0]
	}
	return all, nil
}

// rename replaces a text in the file's comments.
func (s *source) rename(from, to string) {
	for _, group := range s.file.Comments {
		for _, line := range group.List {
			if strings.Contains(line.Text, from) {
				s.replace(line.Pos(), line.End(), strings.ReplaceAll(line.Text, from, to))
			}
		}
	}
}

// elsewhere returns the uses of the old hub that are neither beside the server's definition nor in a version.
func (k *projectKind) elsewhere(beside string, old, added kindData, names map[string]bool) ([]string, error) {
	p := k.project
	versions := filepath.Join(p.root, filepath.FromSlash(groupFolder(k.group)))
	var next []string
	err := filepath.WalkDir(p.root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // the go command cannot read it, either
		case d.IsDir() && (file == versions || file != p.root && skipFolder(file, d.Name())):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".go" || filepath.Dir(file) == beside:
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		s, err := p.parse(file, text)
		if err != nil {
			return err
		}
		if mine := s.selectors(old.Import, names); len(mine) > 0 && !s.generated() {
			next = append(next, fmt.Sprintf("edit %s:%d   # uses %s of %s, the former hub: the server now passes the type of %s",
				p.show(s.path), s.fset.Position(mine[0].Pos()).Line, mine[0].Sel.Name, old.Version, added.Version))
		}
		return nil
	})
	return next, err
}

func (s *source) generated() bool { return ast.IsGenerated(s.file) }

// selectors returns the places where the file uses names of a package; nil selects all names.
func (s *source) selectors(importPath string, names map[string]bool) []*ast.SelectorExpr {
	pkg := s.importName(importPath)
	if pkg == "" {
		return nil
	}
	var all []*ast.SelectorExpr
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && isSelector(sel, pkg, sel.Sel.Name) && (names == nil || names[sel.Sel.Name]) {
			all = append(all, sel)
		}
		return true
	})
	return all
}

// readFiles reads the Go files of a folder, including tests.
func (p *project) readFiles(dir string) ([]*source, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	var files []*source
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		s, err := p.parse(name, text)
		if err != nil {
			return nil, err
		}
		files = append(files, s)
	}
	return files, nil
}

// touched returns the files with edits.
func (k *projectKind) touched() []*source {
	files := append([]*source{k.project.server}, k.hooks...)
	for _, pkg := range k.packages {
		for _, s := range pkg.sources {
			if len(s.edits) > 0 {
				files = append(files, s)
			}
		}
	}
	return files
}
