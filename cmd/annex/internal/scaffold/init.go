package scaffold

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
	"github.com/annexapi/annex/cmd/annex/internal/image"
)

//go:embed templates
var templates embed.FS

// InitOptions describe a new project.
type InitOptions struct {
	Options
	// Domain is the suffix of the names of API groups. Empty means example.com.
	Domain string
	// Repo is the path of the Go module. Empty means the path in an existing go.mod, or example.com/FOLDER.
	Repo string
	// Name is the server's name. Empty means the last part of the module's path.
	Name string
	// Replace is the folder of a checkout of Annex for the replacement in go.mod, which is needed until there is a
	// release. Empty means the checkout from which this tool was built.
	Replace string
}

// projectFiles maps the files of a new project to their templates. A template has another name where tools would
// interpret it under the file's own name.
var projectFiles = map[string]string{
	"main.go":                  "main.go.tmpl",
	"main_test.go":             "main_test.go.tmpl",
	"Makefile":                 "Makefile.tmpl",
	"Dockerfile":               "Dockerfile.tmpl",
	".dockerignore":            "dockerignore.tmpl",
	".gitignore":               "gitignore.tmpl",
	".github/workflows/ci.yml": "ci.yml.tmpl",
	"README.md":                "README.md.tmpl",
}

// Init creates a project in the folder Dir, which may have a go.mod.
func Init(ctx context.Context, o InitOptions) (*Result, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the current folder: %w", err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, misuse("%s is not a folder: create it first", o.Dir)
	}
	o.Domain = cmp.Or(o.Domain, "example.com")
	if err := checkDomain(o.Domain); err != nil {
		return nil, err
	}
	existing, err := readModule(dir)
	if err != nil {
		return nil, err
	}
	if o.Repo, err = modulePath(dir, o.Repo, existing.mod); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = lastPart(o.Repo)
		if checkLabel("", "", o.Name) != nil {
			return nil, misuse("%q, the last element of the module path, is not a DNS label: set the name of the server with --name", o.Name)
		}
	}
	if err := checkLabel("--name", "the name of a server", o.Name); err != nil {
		return nil, err
	}
	p := &plan{root: dir}
	var notes []string
	released := releasedVersion()
	data := map[string]any{"Name": o.Name, "Module": o.Repo, "Domain": o.Domain, "Replaced": true}
	if o.Replace == "" && os.Getenv(checkoutVariable) == "" && released != "" {
		data["Replaced"] = false
		text, err := releasedModule(o.Repo, released, existing.mod)
		if err != nil {
			return nil, err
		}
		p.edit("go.mod", text)
	} else {
		checkout, err := findCheckout(o.Replace)
		if err != nil {
			return nil, err
		}
		files, err := requirements(dir, o.Repo, checkout, existing)
		if err != nil {
			return nil, err
		}
		p.edit("go.mod", files.mod)
		p.edit("go.sum", files.sum)
		if to := replacement(dir, checkout); filepath.IsAbs(filepath.FromSlash(to)) {
			notes = append(notes, replaceNote(to))
		}
	}
	for file, name := range projectFiles {
		text, err := render("project/"+name, data)
		if err != nil {
			return nil, err
		}
		p.create(file, text)
	}
	profile, err := templates.ReadFile("templates/project/" + image.ProfileName)
	if err != nil {
		return nil, fmt.Errorf("read the profile for the compiler: %w", err)
	}
	p.create(image.ProfileName, profile)
	files, err := p.carryOut(o.Options)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(files, func(f File) bool { return f.Path == "go.mod" && f.State == Unchanged }) {
		notes = nil // the user has read them before
	}
	result := &Result{
		Files: files,
		Notes: notes,
		Next:  []string{"annex create api --group GROUP --version v1alpha1 --kind KIND   # adds a kind to the server"},
	}
	if data["Replaced"] == false && !o.DryRun {
		if err := tidy(ctx, dir); err != nil {
			return result, err
		}
		if result.Files, err = withSums(result.Files, dir, existing.sum); err != nil {
			return result, err
		}
	}
	if work, out := outsideWorkspace(dir); out {
		result.Next = append(
			[]string{
				"go work use " + shorten(dir, filepath.Dir(work)) + "   # in " + filepath.Dir(work) + ", whose go.work does not list " +
					"this module",
			},
			result.Next...)
	}
	return result, nil
}

