// Package image builds container images of servers without a container engine: it compiles the program for each
// platform, and adds it to a base image, or to an empty one.
//
// The same program results in the same image, byte for byte: times are zero, and owners and modes are fixed here.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ProfileName is the optional file beside a main package with a profile of a server's processor time, which is used
// to compile images. It is not called default.pgo, since each go run and go test would then compile all libraries
// once more.
const ProfileName = "server.pgo"

// Scratch is the empty base.
const Scratch = "scratch"

const (
	// nonRoot is the user and group of the server, as in distroless images.
	nonRoot = 65532
	home    = "/home/nonroot"
	// dataDir is the mount point of a volume in manifests.
	dataDir    = "/var/lib/annex"
	refNameKey = "org.opencontainers.image.ref.name"
)

// Options describe an image.
type Options struct {
	// Dir is the project's folder, and Package the import path of its main package.
	Dir, Package string
	// Name is the program's name in the image, at /NAME.
	Name string
	// Platforms are the target platforms, at least one; several result in an index.
	Platforms []v1.Platform
	// Base is an image reference, or Scratch. Its image for each platform is used.
	Base string
	// Say receives a line about each step.
	Say func(format string, args ...any)
}

// Image is an image for one platform, or an index of images for several.
type Image struct {
	image  v1.Image
	index  v1.ImageIndex
	Digest string
}

// ParsePlatforms parses OS/ARCH[/VARIANT],...; Linux is the only supported system.
func ParsePlatforms(text string) ([]v1.Platform, error) {
	var platforms []v1.Platform
	for one := range strings.SplitSeq(text, ",") {
		p, err := v1.ParsePlatform(strings.TrimSpace(one))
		if err != nil || p.OS != "linux" || p.Architecture == "" {
			return nil, fmt.Errorf("--platform %q: must be linux/ARCHITECTURE, such as linux/amd64,linux/arm64", one)
		}
		if slices.ContainsFunc(platforms, func(other v1.Platform) bool { return other.Equals(*p) }) {
			return nil, fmt.Errorf("--platform %q is set twice", one)
		}
		platforms = append(platforms, *p)
	}
	return platforms, nil
}

// ParseReference parses the target of an image: REGISTRY/REPOSITORY:TAG.
func ParseReference(text string) (name.Tag, error) {
	tag, err := name.NewTag(text)
	if err != nil {
		return name.Tag{}, fmt.Errorf("--image %q: must be REGISTRY/NAME:TAG, such as registry.example.com/demo:v1: %w", text, err)
	}
	return tag, nil
}

// Build compiles the program and builds the image. It leaves no files behind.
func Build(ctx context.Context, o Options) (*Image, error) {
	bin, err := os.MkdirTemp("", "annex-image-")
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	defer os.RemoveAll(bin)
	var addenda []mutate.IndexAddendum
	for i, p := range o.Platforms {
		binary := filepath.Join(bin, fmt.Sprint(i))
		o.Say("build %s for %s", o.Package, p)
		if err := compile(ctx, o, p, binary); err != nil {
			return nil, err
		}
		one, err := assemble(ctx, o, p, binary)
		if err != nil {
			return nil, err
		}
		addenda = append(addenda, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: &p}})
	}
	if len(addenda) == 1 {
		image := addenda[0].Add.(v1.Image)
		digest, err := image.Digest()
		return &Image{image: image, Digest: digest.String()}, err
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), addenda...)
	digest, err := index.Digest()
	return &Image{index: index, Digest: digest.String()}, err
}

func compile(ctx context.Context, o Options, p v1.Platform, binary string) error {
	cmd := exec.CommandContext(
		ctx,
		"go",
		"build",
		"-trimpath",
		"-ldflags=-s -w -buildid=",
		"-buildvcs=false",
		"-pgo="+profile(ctx, o),
		"-o",
		binary,
		o.Package,
	)
	cmd.Dir = o.Dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture)
	if variant, ok := strings.CutPrefix(p.Variant, "v"); ok && p.Architecture == "arm" {
		cmd.Env = append(cmd.Env, "GOARM="+variant)
	} else if p.Variant != "" && p.Architecture == "amd64" {
		cmd.Env = append(cmd.Env, "GOAMD64="+p.Variant)
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("image: the go command is not in PATH: install Go")
	}
	if err != nil {
		if text := strings.TrimSpace(string(out)); text != "" {
			return fmt.Errorf("image: the project does not build for %s:\n%s", p, text)
		}
		return fmt.Errorf("image: build for %s: %w", p, err)
	}
	return nil
}

// profile returns the value of go build's flag -pgo. If the package has an error, the build reports it.
func profile(ctx context.Context, o Options) string {
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", o.Package)
	list.Dir = o.Dir
	dir, err := list.Output()
	path := filepath.Join(strings.TrimSpace(string(dir)), ProfileName)
	if _, missing := os.Stat(path); err != nil || missing != nil {
		return "auto"
	}
	return path
}

