package accounts

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/model/schemas"
)

// openAPI returns the definitions of service accounts and of the types that they reference. The staging modules do
// not include them; the descriptions are those of k8s.io/api.
func openAPI(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	account, list := corev1.ServiceAccount{}, corev1.ServiceAccountList{}
	object, local := corev1.ObjectReference{}, corev1.LocalObjectReference{}
	objectMeta, listMeta := metav1.ObjectMeta{}.OpenAPIModelName(), metav1.ListMeta{}.OpenAPIModelName()
	text := *spec.StringProperty()
	to := func(name string) spec.Schema { return spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(name)}} }
	each := func(name string) spec.Schema {
		of := to(name)
		of.Default = map[string]any{}
		return *spec.ArrayProperty(&of)
	}

	secrets := each(object.OpenAPIModelName())
	secrets.AddExtension("x-kubernetes-list-type", "map")
	secrets.AddExtension("x-kubernetes-list-map-keys", []any{"name"})
	secrets.AddExtension("x-kubernetes-patch-strategy", "merge")
	secrets.AddExtension("x-kubernetes-patch-merge-key", "name")
	pullSecrets := each(local.OpenAPIModelName())
	pullSecrets.AddExtension("x-kubernetes-list-type", "atomic")
	name := text
	name.Default = ""

	objectReference := schemas.Struct(object.SwaggerDoc(), map[string]spec.Schema{
		"kind": text, "namespace": text, "name": text, "uid": text, "apiVersion": text, "resourceVersion": text, "fieldPath": text,
	})
	objectReference.Schema.AddExtension("x-kubernetes-map-type", "atomic")
	localReference := schemas.Struct(local.SwaggerDoc(), map[string]spec.Schema{"name": name})
	localReference.Schema.AddExtension("x-kubernetes-map-type", "atomic")
	listed := schemas.Required(schemas.Object(list.SwaggerDoc(), map[string]spec.Schema{
		"metadata": to(listMeta),
		"items":    each(account.OpenAPIModelName()),
	}, listMeta, account.OpenAPIModelName()), "items")
	return map[string]common.OpenAPIDefinition{
		account.OpenAPIModelName(): schemas.Object(account.SwaggerDoc(), map[string]spec.Schema{
			"metadata":                     to(objectMeta),
			"secrets":                      secrets,
			"imagePullSecrets":             pullSecrets,
			"automountServiceAccountToken": *spec.BooleanProperty(),
		}, objectMeta, object.OpenAPIModelName(), local.OpenAPIModelName()),
		list.OpenAPIModelName():   listed,
		object.OpenAPIModelName(): objectReference,
		local.OpenAPIModelName():  localReference,
	}
}
