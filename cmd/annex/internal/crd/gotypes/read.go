// Package gotypes generates Go types with kubebuilder's markers from CustomResourceDefinitions, such that
// controller-tools generates the same definitions from the types.
package gotypes

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Read returns the CustomResourceDefinitions in a file of YAML or JSON documents. It skips other objects and returns
// their names in the second result. A file without a definition is a NoDefinitionError. Each error is one line that
// begins with the file's name.
func Read(file string, r io.Reader) ([]*apiextensionsv1.CustomResourceDefinition, []string, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(r))
	var definitions []*apiextensionsv1.CustomResourceDefinition
	var others []string
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}
		var meta struct {
			metav1.TypeMeta `json:",inline"`
			Metadata        struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal(document, &meta); err != nil {
			return nil, nil, fmt.Errorf("%s: document %d is not valid YAML: %s", file, n, oneLine(err))
		}
		if len(bytes.TrimSpace(withoutComments(document))) == 0 {
			continue
		}
		if meta.Kind != "CustomResourceDefinition" {
			others = append(others, cmp.Or(strings.TrimSpace(meta.Kind+" "+meta.Metadata.Name), "an object without kind"))
			continue
		}
		where := fmt.Sprintf("%s: CustomResourceDefinition %s", file, meta.Metadata.Name)
		definition, err := decode(meta.APIVersion, document)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", where, err)
		}
		if err := check(definition); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", where, err)
		}
		definitions = append(definitions, definition)
	}
	if len(definitions) == 0 {
		return nil, nil, &NoDefinitionError{File: file, Others: others}
	}
	return definitions, others, nil
}

// NoDefinitionError reports a file without a CustomResourceDefinition.
type NoDefinitionError struct {
	File string
	// Others are the kinds and names of the objects in the file; none in an empty file.
	Others []string
}

func (e *NoDefinitionError) Error() string {
	if len(e.Others) == 0 {
		return e.File + ": is empty: pass a file with a CustomResourceDefinition"
	}
	return fmt.Sprintf("%s: holds no CustomResourceDefinition, only: %s", e.File, strings.Join(e.Others, ", "))
}

func withoutComments(document []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(document) {
		if trimmed := bytes.TrimSpace(line); !bytes.HasPrefix(trimmed, []byte("#")) && !bytes.HasPrefix(trimmed, []byte("---")) {
			kept = append(kept, trimmed...)
		}
	}
	return kept
}

func decode(apiVersion string, document []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	switch apiVersion {
	case "apiextensions.k8s.io/v1":
	case "apiextensions.k8s.io/v1beta1":
		return nil, errors.New("has apiVersion apiextensions.k8s.io/v1beta1, which Kubernetes removed in 1.22: get the definition in v1 " +
			"from its project, or convert it with kubectl convert")
	default:
		return nil, fmt.Errorf("has apiVersion %q: only apiextensions.k8s.io/v1 is supported", apiVersion)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(document, definition); err != nil {
		return nil, errors.New(oneLine(err) + ": correct the document; kubectl apply --dry-run=server prints details")
	}
	return definition, nil
}

// check returns an error if no Go types can be generated from a definition.
func check(d *apiextensionsv1.CustomResourceDefinition) error {
	s := d.Spec
	switch {
	case len(validation.IsDNS1123Subdomain(s.Group)) > 0:
		return fmt.Errorf("spec.group %q is not a DNS name", s.Group)
	case !isExported(s.Names.Kind):
		return fmt.Errorf(
			"spec.names.kind %q is not a valid name for a Go type: it must begin with a capital letter and have only letters and digits",
			s.Names.Kind,
		)
	case s.Names.Plural == "":
		return errors.New("spec.names.plural is empty")
	case len(s.Versions) == 0:
		return errors.New("has no versions")
	}
	for _, v := range s.Versions {
		if len(validation.IsDNS1035Label(v.Name)) > 0 || strings.Contains(v.Name, "-") {
			return fmt.Errorf("version %q is not a valid name for a Go package", v.Name)
		}
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return fmt.Errorf("version %s has no schema: add a schema, or write the types by hand", v.Name)
		}
		if err := structural(v.Schema.OpenAPIV3Schema); err != nil {
			return fmt.Errorf("version %s: the schema is not structural, and clusters reject it too: %w", v.Name, err)
		}
	}
	return nil
}

func structural(schema *apiextensionsv1.JSONSchemaProps) error {
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(schema, internal, nil); err != nil {
		return errors.New(oneLine(err))
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		return errors.New(oneLine(err))
	}
	if problems := structuralschema.ValidateStructural(nil, s); len(problems) > 0 {
		return errors.New(oneLine(problems[0]))
	}
	return nil
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