// assemble adds the program to its base.
func assemble(ctx context.Context, o Options, p v1.Platform, binary string) (v1.Image, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	base, err := baseOf(ctx, o.Base, p)
	if err != nil {
		return nil, err
	}
	content, err := archive(o, program)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer),
	)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	image, err := mutate.Append(
		base,
		mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "annex image", Created: v1.Time{Time: time.Unix(0, 0).UTC()}}},
	)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Variant = p.OS, p.Architecture, p.Variant
	file.Config.Entrypoint, file.Config.Cmd = []string{"/" + o.Name}, []string{"serve", "--bind-address=0.0.0.0"}
	file.Config.User, file.Config.WorkingDir = fmt.Sprintf("%d:%d", nonRoot, nonRoot), home
	if len(file.Config.Env) == 0 {
		file.Config.Env = []string{"PATH=/"}
	}
	file.Config.ExposedPorts = map[string]struct{}{"8443/tcp": {}}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	return image, nil
}

func baseOf(ctx context.Context, base string, p v1.Platform) (v1.Image, error) {
	if base == Scratch {
		return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), nil
	}
	ref, err := name.ParseReference(base)
	if err != nil {
		return nil, fmt.Errorf("image: --base %q: %w", base, err)
	}
	image, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(p), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, fmt.Errorf("image: read the base image %s for %s (--base %s builds without one): %w", base, p, Scratch, err)
	}
	return image, nil
}

// archive returns the layer: the program, and the files and folders that a server without root needs.
func archive(o Options, program []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, mode int64, owner int, content []byte) error {
		header := &tar.Header{
			Name:     strings.TrimPrefix(name, "/"),
			Mode:     mode,
			Uid:      owner,
			Gid:      owner,
			Typeflag: tar.TypeReg,
			Size:     int64(len(content)),
			ModTime:  time.Unix(0, 0),
			Format:   tar.FormatPAX,
		}
		if content == nil {
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	var err error
	if o.Base == Scratch {
		err = errors.Join(
			add("/etc", 0o755, 0, nil),
			add(
				"/etc/passwd",
				0o644,
				0,
				fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%[1]d:%[1]d:nonroot:%[2]s:/sbin/nologin\n", nonRoot, home),
			),
			add("/etc/group", 0o644, 0, fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonRoot)),
			add("/tmp", 0o1777, 0, nil),
			add("/home", 0o755, 0, nil),
			add(home, 0o700, nonRoot, nil),
			add("/var", 0o755, 0, nil),
			add("/var/lib", 0o755, 0, nil),
		)
	}
	err = errors.Join(err, add(dataDir, 0o700, nonRoot, nil), add("/"+o.Name, 0o755, 0, program), w.Close())
	return out.Bytes(), err
}

// Push pushes the image to its registry, with the credentials of docker login.
func (i *Image) Push(ctx context.Context, tag name.Tag) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	var err error
	if i.index != nil {
		err = remote.WriteIndex(tag, i.index, options...)
	} else {
		err = remote.Write(tag, i.image, options...)
	}
	if err != nil {
		return fmt.Errorf("image: push %s: %w", tag, err)
	}
	return nil
}

// WriteLayout writes the image into an OCI image layout, and replaces an image of the same reference there. It
// refuses a folder with other content.
func (i *Image) WriteLayout(dir string, tag name.Tag) error {
	path, err := layout.FromPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		entries, readErr := os.ReadDir(dir)
		switch {
		case readErr == nil && len(entries) > 0:
			return fmt.Errorf("image: the folder %s has files, but is not an OCI image layout: choose another folder", dir)
		case readErr != nil && !errors.Is(readErr, fs.ErrNotExist):
			return fmt.Errorf("image: %w", readErr)
		}
		path, err = layout.Write(dir, empty.Index)
	}
	if err != nil {
		return fmt.Errorf("image: layout %s: %w", dir, err)
	}
	named, annotate := match.Annotation(refNameKey, tag.String()), layout.WithAnnotations(map[string]string{refNameKey: tag.String()})
	if i.index != nil {
		err = path.ReplaceIndex(i.index, named, annotate)
	} else {
		err = path.ReplaceImage(i.image, named, annotate)
	}
	if err != nil {
		return fmt.Errorf("image: layout %s: %w", dir, err)
	}
	return nil
}

// WriteTarball writes an image of one platform in the format that docker load, podman load and kind load read. It
// refuses an existing file unless replace is set.
func (i *Image) WriteTarball(file string, tag name.Tag, replace bool) error {
	if i.index != nil {
		return errors.New("image: a tarball supports only one platform: set one --platform, or use --layout")
	}
	if _, err := os.Lstat(file); err == nil && !replace {
		return fmt.Errorf("image: %s exists: use --force to replace it", file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".annex-image-*")
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer os.Remove(f.Name())
	err = errors.Join(tarball.Write(tag, i.image, f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("image: write %s: %w", file, err)
	}
	return nil
}
