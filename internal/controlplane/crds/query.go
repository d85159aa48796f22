package crds

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/server/query"
)

// queryResources provides the custom resources and their definitions to queries. The resources of a definition are cached
// until the definition changes.
type queryResources struct {
	definitions listers.CustomResourceDefinitionLister

	mu    sync.Mutex
	cache map[string]definedResources // by the names of definitions
}

type definedResources struct {
	definition *apiextensionsv1.CustomResourceDefinition
	resources  []*query.Resource
}

// itself is the resource of the definitions. They are few, and served by upstream.
var itself = &query.Resource{
	GroupVersionResource: apiextensionsv1.SchemeGroupVersion.WithResource(Resource.Resource),
	Kind:                 "CustomResourceDefinition",
}

func (q *queryResources) resources() []*query.Resource {
	all := []*query.Resource{itself}
	definitions, err := q.definitions.List(labels.Everything())
	if err != nil {
		return all
	}
	slices.SortFunc(definitions, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	q.mu.Lock()
	defer q.mu.Unlock()
	current := make(map[string]definedResources, len(definitions))
	for _, d := range definitions {
		known := q.cache[d.Name]
		if known.definition != d {
			known = definedResources{d, resourcesOf(d)}
		}
		current[d.Name] = known
		all = append(all, known.resources...)
	}
	q.cache = current
	return all
}

func resourcesOf(d *apiextensionsv1.CustomResourceDefinition) []*query.Resource {
	if !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
		return nil
	}
	var all []*query.Resource
	for i := range d.Spec.Versions {
		v := &d.Spec.Versions[i]
		if !v.Served {
			continue
		}
		resource := &query.Resource{
			GroupVersionResource: schema.GroupVersionResource{Group: d.Spec.Group, Version: v.Name, Resource: d.Status.AcceptedNames.Plural},
			Kind:                 d.Status.AcceptedNames.Kind,
			Namespaced:           d.Spec.Scope == apiextensionsv1.NamespaceScoped,
			Watched:              true,
			Indexed:              true,
			Fields:               fieldsOf(v),
			Encode:               encode,
			Schemas:              func() (map[string]*spec.Schema, string, error) { return schemasOf(d, v.Name) },
			Edition:              strconv.FormatInt(d.Generation, 10) + "/" + string(d.UID),
		}
		resource.Table = tableOf(resource, v)
		all = append(all, resource)
	}
	return all
}

// tableOf returns the table of a version, nil if its columns cannot be read.
func tableOf(resource *query.Resource, v *apiextensionsv1.CustomResourceDefinitionVersion) *query.Table {
	columns := v.AdditionalPrinterColumns
	if len(columns) == 0 {
		columns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}}
	}
	convertor, err := tableconvertor.New(columns)
	if err != nil {
		return nil
	}
	table, err := query.NewTable(
		resource,
		convertor,
		&unstructured.UnstructuredList{},
		func(d metav1.TableColumnDefinition) (*ordered.Field, bool) {
			if d.Format == "name" {
				return query.MetadataColumn(d), true
			}
			i := slices.IndexFunc(columns, func(c apiextensionsv1.CustomResourceColumnDefinition) bool { return c.Name == d.Name })
			if i < 0 {
				return nil, false
			}
			name, isMetadata := strings.CutPrefix(columns[i].JSONPath, ".metadata.")
			if !isMetadata || !ordered.Reserved(name) {
				name = strings.TrimPrefix(columns[i].JSONPath, ".")
				if ordered.Reserved(name) {
					return nil, false
				}
			}
			f := resource.FieldNamed(name)
			return f, f != nil
		},
	)
	if err != nil {
		return nil
	}
	return table
}

// schemasOf returns the schemas of the OpenAPI v3 document of a version, and the name of the schema of its objects.
func schemasOf(d *apiextensionsv1.CustomResourceDefinition, version string) (map[string]*spec.Schema, string, error) {
	document, err := builder.BuildOpenAPIV3(d, version, builder.Options{})
	if err != nil {
		return nil, "", err
	}
	for name, s := range document.Components.Schemas {
		kinds, _ := s.Extensions["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			if k, ok := k.(map[string]any); ok && k["group"] == d.Spec.Group && k["kind"] == d.Status.AcceptedNames.Kind {
				return document.Components.Schemas, name, nil
			}
		}
	}
	return nil, "", fmt.Errorf("the definition %s has no schema of its kind", d.Name)
}

// fieldsOf returns the selectable fields of a version, and its columns whose path leads to a single value.
func fieldsOf(v *apiextensionsv1.CustomResourceDefinitionVersion) []ordered.Field {
	var all []ordered.Field
	add := func(path, kind, description string) {
		name := strings.TrimPrefix(path, ".")
		parts := strings.Split(name, ".")
		plain := path != name && !slices.Contains(parts, "") && !strings.ContainsAny(name, "[]{}()'\"*?@$\\: ")
		if !plain || ordered.Reserved(name) || slices.ContainsFunc(all, func(f ordered.Field) bool { return f.Name == name }) {
			return
		}
		if len(parts) == 2 && parts[0] == "metadata" && ordered.Reserved(parts[1]) {
			return // a field of every resource
		}
		f := ordered.Field{Name: name, Description: description, Sortable: true}
		switch kind {
		case "integer", "number":
			f.Type = ordered.Number
		case "boolean":
			f.Type = ordered.Boolean
		case "date":
			f.Type = ordered.Time
		default:
			f.Type, f.Text = ordered.String, true
		}
		f.Get = func(o runtime.Object) any { return valueAt(o, parts, f.Type) }
		all = append(all, f)
	}
	for _, c := range v.AdditionalPrinterColumns {
		add(c.JSONPath, c.Type, c.Description)
	}
	for _, s := range v.SelectableFields {
		add(s.JSONPath, typeAt(v, s.JSONPath), "")
	}
	return all
}

// typeAt returns the type of the value at a path in a version's schema; string if there is none.
func typeAt(v *apiextensionsv1.CustomResourceDefinitionVersion, path string) string {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return "string"
	}
	at := *v.Schema.OpenAPIV3Schema
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "."), ".") {
		at = at.Properties[part]
	}
	return at.Type
}

// valueAt returns the value of a field of a custom resource; nil if it has no value of the type.
func valueAt(o runtime.Object, path []string, kind string) any {
	object, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	var value any = object.Object
	for _, part := range path {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[part]
	}
	switch v := value.(type) {
	case string:
		switch kind {
		case ordered.String:
			return v
		case ordered.Time:
			if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
				return t
			}
		}
	case int64, float64:
		if kind == ordered.Number {
			return v
		}
		if kind == ordered.String {
			return fmt.Sprint(v)
		}
	case bool:
		if kind == ordered.Boolean {
			return v
		}
		if kind == ordered.String {
			return fmt.Sprint(v)
		}
	}
	return nil
}

// encode encodes custom resources without conversion.
func encode(objects []runtime.Object) ([][]byte, error) {
	items := make([][]byte, len(objects))
	for i, o := range objects {
		object, ok := o.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("%T is not a custom resource", o)
		}
		var err error
		if items[i], err = json.Marshal(object.Object); err != nil {
			return nil, err
		}
	}
	return items, nil
}
