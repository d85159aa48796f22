package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"},
}

// selected returns the named platforms, or all.
func selected(names []string) ([]platform, error) {
	var on []platform
	for _, name := range names {
		at := slices.IndexFunc(platforms, func(p platform) bool { return p.String() == name })
		if at < 0 {
			return nil, fmt.Errorf("%q is no platform of a release: choose from %v", name, platforms)
		}
		on = append(on, platforms[at])
	}
	if len(on) == 0 {
		return platforms, nil
	}
	if rank(on[0]) != 0 && !slices.ContainsFunc(on, func(p platform) bool { return rank(p) == 0 }) {
		return nil, fmt.Errorf("the platforms lack %s/%s, whose programs print the completions: add it", runtime.GOOS, runtime.GOARCH)
	}
	return on, nil
}

// programs are the delivered programs, with the folders of their modules.
var programs = []struct{ name, dir string }{{"annex", tool}, {"kubectl-annex", plugin}}

var shells = []struct{ name, prefix, suffix string }{
	{"bash", "", ".bash"}, {"zsh", "_", ""}, {"fish", "", ".fish"}, {"powershell", "", ".ps1"},
}

// sums is the file with the checksums of an output.
const sums = "SHA256SUMS"

// dry writes the output of a release of HEAD: it tags a clone, in which the changelog's unreleased section is that of the version.
func dry(top, version, folder string, on []platform, out io.Writer) error {
	if err := errors.Join(checkVersion(version), checkClean(top)); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "annex-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	clone := filepath.Join(work, "clone")
	if _, err := git(top, "clone", "--quiet", top, clone); err != nil {
		return err
	}
	for key, value := range map[string]string{"user.name": "Annex", "user.email": "release@example.com"} {
		if _, err := git(clone, "config", key, value); err != nil {
			return err
		}
	}
	path := filepath.Join(clone, "CHANGELOG.md")
	changelog, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if text := named(string(changelog), version); text != string(changelog) {
		date, err := git(clone, "log", "-1", "--format=%cI")
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		if _, err := gitAt(clone, date, "commit", "--quiet", "--all", "--message", "CHANGELOG: "+version); err != nil {
			return err
		}
	}
	if err := tag(clone, version); err != nil {
		return err
	}
	return build(clone, version, folder, on, out)
}

// output is the folder of a release while it is written.
type output struct {
	top, version, folder string
	when                 time.Time
	work                 string // a GOPATH that only this release has
	notes                string
	out                  io.Writer
}

// build writes the output of tagged modules into folder, which may have an earlier output.
func build(top, version, folder string, on []platform, out io.Writer) error {
	if err := errors.Join(checkVersion(version), checkTags(top, version)); err != nil {
		return err
	}
	o := &output{top: top, version: version, out: out}
	changelog, err := git(top, "show", version+":CHANGELOG.md")
	if err != nil {
		return err
	}
	if o.notes, err = notes(changelog+"\n", version); err != nil {
		return err
	}
	if o.when, err = timeOf(top, version); err != nil {
		return err
	}
	if o.folder, err = emptied(folder); err != nil {
		return err
	}
	if o.work, err = os.MkdirTemp("", "annex-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.work)
	if err := o.modules(); err != nil {
		return err
	}
	archives, err := o.programs(on)
	if err != nil {
		return err
	}
	if err := errors.Join(
		o.write("annex.krew.yaml", []byte(krewManifest(version, archives))),
		o.write("NOTES.md", []byte(o.notes)),
		o.write("VERSION", []byte(version+"\n")),
	); err != nil {
		return err
	}
	if err := o.checksums(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %s, of %s\n", o.folder, version, o.when.UTC().Format(time.RFC3339))
	return err
}

// checkTags rejects a version some of whose tags do not exist, or are not of each other: each module requires the releases
// before it, with the hashes of their archives.
func checkTags(top, version string) error {
	for i, name := range tags(version) {
		if found, err := git(top, "tag", "--list", name); err != nil {
			return err
		} else if found == "" {
			return fmt.Errorf("the tag %s does not exist: make release VERSION=%s makes all tags of a version", name, version)
		}
		if i == 0 {
			continue
		}
		text, err := git(top, "show", name+":"+folders[i-1]+"/go.mod")
		if err != nil {
			return err
		}
		mod, err := modfile.Parse(name+":go.mod", []byte(text), nil)
		if err != nil {
			return err
		}
		if len(mod.Replace) > 0 {
			return fmt.Errorf("the tag %s replaces %s: it is not on a commit of make release", name, mod.Replace[0].Old.Path)
		}
		for _, r := range mod.Require {
			if ours := r.Mod.Path == library || strings.HasPrefix(r.Mod.Path, library+"/"); ours && r.Mod.Version != version {
				return fmt.Errorf("the tag %s requires %s, not %s: it was made before the tags that it needs", name, r.Mod, version)
			}
		}
	}
	return nil
}

// timeOf returns the time of all files of a release: that of its commit, or the seconds in SOURCE_DATE_EPOCH.
func timeOf(top, version string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = git(top, "log", "-1", "--format=%ct", version); err != nil {
			return time.Time{}, err
		}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// emptied returns an empty folder. It deletes an earlier output there, and nothing else.
func emptied(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if _, missing := os.Stat(filepath.Join(folder, "VERSION")); missing != nil && len(entries) > 0 {
		return "", fmt.Errorf("%s has files that are no output of a release: choose an empty folder", folder)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			return "", err
		}
	}
	// An output that an error cuts short can be replaced, too.
	return folder, errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "VERSION"), nil, 0o644))
}