func readModule(dir string) (moduleFiles, error) {
	var files moduleFiles
	for name, text := range map[string]*[]byte{"go.mod": &files.mod, "go.sum": &files.sum} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return files, generate.Problem{File: name, Message: fmt.Sprintf("cannot be read: %v", unwrapPath(err))}
		}
		*text = b
	}
	return files, nil
}

// modulePath returns the path of a project's module.
func modulePath(dir, repo string, existing []byte) (string, error) {
	if existing != nil {
		has := modfile.ModulePath(existing)
		if has == "" {
			return "", generate.Problem{File: "go.mod", Line: 1, Message: "has no module path: repair the file, or move it away"}
		}
		if repo != "" && repo != has {
			return "", misuse("--repo %q: the existing go.mod has module %s: remove --repo, or move go.mod away", repo, has)
		}
		return has, nil
	}
	if repo != "" {
		return repo, checkModule(repo)
	}
	repo = "example.com/" + strings.ToLower(filepath.Base(dir))
	if checkModule(repo) != nil {
		return "", misuse("the folder's name, %q, is not valid in a Go module path: set the module path with --repo", filepath.Base(dir))
	}
	return repo, nil
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// lastPart returns the last element of a module's path that is not a major version.
func lastPart(repo string) string {
	if prefix, _, ok := module.SplitPathVersion(repo); ok {
		repo = prefix
	}
	if base := path.Base(repo); !majorVersion.MatchString(base) {
		return base
	}
	return path.Base(path.Dir(repo))
}

// releasedModule returns go.mod for a released library. The go command resolves the library's requirements.
func releasedModule(path, version string, existing []byte) ([]byte, error) {
	f, err := parseModule(path, existing)
	if err != nil {
		return nil, err
	}
	if f.Go == nil {
		if err := f.AddGoStmt("1.26.0"); err != nil {
			return nil, fmt.Errorf("write go.mod: %w", err)
		}
	}
	if err := f.AddRequire(library, version); err != nil {
		return nil, fmt.Errorf("write go.mod: %w", err)
	}
	text, err := f.Format()
	if err != nil {
		return nil, fmt.Errorf("write go.mod: %w", err)
	}
	return text, nil
}

// withSums adds go.sum, which go mod tidy writes, to the files of a project.
func withSums(files []File, dir string, existing []byte) ([]File, error) {
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return files, fmt.Errorf("read go.sum after go mod tidy: %w", err)
	}
	state := Changed
	switch {
	case existing == nil:
		state = Created
	case bytes.Equal(existing, sums):
		state = Unchanged
	}
	files = append(files, File{Path: "go.sum", State: state})
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// tidy runs go mod tidy.
func tidy(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "tidy")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return generate.Problem{
			File: "go.mod",
			Message: fmt.Sprintf(
				"go mod tidy failed: %s: run it again when the module proxy is reachable",
				strings.Join(strings.Fields(string(out)), " "),
			),
		}
	}
	return nil
}

// outsideWorkspace returns a go.work above dir that does not list dir: the go command would then refuse to work
// there.
func outsideWorkspace(dir string) (string, bool) {
	if os.Getenv("GOWORK") != "" {
		return "", false
	}
	for at := dir; ; at = filepath.Dir(at) {
		file := filepath.Join(at, "go.work")
		text, err := os.ReadFile(file)
		if err != nil {
			if at == filepath.Dir(at) {
				return "", false
			}
			continue
		}
		work, err := modfile.ParseWork(file, text, nil)
		if err != nil {
			return "", false
		}
		for _, use := range work.Use {
			if filepath.Join(at, filepath.FromSlash(use.Path)) == dir {
				return "", false
			}
		}
		return file, true
	}
}

// render executes a template.
func render(name string, data any) ([]byte, error) {
	t, err := template.New(path.Base(name)).Option("missingkey=error").ParseFS(templates, "templates/"+name)
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", name, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("template %s: %w", name, err)
	}
	return []byte(b.String()), nil
}
