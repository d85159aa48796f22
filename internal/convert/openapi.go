package convert

import (
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/annexapi/annex/internal/define"
)

// Definitions merges the OpenAPI definitions of all served packages. Packages
// repeat the definitions of types that they share; those are equal. They gain what the
// kinds' kubebuilder markers say.
func Definitions(server *define.Server, extra ...common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	sources := extra
	for _, k := range server.Kinds() {
		for _, v := range k.Versions {
			if facts := v.Facts(); facts.OpenAPI != nil {
				sources = append(sources, facts.OpenAPI)
			}
		}
	}
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		merged := map[string]common.OpenAPIDefinition{}
		for _, definitions := range sources {
			for name, definition := range definitions(ref) {
				merged[name] = definition
			}
		}
		marked := describe(merged, ref)
		for _, k := range server.Kinds() {
			for _, v := range k.Versions {
				if v.Structural != nil {
					marked.kind(v.Type, v.Structural.Definition.Spec.Versions[0].Schema.OpenAPIV3Schema)
				}
			}
		}
		return merged
	}
}

// Namer names OpenAPI definitions after the public versions of their types.
func (m *Machinery) Namer() *openapi.DefinitionNamer {
	return openapi.NewDefinitionNamer(m.Public)
}
