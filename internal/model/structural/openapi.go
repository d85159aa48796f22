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

// Published returns the schema that a server of the definition publishes in a format, as a
// copy. If native, that has apiVersion, kind and metadata besides, as all kinds do; in the
// schema they are as they are marked.
func (v *Version) Published(format Format) (schema spec.Schema, native bool) {
	s := v.raw.DeepCopy().Unfold()
	if format == OpenAPIv2 {
		if s.XPreserveUnknownFields {
			// kubectl would refuse unknown fields if there were known ones.
			return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}, false
		}
		s = openapiv2.ToStructuralOpenAPIV2(s)
	}
	return *s.ToKubeOpenAPI(), true
}
