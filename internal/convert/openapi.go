package convert

import (
	"net/url"

	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

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
				marked.version(v)
			}
		}
		return merged
	}
}

// DefinitionsOf returns the definitions of one version's package, with what its kubebuilder
// markers say. They refer to one another by name.
func DefinitionsOf(v *define.Version) map[string]common.OpenAPIDefinition {
	facts := v.Facts()
	if facts.OpenAPI == nil {
		return nil
	}
	ref := func(name string) spec.Ref { return spec.MustCreateRef("#/" + url.PathEscape(name)) }
	definitions := facts.OpenAPI(ref)
	describe(definitions, ref).version(v)
	return definitions
}

// Namer names OpenAPI definitions after the public versions of their types.
func (m *Machinery) Namer() *openapi.DefinitionNamer {
	return openapi.NewDefinitionNamer(m.Public)
}
