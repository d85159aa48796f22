package convert

import (
	"maps"
	"net/url"
	"reflect"
	"strings"

	upstream "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/structural"
)

// OpenAPI contains the definitions of all served types, in both formats.
type OpenAPI struct {
	V2, V3 common.GetOpenAPIDefinitions
}

// Definitions merges the OpenAPI definitions of meta/v1 and similar packages, of extra, and of all served packages.
// Packages repeat the definitions of shared types; the copies are equal. Kinds with kubebuilder markers are described
// by their markers.
func Definitions(server *define.Server, extra ...common.GetOpenAPIDefinitions) OpenAPI {
	sources := append([]common.GetOpenAPIDefinitions{upstream.GetOpenAPIDefinitions, intOrString}, extra...)
	var versions []*define.Version
	var served []common.GetOpenAPIDefinitions
	type source struct {
		pkg  string
		made uintptr
	}
	taken := map[source]bool{}
	var messages []*define.Subresource
	for _, k := range server.Kinds() {
		versions = append(versions, k.Versions...)
		for _, s := range k.CustomSubresources {
			messages = append(messages, s)
			if s.Facts != nil && s.Facts().OpenAPI != nil {
				served = append(served, s.Facts().OpenAPI)
			}
		}
		for _, v := range k.Versions {
			facts := v.Facts()
			// All kinds of a package have the same function, which returns the definitions of all its types; in the
			// core group these are hundreds.
			from := source{v.Type.PkgPath(), reflect.ValueOf(facts.OpenAPI).Pointer()}
			if facts.OpenAPI != nil && !taken[from] {
				taken[from] = true
				served = append(served, facts.OpenAPI)
			}
		}
	}
	in := func(format structural.Format) common.GetOpenAPIDefinitions {
		return func(given common.ReferenceCallback) map[string]common.OpenAPIDefinition {
			ref := func(name string) spec.Ref { return given(modelName(name)) }
			merged := map[string]common.OpenAPIDefinition{}
			for _, definitions := range sources {
				maps.Copy(merged, definitions(ref))
			}
			for _, definitions := range served {
				for name, definition := range definitions(ref) {
					if !strings.HasPrefix(modelName(name), kubernetesModels) { // clients know these from clusters, and merge by their defaults
						dropContradictions(definition)
					}
					merged[name] = definition
				}
			}
			describe(merged, ref, format, versions, messages...)
			return merged
		}
	}
	return OpenAPI{V2: in(structural.OpenAPIv2), V3: in(structural.OpenAPIv3)}
}

// kubernetesModels begins the names of definitions of Kubernetes' own types.
const kubernetesModels = "io.k8s."

// intOrString defines the only apimachinery type that upstream's definitions lack. OpenAPI v2 has no oneOf, so it
// gets a separate schema.
func intOrString(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	var of intstr.IntOrString
	described := spec.SchemaProps{
		Description: "IntOrString is a type that can hold an int32 or a string.  When used in JSON or YAML marshalling and unmarshalling, it " +
			"produces or consumes the inner type.  This allows you to have, for example, a JSON field that can accept a name or number.",
		Format: of.OpenAPISchemaFormat(),
	}
	v2, v3 := described, described
	v2.Type = of.OpenAPISchemaType()
	v3.OneOf = common.GenerateOpenAPIV3OneOfSchema(of.OpenAPIV3OneOfTypes())
	return map[string]common.OpenAPIDefinition{of.OpenAPIModelName(): common.EmbedOpenAPIDefinitionIntoV2Extension(
		common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: v3}},
		common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: v2}},
	)}
}

// DefinitionsOf returns the definitions of one version's package, including its kubebuilder markers. They refer to
// each other by name.
func DefinitionsOf(v *define.Version) map[string]common.OpenAPIDefinition {
	facts := v.Facts()
	if facts.OpenAPI == nil {
		return nil
	}
	ref := func(name string) spec.Ref { return spec.MustCreateRef("#/" + url.PathEscape(name)) }
	definitions := facts.OpenAPI(ref)
	describe(definitions, ref, structural.OpenAPIv3, []*define.Version{v})
	return definitions
}

// Namer names OpenAPI definitions, and provides their kinds.
type Namer struct{ *openapi.DefinitionNamer }

// Namer returns a namer that uses the public versions of types, and the schemes beside in addition.
func (m *Machinery) Namer(beside ...*runtime.Scheme) Namer {
	return Namer{openapi.NewDefinitionNamer(append([]*runtime.Scheme{m.Public}, beside...)...)}
}

// GetDefinitionName is upstream's method, extended for types that do not name their definitions.
func (n Namer) GetDefinitionName(name string) (string, spec.Extensions) {
	return n.DefinitionNamer.GetDefinitionName(modelName(name))
}

// modelName returns the name under which schemes know the definition of a type of another project, which is named by
// package and type. Upstream's namer does not find the kinds of such definitions, and objects without a known kind
// have no managed fields.
func modelName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}
