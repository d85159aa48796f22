package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// project creates a program that compiles quickly.
func project(t *testing.T, platforms string) Options {
	t.Helper()
	t.Setenv("GOWORK", "off")
	dir := t.TempDir()
	for file, text := range map[string]string{"go.mod": "module example.com/demo\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() { " +
		"println(\"demo\") }\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := ParsePlatforms(platforms)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Dir: dir, Package: "example.com/demo", Name: "demo", Platforms: all, Base: Scratch, Say: t.Logf}
}

func build(t *testing.T, o Options) *Image {
	t.Helper()
	made, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func ref(t *testing.T, text string) name.Tag {
	t.Helper()
	tag, err := ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// registryHere starts an in-memory registry.
func registryHere(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// files returns the headers of the files in an image, by mode, owner and name.
func files(t *testing.T, image v1.Image) map[string]*tar.Header {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close()
	all := map[string]*tar.Header{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(header.Name, "/")] = header
	}
}

func TestBuild_contents(t *testing.T) {
	made := build(t, project(t, "linux/amd64"))
	config, err := made.image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/demo"}) || c.WorkingDir != home ||
		config.Architecture != "amd64" ||
		config.OS != "linux" {
		t.Errorf("config %+v of %s/%s", c, config.OS, config.Architecture)
	}
	all := files(t, made.image)
	for path, want := range map[string]struct {
		mode  int64
		owner int
	}{"demo": {0o755, 0}, "etc/passwd": {0o644, 0}, "tmp": {0o1777, 0}, "home/nonroot": {0o700, nonRoot}, "var/lib/annex": {0o700, nonRoot}} {
		header := all[path]
		if header == nil || header.Mode != want.mode || header.Uid != want.owner || header.Gid != want.owner {
			t.Errorf("%s: %+v", path, header)
		}
	}
}

func TestBuild_sameSource_isReproducible(t *testing.T) {
	a, b := project(t, "linux/amd64,linux/arm64"), project(t, "linux/amd64,linux/arm64")
	if first, second := build(t, a), build(t, b); first.Digest != second.Digest {
		t.Errorf("%s and %s", first.Digest, second.Digest)
	}
}

func TestPush_asBase(t *testing.T) {
	at := registryHere(t)
	o := project(t, "linux/amd64,linux/arm64")
	made := build(t, o)
	tag := ref(t, at+"/shop/demo:v1")
	if err := made.Push(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := index.Digest(); err != nil || digest.String() != made.Digest {
		t.Errorf("the registry has %s, %v; made was %s", digest, err, made.Digest)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	arm, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))
	if err != nil {
		t.Fatal(err)
	}
	if config, err := arm.ConfigFile(); err != nil || config.Architecture != "arm64" {
		t.Errorf("%+v, %v", config, err)
	}

	above := project(t, "linux/arm64")
	above.Base = tag.String()
	above.Name = "above"
	all := files(t, build(t, above).image)
	if all["demo"] == nil || all["above"] == nil {
		t.Errorf("on a base there are %v", all)
	}
	above.Base = at + "/shop/demo:v2"
	if _, err := Build(
		t.Context(),
		above,
	); err == nil ||
		!strings.Contains(err.Error(), "read the base image "+above.Base+" for linux/arm64 (--base scratch builds without one)") {
		t.Errorf("a base that is not there: %v", err)
	}
}

func TestWriteLayout_sameReference_isReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "oci")
	one, several := build(t, project(t, "linux/amd64")), build(t, project(t, "linux/amd64,linux/arm64"))
	for _, step := range []struct {
		image *Image
		tag   string
		want  int
	}{{one, "demo:v1", 1}, {one, "demo:v1", 1}, {several, "demo:v2", 2}, {several, "demo:v1", 2}} {
		if err := step.image.WriteLayout(dir, ref(t, step.tag)); err != nil {
			t.Fatal(err)
		}
		index, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			t.Fatal(err)
		}
		if manifest, err := index.IndexManifest(); err != nil || len(manifest.Manifests) != step.want {
			t.Errorf("after %s: %d images, %v", step.tag, len(manifest.Manifests), err)
		}
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
	}
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := one.WriteLayout(
		other,
		ref(t, "demo:v1"),
	); err == nil ||
		!strings.Contains(err.Error(), "is not an OCI image layout") {
		t.Errorf("a folder that is not a layout: %v", err)
	}
}

func TestWriteTarball_existing_isKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.tar")
	made := build(t, project(t, "linux/amd64"))
	tag := ref(t, "demo:v1")
	for _, step := range []struct {
		replace bool
		want    string
	}{{false, ""}, {false, "demo.tar exists: use --force to replace it"}, {true, ""}} {
		err := made.WriteTarball(file, tag, step.replace)
		if step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)) {
			t.Errorf("replace %v: %v", step.replace, err)
		}
	}
	loaded, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(loaded); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), ".annex-image-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestBuild_compileError(t *testing.T) {
	o := project(t, "linux/amd64")
	if err := os.WriteFile(filepath.Join(o.Dir, "main.go"), []byte("package main\n\nfunc main() { nothing() }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(
		t.Context(),
		o,
	); err == nil || !strings.Contains(err.Error(), "the project does not build for linux/amd64:") ||
		!strings.Contains(err.Error(), "main.go:3:15: undefined: nothing") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, o); err == nil {
		t.Error("built after the end")
	}
}

func TestBuild_profile(t *testing.T) {
	o := project(t, "linux/amd64")
	profile, err := os.ReadFile(filepath.Join("..", "scaffold", "templates", "project", ProfileName))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Dir, ProfileName)
	if err := os.WriteFile(path, profile, 0o600); err != nil {
		t.Fatal(err)
	}
	build(t, o)
	if err := os.WriteFile(path, []byte("no profile"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "error parsing profile") {
		t.Errorf("a file that is no profile: %v", err)
	}
}
