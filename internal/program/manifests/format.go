package manifests

import (
	"bytes"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// File is a file of a folder of manifests.
type File struct {
	// Path is relative, with slashes.
	Path string
	Text []byte
}

// Mark stands in the first line of every file of a folder. Files that have it may be
// written anew.
const Mark = "# Written by the server's verb manifests; a change here is lost when it is run again."

// YAML returns the objects as documents of one stream.
func (c *Config) YAML() ([]byte, error) {
	objects, err := c.Objects()
	if err != nil {
		return nil, err
	}
	return stream(objects)
}

// List returns the objects as one List.
func (c *Config) List() (map[string]any, error) {
	objects, err := c.Objects()
	if err != nil {
		return nil, err
	}
	items := make([]any, len(objects))
	for i, o := range objects {
		items[i] = o.Object
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, nil
}

func stream(objects []*unstructured.Unstructured) ([]byte, error) {
	var out bytes.Buffer
	for i, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("write the manifest of %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

// Kustomize returns a base: a kustomization, and a file for each object.
func (c *Config) Kustomize() ([]File, error) {
	objects, err := c.Objects()
	if err != nil {
		return nil, err
	}
	var files []File
	// Objects keep the order in which they are made.
	kustomization := Mark + "\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nsortOptions:\n  order: fifo\nresources:\n"
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("write the manifest of %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		name := fileName(o)
		files = append(files, File{name, append([]byte(Mark+"\n"), text...)})
		kustomization += "- " + name + "\n"
	}
	return append([]File{{"kustomization.yaml", []byte(kustomization)}}, files...), nil
}

// fileName is an object's, in lower case, without what file systems do not take.
func fileName(o *unstructured.Unstructured) string {
	return strings.ToLower(o.GetKind()) + "-" + strings.ReplaceAll(o.GetName(), ":", "-") + ".yaml"
}
