// Package configfile reads the operator's configuration files of upstream's kinds. It rejects unknown fields and
// kinds, reports each mistake in one line with its place and reason, and keeps the last valid content while a changed
// file is invalid.
package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1beta1 "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
)

// versions are the accepted versions of apiserver.config.k8s.io.
var versions = []schema.GroupVersion{apiserverv1.SchemeGroupVersion, apiserverv1beta1.ConfigSchemeGroupVersion}

// Decode returns the object in a file, which must have the given kind of apiserver.config.k8s.io, with its defaults.
// T is the kind's internal type.
func Decode[T any](data []byte, kind string) (*T, error) {
	root, err := parse(data)
	if err != nil {
		return nil, err
	}
	has := schema.FromAPIVersionAndKind(value(root, "apiVersion"), value(root, "kind"))
	if has.Kind != kind || !slices.Contains(versions, has.GroupVersion()) {
		return nil, fmt.Errorf(
			"apiVersion %q and kind %q: must be %s or %s, and %s",
			value(root, "apiVersion"),
			value(root, "kind"),
			versions[0],
			versions[1],
			kind,
		)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(apiserver.AddToScheme(scheme), apiserverv1.AddToScheme(scheme), apiserverv1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, located(root, err)
	}
	parsed, ok := object.(any).(*T)
	if !ok {
		return nil, fmt.Errorf("it is a %T", object)
	}
	return parsed, nil
}

// parse returns the only document of a file.
func parse(data []byte) (*yaml.Node, error) {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := documents.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, oneLine(err)
	}
	if err := documents.Decode(&second); err == nil {
		return nil, fmt.Errorf("line %d: the file must have only one document", second.Line)
	}
	return document.Content[0], nil
}

// value returns the value of a field of a document, empty if it has none.
func value(root *yaml.Node, name string) string {
	if _, node := child(root, name); node != nil {
		return node.Value
	}
	return ""
}

// Mistakes returns the validation errors of a file as one error, nil if there are none. The error is one line, and
// gives the line of the field for each mistake.
func Mistakes(data []byte, mistakes field.ErrorList) error {
	if len(mistakes) == 0 {
		return nil
	}
	root, err := parse(data)
	if err != nil {
		return err
	}
	var all []string
	for _, m := range mistakes {
		all = append(all, at(root, m.Field, m.Error()))
	}
	return errors.New(strings.Join(all, "; "))
}

// Mistake returns the error of one field of a file, with its line.
func Mistake(data []byte, path string, err error) error {
	root, parsing := parse(data)
	if parsing != nil {
		return parsing
	}
	return errors.New(at(root, path, path+": "+err.Error()))
}

func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}