func (o *output) write(name string, content []byte) error {
	path := filepath.Join(o.folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// modules writes the file proxy of all modules, and the tags in the order in which they are published.
func (o *output) modules() error {
	var list strings.Builder
	for i, name := range tags(o.version) {
		path, dir := library, ""
		if i > 0 {
			dir = folders[i-1]
			path += "/" + dir
		}
		if err := serve(o.top, name, dir, path, o.version, filepath.Join(o.folder, "proxy")); err != nil {
			return err
		}
		commit, err := git(o.top, "rev-parse", name+"^{commit}")
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s %s %s\n", name, commit, path)
		if _, err := fmt.Fprintf(o.out, "module %s %s\n", path, o.version); err != nil {
			return err
		}
	}
	return o.write("TAGS", []byte(list.String()))
}

// programs writes the archives of all programs, their bills of materials, the completions and the image.
func (o *output) programs(on []platform) (plugins []packed, err error) {
	images := map[string][]byte{}
	// The programs of this machine are first: they print the completions, which are in all archives.
	on = slices.Clone(on)
	slices.SortStableFunc(on, func(a, b platform) int { return rank(a) - rank(b) })
	completions := map[string][]entry{}
	for _, p := range on {
		for _, program := range programs {
			began := time.Now()
			if _, err := fmt.Fprintf(o.out, "building %s for %s\n", program.name, p); err != nil {
				return nil, err
			}
			path, err := o.install(program.dir, p)
			if err != nil {
				return nil, err
			}
			if rank(p) == 0 {
				if completions[program.name], err = o.completions(program.name, path); err != nil {
					return nil, err
				}
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			a, size, err := o.pack(program.name, p, content, completions[program.name])
			if err != nil {
				return nil, err
			}
			if program.dir == plugin {
				plugins = append(plugins, a)
			} else if p.os == "linux" {
				images[p.arch] = content
			}
			if _, err := fmt.Fprintf(o.out, "%s: %.1f MB, packed %.1f MB, in %.0f s\n",
				a.file, float64(len(content))/1e6, float64(size)/1e6, time.Since(began).Seconds()); err != nil {
				return nil, err
			}
		}
	}
	image, err := imageOf(o.version, images, o.when)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(plugins, func(a, b packed) int { return strings.Compare(a.file, b.file) })
	return plugins, o.write("annex_"+o.version+"_image.tar", image)
}

// rank is 0 for the platform of this machine, and 1 for all others.
func rank(p platform) int {
	if p == (platform{runtime.GOOS, runtime.GOARCH}) {
		return 0
	}
	return 1
}

// install compiles a program from the file proxy, as go install does for users, and returns its path.
func (o *output) install(dir string, p platform) (string, error) {
	known, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	settings := strings.Split(string(known), "\n")
	cmd := exec.Command("go", "install", "-trimpath", "-ldflags=-s -w -buildid=", library+"/"+dir+"@"+o.version)
	cmd.Dir = o.work
	cmd.Env = append(os.Environ(),
		"GOWORK=off", "GOTOOLCHAIN=local", "GOFLAGS=-modcacherw", "GOPATH="+o.work, "GOBIN=", "GOMODCACHE="+o.moduleCache(),
		"GOPROXY="+proxies(filepath.Join(o.folder, "proxy"), filepath.Join(settings[0], "cache", "download"), settings[1]),
		"GOSUMDB=off", // the modules are not published, and checkSums compares all others with go.sum
		"CGO_ENABLED=0", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOOS="+p.os, "GOARCH="+p.arch,
	)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s for %s: %w\n%s", dir, p, err, bytes.TrimSpace(out))
	}
	bin := filepath.Join(o.work, "bin")
	if rank(p) != 0 {
		bin = filepath.Join(bin, p.os+"_"+p.arch)
	}
	return filepath.Join(bin, executable(filepath.Base(dir), p)), nil
}

// proxies is a value of GOPROXY: two folders, and the usual ones.
func proxies(output, cache, usual string) string {
	return "file://" + filepath.ToSlash(output) + ",file://" + filepath.ToSlash(cache) + "," + usual
}

func (o *output) moduleCache() string { return filepath.Join(o.work, "modules") }

func executable(name string, p platform) string {
	if p.os == "windows" {
		name += ".exe"
	}
	return name
}

// completions returns the completions that a program prints for each shell.
func (o *output) completions(name, path string) ([]entry, error) {
	var all []entry
	for _, shell := range shells {
		cmd := exec.Command(path, "completion", shell.name)
		cmd.Env = []string{"HOME=" + o.work, "PATH=" + os.Getenv("PATH")}
		text, err := cmd.Output()
		if err == nil && len(text) == 0 {
			err = errors.New("it prints nothing")
		}
		if err != nil {
			return nil, fmt.Errorf("%s completion %s: %w", name, shell.name, err)
		}
		file := entry{"completions/" + shell.prefix + name + shell.suffix, 0o644, 0, text}
		if err := o.write(file.name, text); err != nil {
			return nil, err
		}
		all = append(all, file)
	}
	return all, nil
}

// pack writes the archive of a program, and its bill of materials.
func (o *output) pack(name string, p platform, program []byte, completions []entry) (packed, int, error) {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return packed{}, 0, fmt.Errorf("%s for %s: %w", name, p, err)
	}
	if info.Main.Version != o.version {
		return packed{}, 0, fmt.Errorf("%s for %s was built as %s, not %s", name, p, info.Main.Version, o.version)
	}
	if err := o.checkSums(info); err != nil {
		return packed{}, 0, fmt.Errorf("%s for %s: %w", name, p, err)
	}
	licence, err := os.ReadFile(filepath.Join(o.moduleCache(), filepath.FromSlash(library)+"@"+o.version, "LICENSE"))
	if err != nil {
		return packed{}, 0, err
	}
	licences, err := o.licences(info)
	if err != nil {
		return packed{}, 0, err
	}
	entries := append([]entry{
		{executable(name, p), 0o755, 0, program},
		{"LICENSE", 0o644, 0, licence},
		{"LICENSES-of-libraries.txt", 0o644, 0, licences},
	}, completions...)
	base := name + "_" + o.version + "_" + p.os + "_" + p.arch
	file := base + ".tar.gz"
	var archive []byte
	if p.os == "windows" {
		file = base + ".zip"
		archive, err = zipOf(entries, o.when)
	} else if archive, err = tarOf(entries, o.when); err == nil {
		archive, err = gzipOf(archive)
	}
	if err != nil {
		return packed{}, 0, err
	}
	bill, err := billOfMaterials(file, program, info, o.when)
	if err != nil {
		return packed{}, 0, err
	}
	sum := sha256.Sum256(archive)
	a := packed{p, file, hex.EncodeToString(sum[:]), executable(name, p)}
	return a, len(archive), errors.Join(o.write(file, archive), o.write(base+".spdx.json", bill))
}

// checkSums compares the hashes of the linked modules with the tagged go.sum, which is what was reviewed.
func (o *output) checkSums(info *buildinfo.BuildInfo) error {
	dir := strings.TrimPrefix(info.Main.Path, library+"/")
	sums, err := git(o.top, "show", dir+"/"+o.version+":"+dir+"/go.sum")
	if err != nil {
		return err
	}
	lines := strings.Split(sums, "\n")
	for _, dep := range info.Deps {
		if line := dep.Path + " " + dep.Version + " " + dep.Sum; !slices.Contains(lines, line) {
			return fmt.Errorf("it was linked with %s %s, whose hash %s is not in the go.sum of %s", dep.Path, dep.Version, dep.Sum, dir)
		}
	}
	return nil
}

// licences returns the licences and notices of the linked modules, which their authors want to be delivered with programs.
func (o *output) licences(info *buildinfo.BuildInfo) ([]byte, error) {
	var b bytes.Buffer
	for _, dep := range info.Deps {
		path, err := module.EscapePath(dep.Path)
		if err != nil {
			return nil, err
		}
		version, err := module.EscapeVersion(dep.Version)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(o.moduleCache(), filepath.FromSlash(path)+"@"+version)
		files, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if !file.Type().IsRegular() || !isLicence(file.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, file.Name()))
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "==== %s %s: %s\n\n%s\n\n", dep.Path, dep.Version, file.Name(), bytes.TrimSpace(text))
		}
	}
	return b.Bytes(), nil
}

func isLicence(name string) bool {
	name, _, _ = strings.Cut(strings.ToUpper(name), ".")
	return slices.Contains([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "PATENTS"}, name)
}

// checksums writes the sums of all files, in the format of sha256sum.
func (o *output) checksums() error {
	var list strings.Builder
	err := filepath.WalkDir(o.folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(o.folder, path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		fmt.Fprintf(&list, "%x  %s\n", sum, filepath.ToSlash(name))
		return nil
	})
	if err != nil {
		return err
	}
	return o.write(sums, []byte(list.String()))
}
