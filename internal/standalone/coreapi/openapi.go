package coreapi

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// OpenAPI returns the definitions of the group's types, which the staging modules do not include. The descriptions
// are those of k8s.io/api. The referenced meta types are not included.
func OpenAPI(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	var (
		namespace = corev1.Namespace{}
		list      = corev1.NamespaceList{}
		nsSpec    = corev1.NamespaceSpec{}
		status    = corev1.NamespaceStatus{}
		condition = corev1.NamespaceCondition{}

		objectMeta = metav1.ObjectMeta{}.OpenAPIModelName()
		listMeta   = metav1.ListMeta{}.OpenAPIModelName()
		time       = metav1.Time{}.OpenAPIModelName()
	)
	text := spec.StringProperty

	finalizers := *spec.ArrayProperty(withDefault(text(), ""))
	finalizers.AddExtension("x-kubernetes-list-type", "atomic")

	conditions := *spec.ArrayProperty(reference(ref, condition.OpenAPIModelName()))
	conditions.AddExtension("x-kubernetes-list-type", "map")
	conditions.AddExtension("x-kubernetes-list-map-keys", []any{"type"})
	conditions.AddExtension("x-kubernetes-patch-strategy", "merge")
	conditions.AddExtension("x-kubernetes-patch-merge-key", "type")

	object := func(properties map[string]spec.Schema) map[string]spec.Schema {
		properties["kind"] = described(*text(), metav1.TypeMeta{}.SwaggerDoc()["kind"])
		properties["apiVersion"] = described(*text(), metav1.TypeMeta{}.SwaggerDoc()["apiVersion"])
		return properties
	}
	return map[string]common.OpenAPIDefinition{
		namespace.OpenAPIModelName(): define(namespace.SwaggerDoc(), object(map[string]spec.Schema{
			"metadata": *reference(ref, objectMeta),
			"spec":     *reference(ref, nsSpec.OpenAPIModelName()),
			"status":   *reference(ref, status.OpenAPIModelName()),
		}), nil, objectMeta, nsSpec.OpenAPIModelName(), status.OpenAPIModelName()),
		list.OpenAPIModelName(): define(list.SwaggerDoc(), object(map[string]spec.Schema{
			"metadata": *reference(ref, listMeta),
			"items":    *spec.ArrayProperty(reference(ref, namespace.OpenAPIModelName())),
		}), []string{"items"}, listMeta, namespace.OpenAPIModelName()),
		nsSpec.OpenAPIModelName(): define(nsSpec.SwaggerDoc(), map[string]spec.Schema{
			"finalizers": finalizers,
		}, nil),
		status.OpenAPIModelName(): define(status.SwaggerDoc(), map[string]spec.Schema{
			"phase": *text().WithEnum(
				string(corev1.NamespaceActive),
				string(corev1.NamespaceTerminating),
			),
			"conditions": conditions,
		}, nil, condition.OpenAPIModelName()),
		condition.OpenAPIModelName(): define(condition.SwaggerDoc(), map[string]spec.Schema{
			"type":               *withDefault(text(), ""),
			"status":             *withDefault(text(), ""),
			"lastTransitionTime": *reference(ref, time),
			"reason":             *text(),
			"message":            *text(),
		}, []string{"type", "status"}, time),
	}
}

// define returns the definition of a struct whose documentation is doc.
func define(doc map[string]string, properties map[string]spec.Schema, required []string, dependencies ...string) common.OpenAPIDefinition {
	for name, property := range properties {
		if property.Description == "" {
			properties[name] = described(property, doc[name])
		}
	}
	return common.OpenAPIDefinition{
		Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: doc[""],
			Type:        []string{"object"},
			Properties:  properties,
			Required:    required,
		}},
		Dependencies: dependencies,
	}
}

func described(s spec.Schema, description string) spec.Schema {
	s.Description = description
	return s
}

func reference(ref common.ReferenceCallback, name string) *spec.Schema {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(name)}}
}

func withDefault(s *spec.Schema, value any) *spec.Schema {
	s.Default = value
	return s
}
