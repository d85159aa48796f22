package schema

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/version"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// declarative are the tags of declarative validation with an equivalent in CustomResourceDefinitions, beyond those
// that controller-tools knows.
var declarative = map[string]any{
	"k8s:maxLength":     crdmarkers.MaxLength(0),
	"k8s:minLength":     crdmarkers.MinLength(0),
	"k8s:minItems":      crdmarkers.MinItems(0),
	"k8s:maxItems":      crdmarkers.MaxItems(0),
	"k8s:minimum":       crdmarkers.Minimum(0),
	"k8s:maximum":       crdmarkers.Maximum(0),
	"k8s:minProperties": crdmarkers.MinProperties(0),
	"k8s:maxProperties": crdmarkers.MaxProperties(0),
	"k8s:format":        crdmarkers.Format(""),
}

// neither are tags that do not constrain values.
var neither = []string{
	"deepcopy-gen", "defaulter-gen", "openapi-gen", "openapi-model-package", "conversion-gen", "validation-gen",
	"protobuf-gen", "register-gen", "informers", "client-gen", "prerelease-lifecycle-gen", "supportsSubresource", "isSubresource",
}

// Export is Definitions, and also reads declarative validation, even beside kubebuilder markers, since a server
// enforces both. The returned problems are tags that no CustomResourceDefinition can express, so that a cluster would
// accept values that they refuse, and kinds of which no version is marked as stored.
func (p *Packages) Export() ([]apiextensionsv1.CustomResourceDefinition, []Problem, error) {
	for _, root := range p.roots {
		root.NeedSyntax()
	}
	if err := p.registerDeclarative(); err != nil {
		return nil, nil, err
	}
	definitions, problems := p.definitions()
	problems = slices.DeleteFunc(problems, lacksStorageVersion)
	if len(problems) > 0 {
		return nil, nil, join(problems)
	}
	for i := range definitions {
		problems = append(problems, storeNewest(&definitions[i])...)
	}
	for _, root := range p.roots {
		problems = append(problems, p.unsaid(root)...)
	}
	return definitions, problems, nil
}

// storeNewest makes the newest version the storage version if none is marked. Packages written for a server have no
// such marker, since the program decides.
func storeNewest(d *apiextensionsv1.CustomResourceDefinition) []Problem {
	var newest *apiextensionsv1.CustomResourceDefinitionVersion
	for i := range d.Spec.Versions {
		v := &d.Spec.Versions[i]
		if v.Storage {
			return nil
		}
		if newest == nil || version.CompareKubeAwareVersionStrings(v.Name, newest.Name) > 0 {
			newest = v
		}
	}
	if newest == nil {
		return nil
	}
	newest.Storage = true
	return []Problem{
		{
			Message: fmt.Sprintf("%s: no version is marked +kubebuilder:storageversion: the newest version, %s, becomes the "+
				"storage version", d.Name, newest.Name),
		},
	}
}

func (p *Packages) registerDeclarative() error {
	for name, marker := range declarative {
		for _, target := range []markers.TargetType{markers.DescribesField, markers.DescribesType} {
			if p.registry.Lookup("+"+name+"=1", target) != nil {
				continue
			}
			definition, err := markers.MakeDefinition(name, target, marker)
			if err == nil {
				err = p.registry.Register(definition)
			}
			if err != nil {
				return fmt.Errorf("register +%s: %w", name, err)
			}
		}
	}
	return nil
}

var tagName = regexp.MustCompile(`^k8s:([A-Za-z-]+)`)

// unsaid finds tags of declarative validation that have no meaning at their place.
func (p *Packages) unsaid(root *loader.Package) []Problem {
	var problems []Problem
	for _, f := range root.Syntax {
		fields := fieldLists(f)
		for _, group := range f.Comments {
			for _, line := range group.List {
				text, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(line.Text, "//")), "+")
				tag := tagName.FindStringSubmatch(text)
				if !ok || tag == nil || slices.Contains(neither, tag[1]) {
					continue
				}
				target := markers.DescribesType
				if slices.ContainsFunc(fields, func(list *ast.FieldList) bool { return list.Pos() < line.Pos() && line.Pos() < list.End() }) {
					target = markers.DescribesField
				}
				if p.registry.Lookup("+"+text, target) != nil {
					continue
				}
				at := p.fset.Position(line.Pos())
				problems = append(problems, Problem{File: at.Filename, Line: at.Line, Column: at.Column,
					Message: "+" + tag[0] + " is skipped, because a CustomResourceDefinition cannot express it: use a CEL rule, " +
						"+kubebuilder:validation:XValidation"})
			}
		}
	}
	return problems
}
