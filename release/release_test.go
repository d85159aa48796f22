package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// tiny creates a repository with the modules of a release, whose programs print their arguments.
func tiny(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	program := "package main\n\nimport (\n\t\"os\"\n\n\t\"" + library + "\"\n)\n\n" +
		"func main() { print(annex.Name); for _, a := range os.Args[1:] { os.Stdout.WriteString(a + \"\\n\") } }\n"
	replaced := "\n\ngo 1.26.0\n\nrequire " + library + " v0.0.0\n\nreplace " + library + " => "
	for file, text := range map[string]string{
		"go.mod":            "module " + library + "\n\ngo 1.26.0\n",
		"annex.go":          "package annex\n\nconst Name = \"\"\n",
		"LICENSE":           "Do as you like.\n",
		"CHANGELOG.md":      "# Changelog\n\n## Unreleased\n\n- It begins.\n\n## v0.0.1\n\n- It was planned.\n",
		"workloads/go.mod":  "module " + library + "/workloads" + replaced + "..\n",
		"workloads/doc.go":  "package workloads\n",
		tool + "/go.mod":    "module " + library + "/" + tool + replaced + "../..\n",
		tool + "/main.go":   program,
		tool + "/go.sum":    "",
		plugin + "/go.mod":  "module " + library + "/" + plugin + replaced + "../..\n",
		plugin + "/main.go": program,
		plugin + "/go.sum":  "",
		"workloads/go.sum":  "",
		"docs/README.md":    "# Maintaining\n",
	} {
		path := filepath.Join(top, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch", "main"},
		{"config", "user.name", "Ada"},
		{"config", "user.email", "ada@example.com"},
		{"add", "."},
		{"commit", "--quiet", "--message", "begin"},
	} {
		if _, err := git(top, args...); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func commit(t *testing.T, top, file, text string) {
	t.Helper()
	write(t, filepath.Join(top, file), text)
	if _, err := git(top, "commit", "--quiet", "--all", "--message", "change "+file); err != nil {
		t.Fatal(err)
	}
}

// here are platforms that this machine compiles the small programs for quickly.
func here() []platform {
	return slices.Compact([]platform{{"linux", runtime.GOARCH}, {"windows", "amd64"}, {runtime.GOOS, runtime.GOARCH}})
}

const release = "v0.1.0"

func dryRun(t *testing.T, top string) (folder, printed string) {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "")
	folder = filepath.Join(t.TempDir(), "output")
	var out bytes.Buffer
	if err := dry(top, release, folder, here()[:2], &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	return folder, out.String()
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDry_writesEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles programs for several platforms")
	}
	top := tiny(t)
	head, _ := git(top, "rev-parse", "HEAD")
	folder, printed := dryRun(t, top)

	if tagged, _ := git(top, "tag"); tagged != "" {
		t.Errorf("a dry run tagged the checkout: %s", tagged)
	}
	if now, _ := git(top, "status", "--porcelain"); now != "" {
		t.Errorf("a dry run changed the checkout: %s", now)
	}
	if got := read(t, folder, "NOTES.md"); got != "- It begins.\n" {
		t.Errorf("the notes are %q", got)
	}
	lines := strings.Split(strings.TrimSpace(read(t, folder, "TAGS")), "\n")
	var order []string
	for _, line := range lines {
		order = append(order, strings.Fields(line)[0])
	}
	if want := []string{release, "workloads/" + release, tool + "/" + release, plugin + "/" + release}; !slices.Equal(order, want) {
		t.Errorf("the tags are %s, not %s", order, want)
	}
	if strings.Contains(lines[0], head) {
		t.Error("the tag is on HEAD, whose changelog has no section of the version")
	}
	for _, want := range []string{"building annex for windows/amd64", "annex_v0.1.0_windows_amd64.zip: ", "packed"} {
		if !strings.Contains(printed, want) {
			t.Errorf("it does not print %q:\n%s", want, printed)
		}
	}

	t.Run("checksums", func(t *testing.T) { hasChecksums(t, folder) })
	t.Run("archives", func(t *testing.T) { hasArchives(t, folder) })
	t.Run("bill of materials", func(t *testing.T) { hasBill(t, folder) })
	t.Run("image", func(t *testing.T) { hasImage(t, filepath.Join(folder, "annex_v0.1.0_image.tar")) })
	t.Run("krew", func(t *testing.T) { hasKrew(t, folder) })
	t.Run("again", func(t *testing.T) {
		again, _ := dryRun(t, top)
		if a, b := read(t, folder, sums), read(t, again, sums); a != b {
			t.Errorf("two runs differ:\n%s\n%s", a, b)
		}
		var out bytes.Buffer
		if err := dry(top, release, again, here()[:1], &out); err != nil { // over an earlier output
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(again, "annex_v0.1.0_windows_amd64.zip")); err == nil {
			t.Error("an archive of the earlier output is left")
		}
	})
}

// hasChecksums asserts that every file has its checksum, and nothing else has one.
func hasChecksums(t *testing.T, folder string) {
	listed := 0
	for line := range strings.SplitSeq(strings.TrimSpace(read(t, folder, sums)), "\n") {
		sum, name, _ := strings.Cut(line, "  ")
		if got := sha256.Sum256([]byte(read(t, folder, name))); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s has another checksum", name)
		}
		listed++
	}
	files := 0
	if err := filepath.Walk(folder, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			files++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if listed != files-1 {
		t.Errorf("%d of %d files have checksums", listed, files-1)
	}
}

// hasArchives asserts that the archives have a program, licences and completions.
func hasArchives(t *testing.T, folder string) {
	want := []string{
		"annex", "LICENSE", "LICENSES-of-libraries.txt",
		"completions/annex.bash", "completions/_annex", "completions/annex.fish", "completions/annex.ps1",
	}
	file, err := os.Open(filepath.Join(folder, "annex_v0.1.0_linux_"+runtime.GOARCH+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name, text := range untar(t, unpacked) {
		names = append(names, name)
		if name == "completions/annex.fish" && string(text) != "completion\nfish\n" {
			t.Errorf("the completions of fish are %q", text)
		}
		if name == "LICENSES-of-libraries.txt" && !bytes.Contains(text, []byte("==== "+library+" v0.1.0: LICENSE\n\nDo as you like.")) {
			t.Errorf("the licences of libraries are %q", text)
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("the archive has %s, not %s", names, want)
	}
	windows, err := zip.OpenReader(filepath.Join(folder, "kubectl-annex_v0.1.0_windows_amd64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.Close()
	if windows.File[0].Name != "kubectl-annex.exe" {
		t.Errorf("the archive for Windows begins with %s", windows.File[0].Name)
	}
}

func untar(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// hasBill asserts that a bill of materials lists the linked modules, and that its references resolve.
func hasBill(t *testing.T, folder string) {
	var bill spdxDocument
	if err := json.Unmarshal([]byte(read(t, folder, "annex_v0.1.0_windows_amd64.spdx.json")), &bill); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{bill.ID: true}
	var purls []string
	for _, p := range bill.Packages {
		ids[p.ID] = true
		purls = append(purls, p.External[0].Locator)
	}
	for _, want := range []string{"pkg:golang/" + library + "@v0.1.0", "pkg:golang/" + library + "/" + tool + "@v0.1.0"} {
		if !slices.Contains(purls, want) {
			t.Errorf("the bill has no %s: %s", want, purls)
		}
	}
	for _, r := range bill.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("the bill relates %s to %s, which it does not have", r.Element, r.Related)
		}
	}
	if len(bill.Relationships) != len(bill.Packages) {
		t.Errorf("%d packages have %d relationships", len(bill.Packages), len(bill.Relationships))
	}
}

// hasImage follows the references of an image from its index to the layers' files.
func hasImage(t *testing.T, path string) {
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	files := untar(t, file)
	blob := func(d descriptor) []byte {
		content, ok := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if sum := sha256.Sum256(content); !ok || len(content) != d.Size || "sha256:"+hex.EncodeToString(sum[:]) != d.Digest {
			t.Fatalf("the blob %s is not as its descriptor", d.Digest)
		}
		return content
	}
	parse := func(text []byte, into any) {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	var top, index imageIndex
	var manifest imageManifest
	var config struct {
		Config struct {
			Entrypoint []string
			User       string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	parse(files["index.json"], &top)
	parse(blob(top.Manifests[0]), &index)
	parse(blob(index.Manifests[0]), &manifest)
	parse(blob(manifest.Config), &config)
	if got := config.Config.User + " " + strings.Join(config.Config.Entrypoint, " "); got != "65532:65532 /annex" {
		t.Errorf("the image starts %s", got)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(layer); config.RootFS.DiffIDs[0] != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Error("the layer has another hash than the image's configuration")
	}
	if program := untar(t, bytes.NewReader(layer))["annex"]; len(program) == 0 {
		t.Error("the layer has no program")
	}
	var loaded []loadedImage
	parse(files["manifest.json"], &loaded)
	for _, name := range []string{loaded[0].Config, loaded[0].Layers[0]} {
		if files[name] == nil {
			t.Errorf("docker load would not find %s", name)
		}
	}
}

func hasKrew(t *testing.T, folder string) {
	manifest := read(t, folder, "annex.krew.yaml")
	for _, file := range []string{"kubectl-annex_v0.1.0_linux_" + runtime.GOARCH + ".tar.gz", "kubectl-annex_v0.1.0_windows_amd64.zip"} {
		sum := sha256.Sum256([]byte(read(t, folder, file)))
		want := "    uri: https://" + library + "/releases/download/v0.1.0/" + file + "\n    sha256: " + hex.EncodeToString(sum[:])
		if !strings.Contains(manifest, want) {
			t.Errorf("the manifest has no\n%s\n%s", want, manifest)
		}
	}
}

// A user compiles the same bytes from the proxy that the archive has.
func TestBuild_isThatOfGoInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles programs for several platforms")
	}
	folder, _ := dryRun(t, tiny(t))
	home := t.TempDir()
	cmd := exec.Command("go", "install", "-trimpath", "-ldflags=-s -w -buildid=", library+"/"+tool+"@"+release)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPATH="+home, "GOBIN=", "GOMODCACHE="+home+"/modules", "GOFLAGS=-modcacherw",
		"CGO_ENABLED=0", "GOPROXY=file://"+folder+"/proxy", "GOSUMDB=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file, err := os.Open(filepath.Join(folder, "annex_v0.1.0_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(untar(t, unpacked)["annex"], []byte(read(t, home, "bin", "annex"))) {
		t.Error("go install compiles another program")
	}
}

func TestRelease_refusesMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a repository for each mistake")
	}
	for name, test := range map[string]struct {
		do   func(t *testing.T, top string) error
		want string
	}{
		"no verb": {func(*testing.T, string) error { return run(nil, io.Discard) }, "usage: release tag VERSION"},
		"no version": {func(*testing.T, string) error {
			return run([]string{"dry", "folder"}, io.Discard)
		}, "usage: release tag VERSION"},
		"not a version": {func(t *testing.T, top string) error { return tag(top, "0.1") }, `"0.1" is not a version such as v0.1.0`},
		"not a platform": {func(*testing.T, string) error {
			return run([]string{"dry", release, "folder", "plan9/mips"}, io.Discard)
		}, `"plan9/mips" is no platform of a release: choose from [linux/amd64`},
		"not this machine": {func(*testing.T, string) error {
			other := platforms[slices.IndexFunc(platforms, func(p platform) bool { return rank(p) != 0 })]
			return run([]string{"dry", release, "folder", other.String()}, io.Discard)
		}, "whose programs print the completions: add it"},
		"a dirty checkout": {func(t *testing.T, top string) error {
			write(t, filepath.Join(top, "annex.go"), "package annex\n")
			return dry(top, release, t.TempDir(), here(), io.Discard)
		}, "there are uncommitted changes, which a release would not have: commit them, or stash them\nM annex.go"},
		"no section": {func(t *testing.T, top string) error {
			return tag(top, release)
		}, `no section "## v0.1.0": rename the section "## Unreleased"`},
		"lines that wait": {func(t *testing.T, top string) error {
			commit(t, top, "CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- More.\n\n## v0.1.0\n\n- It begins.\n")
			return tag(top, release)
		}, `lines in the section "## Unreleased": move them to "## v0.1.0"`},
		"an empty section": {func(t *testing.T, top string) error {
			commit(t, top, "CHANGELOG.md", "# Changelog\n\n## v0.1.0\n\n## v0.0.1\n\n- It was planned.\n")
			return tag(top, release)
		}, `an empty section "## v0.1.0"`},
		"a version below": {func(t *testing.T, top string) error {
			if _, err := git(top, "tag", "v0.2.0"); err != nil {
				return err
			}
			return tag(top, release)
		}, "v0.1.0 is below v0.2.0, which is released in this history"},
		"a version again": {func(t *testing.T, top string) error {
			if _, err := git(top, "tag", release); err != nil {
				return err
			}
			return dry(top, release, t.TempDir(), here(), io.Discard)
		}, "the tag v0.1.0 exists"},
		"a missing tag": {func(t *testing.T, top string) error {
			if _, err := git(top, "tag", release); err != nil {
				return err
			}
			return build(top, release, t.TempDir(), here(), io.Discard)
		}, "the tag workloads/v0.1.0 does not exist: make release VERSION=v0.1.0"},
		"a tag on HEAD": {func(t *testing.T, top string) error {
			for _, name := range tags(release) {
				if _, err := git(top, "tag", name); err != nil {
					return err
				}
			}
			return build(top, release, t.TempDir(), here(), io.Discard)
		}, "the tag workloads/v0.1.0 replaces " + library + ": it is not on a commit of make release"},
		"tags in another order": {func(t *testing.T, top string) error {
			commit(t, top, "CHANGELOG.md", "# Changelog\n\n## v0.1.0\n\n- It begins.\n")
			if err := tag(top, release); err != nil {
				return err
			}
			for i, name := range tags("v0.1.1") {
				if _, err := git(top, "tag", name, tags(release)[i]+"^{commit}"); err != nil {
					return err
				}
			}
			return build(top, "v0.1.1", t.TempDir(), here(), io.Discard)
		}, "the tag workloads/v0.1.1 requires " + library + "@v0.1.0, not v0.1.1: it was made before the tags that it needs"},
		"a folder with other files": {func(t *testing.T, top string) error {
			folder := t.TempDir()
			write(t, filepath.Join(folder, "letter.txt"), "Dear Ada")
			return dry(top, release, folder, here(), io.Discard)
		}, "has files that are no output of a release: choose an empty folder"},
		"a time that is none": {func(t *testing.T, top string) error {
			t.Setenv("SOURCE_DATE_EPOCH", "today")
			return dry(top, release, t.TempDir(), here(), io.Discard)
		}, `SOURCE_DATE_EPOCH "today" is not a number of seconds`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.do(t, tiny(t)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, not %q", err, test.want)
			}
		})
	}
}

// A module that was exchanged after its review is not delivered.
func TestBuild_refusesOtherHashes(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a program")
	}
	top := tiny(t)
	commit(t, top, "CHANGELOG.md", "# Changelog\n\n## v0.1.0\n\n- It begins.\n")
	if err := tag(top, release); err != nil {
		t.Fatal(err)
	}
	if _, err := git(top, "checkout", "--quiet", "--detach", tool+"/"+release); err != nil {
		t.Fatal(err)
	}
	sums := strings.ReplaceAll(read(t, top, tool, "go.sum"), " h1:", " h1:A")
	commit(t, top, tool+"/go.sum", sums)
	if _, err := git(top, "tag", "--force", tool+"/"+release); err != nil {
		t.Fatal(err)
	}
	err := build(top, release, t.TempDir(), here()[:1], io.Discard)
	if err == nil || !strings.Contains(err.Error(), "is not in the go.sum of "+tool) {
		t.Errorf("the error is %v", err)
	}
}
