package structural

import (
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Format is a format of OpenAPI.
type Format int

// The formats that Kubernetes publishes.
const (
	OpenAPIv2 Format = 2
	OpenAPIv3 Format = 3
)

// Published returns a copy of the schema that a CRD server publishes in a format. If native is true, the published
// definition additionally has the common fields apiVersion, kind and metadata; schema contains them as marked.
func (v *Version) Published(format Format) (schema spec.Schema, native bool) {
	s := v.raw.DeepCopy().Unfold()
	if format == OpenAPIv2 {
		if s.XPreserveUnknownFields {
			// With known fields in the schema, kubectl would reject unknown ones.
			return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}, false
		}
		s = openapiv2.ToStructuralOpenAPIV2(s)
	}
	return *s.ToKubeOpenAPI(), true
}
