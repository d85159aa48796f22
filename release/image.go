package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	imageName = "ghcr.io/annexapi/annex"
	// nonRoot is the user and group of the server, as in the images that annex image makes.
	nonRoot = 65532
	home    = "/home/nonroot"
)

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor is a reference to a blob of an OCI image layout.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *imagePlatform    `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type imagePlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type imageIndex struct {
	Schema    int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Manifests []descriptor `json:"manifests"`
}

type imageManifest struct {
	Schema    int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

// loadedImage is an entry of manifest.json, which docker load reads where it does not know image layouts.
type loadedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// blobs are the files of a layout, by their paths.
type blobs map[string][]byte

func (b blobs) add(mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:])
	b["blobs/sha256/"+hash] = content
	return descriptor{MediaType: mediaType, Digest: "sha256:" + hash, Size: len(content)}
}

func (b blobs) addJSON(mediaType string, value any) (descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, fmt.Errorf("image: %w", err)
	}
	return b.add(mediaType, text), nil
}

func path(d descriptor) string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }

// imageOf returns the archive of an image with the programs of several architectures of Linux, for the reference
// imageName:version. It is an OCI image layout, and what docker load reads.
func imageOf(version string, programs map[string][]byte, when time.Time) ([]byte, error) {
	files := blobs{}
	var manifests []descriptor
	var loaded []loadedImage
	for _, arch := range slices.Sorted(maps.Keys(programs)) {
		manifest, image, err := files.addImage(arch, programs[arch], when)
		if err != nil {
			return nil, err
		}
		manifests = append(manifests, manifest)
		image.RepoTags = []string{imageName + ":" + version + "-" + arch}
		if arch == "amd64" {
			image.RepoTags = append(image.RepoTags, imageName+":"+version)
		}
		loaded = append(loaded, image)
	}
	index, err := files.addJSON(typeIndex, imageIndex{2, typeIndex, manifests})
	if err != nil {
		return nil, err
	}
	index.Annotations = map[string]string{
		"io.containerd.image.name":          imageName + ":" + version,
		"org.opencontainers.image.ref.name": version,
	}
	for name, value := range map[string]any{
		"oci-layout":    map[string]string{"imageLayoutVersion": "1.0.0"},
		"index.json":    imageIndex{2, typeIndex, []descriptor{index}},
		"manifest.json": loaded,
	} {
		if files[name], err = json.Marshal(value); err != nil {
			return nil, fmt.Errorf("image: %w", err)
		}
	}
	var entries []entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, entry{name, 0o644, 0, files[name]})
	}
	return tarOf(entries, when)
}

// addImage adds the image of one architecture: the tool, and the files and folders that a server without root needs.
func (b blobs) addImage(arch string, program []byte, when time.Time) (descriptor, loadedImage, error) {
	passwd := fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%[1]d:%[1]d:nonroot:%[2]s:/sbin/nologin\n", nonRoot, home)
	layer, err := tarOf([]entry{
		{"etc/", 0o755, 0, nil},
		{"etc/passwd", 0o644, 0, passwd},
		{"etc/group", 0o644, 0, fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonRoot)},
		{"tmp/", 0o1777, 0, nil},
		{"home/", 0o755, 0, nil},
		{home[1:] + "/", 0o700, nonRoot, nil},
		{"annex", 0o755, 0, program},
	}, when)
	if err != nil {
		return descriptor{}, loadedImage{}, err
	}
	uncompressed := sha256.Sum256(layer)
	packed, err := gzipOf(layer)
	if err != nil {
		return descriptor{}, loadedImage{}, err
	}
	content := b.add(typeLayer, packed)
	created := when.UTC().Format(time.RFC3339)
	config, err := b.addJSON(typeConfig, map[string]any{
		"architecture": arch,
		"os":           "linux",
		"created":      created,
		"config": map[string]any{
			"Entrypoint":   []string{"/annex"},
			"Cmd":          []string{"serve", "--bind-address=0.0.0.0"},
			"User":         fmt.Sprintf("%d:%d", nonRoot, nonRoot),
			"WorkingDir":   home,
			"Env":          []string{"PATH=/", "HOME=" + home},
			"ExposedPorts": map[string]any{"8443/tcp": struct{}{}},
			"Labels":       map[string]string{"org.opencontainers.image.source": "https://" + library},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(uncompressed[:])}},
		"history": []map[string]string{{"created": created, "created_by": "annex release"}},
	})
	if err != nil {
		return descriptor{}, loadedImage{}, err
	}
	manifest, err := b.addJSON(typeManifest, imageManifest{2, typeManifest, config, []descriptor{content}})
	manifest.Platform = &imagePlatform{arch, "linux"}
	return manifest, loadedImage{Config: path(config), Layers: []string{path(content)}}, err
}
