package coreapi

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/model/schemas"
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

	return map[string]common.OpenAPIDefinition{
		namespace.OpenAPIModelName(): schemas.Object(namespace.SwaggerDoc(), map[string]spec.Schema{
			"metadata": *reference(ref, objectMeta),
			"spec":     *reference(ref, nsSpec.OpenAPIModelName()),
			"status":   *reference(ref, status.OpenAPIModelName()),
		}, objectMeta, nsSpec.OpenAPIModelName(), status.OpenAPIModelName()),
		list.OpenAPIModelName(): schemas.Required(schemas.Object(list.SwaggerDoc(), map[string]spec.Schema{
			"metadata": *reference(ref, listMeta),
			"items":    *spec.ArrayProperty(reference(ref, namespace.OpenAPIModelName())),
		}, listMeta, namespace.OpenAPIModelName()), "items"),
		nsSpec.OpenAPIModelName(): schemas.Struct(nsSpec.SwaggerDoc(), map[string]spec.Schema{
			"finalizers": finalizers,
		}),
		status.OpenAPIModelName(): schemas.Struct(status.SwaggerDoc(), map[string]spec.Schema{
			"phase": *text().WithEnum(
				string(corev1.NamespaceActive),
				string(corev1.NamespaceTerminating),
			),
			"conditions": conditions,
		}, condition.OpenAPIModelName()),
		condition.OpenAPIModelName(): schemas.Required(schemas.Struct(condition.SwaggerDoc(), map[string]spec.Schema{
			"type":               *withDefault(text(), ""),
			"status":             *withDefault(text(), ""),
			"lastTransitionTime": *reference(ref, time),
			"reason":             *text(),
			"message":            *text(),
		}, time), "type", "status"),
	}
}

func reference(ref common.ReferenceCallback, name string) *spec.Schema {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(name)}}
}

func withDefault(s *spec.Schema, value any) *spec.Schema {
	s.Default = value
	return s
}
