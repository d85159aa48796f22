package manifests

import (
	"bytes"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// File is a file in a folder of manifests.
type File struct {
	// Path is relative, with forward slashes.
	Path string
	Text []byte
}

// Mark is the first line of every generated file. Only files with this line are overwritten or removed.
const Mark = "# Written by the server's verb manifests; a change here is lost when it is run again."

// YAML returns the objects as a stream of YAML documents.
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
	// Keep the order of the objects.
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

// fileName returns an object's file name, in lower case and without characters that file systems reject.
func fileName(o *unstructured.Unstructured) string {
	return strings.ToLower(o.GetKind()) + "-" + strings.ReplaceAll(o.GetName(), ":", "-") + ".yaml"
}
