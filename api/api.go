// Package api holds the facts that generated code passes to a server about one API package, that is, about one group
// version and its types.
//
// It is apart from package annex so that a program that only uses the types, such as a client, links no server.
package api

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"
)

// Facts are the generated facts about one API package. The generator writes a function named API that returns them
// into the package. The server calls it once; generated code registers nothing in global state.
type Facts struct {
	// GroupVersion is the package's group and version, such as restaurant.wukong.com/v1beta1.
	GroupVersion schema.GroupVersion

	// AddToScheme registers the package's types under GroupVersion, and with them the meta types that clients need.
	// It may be called again with the same scheme.
	AddToScheme func(*runtime.Scheme) error

	// AddDefaults registers the package's defaulting functions. Nil means that the package has none.
	AddDefaults func(*runtime.Scheme) error

	// AddConversions registers the conversions between the package's types and those of the hub's package: generated
	// conversions, and hand-written ones in their place. Nil means that the package has none.
	AddConversions func(*runtime.Scheme) error

	// AddValidations registers the package's declarative validation, from the k8s tags in its types. Nil means that
	// the package has none.
	AddValidations func(*runtime.Scheme) error

	// ValidationOptions are the options that those tags name, in +k8s:ifEnabled and
	// +k8s:ifDisabled, sorted. The server passes each of them to the validation. Nil means
	// that the tags name none.
	ValidationOptions []string

	// OpenAPI returns, by OpenAPI model name, the definitions of the package's types and of all types that these
	// refer to, except for types of apimachinery, which the server has.
	OpenAPI common.GetOpenAPIDefinitions

	// CustomResources returns, by kind, the CustomResourceDefinition in JSON that the package's kubebuilder markers
	// define, with this version alone and without descriptions. The version has storage set if the kind is marked
	// +kubebuilder:storageversion, and subresources, if only empty ones, if the kind's own
	// markers define them; otherwise the Go type decides about /status. The scope is empty if the kind's own markers
	// do not define the resource. The text is empty for a kind that this version does not serve, by
	// the marker +kubebuilder:skipversion or +kubebuilder:skip. Nil means that the package has no kubebuilder markers.
	CustomResources func() map[string]string

	// Messages returns, by Go type, the OpenAPI v3 schemas in JSON that the package's kubebuilder markers define for
	// its other objects: the requests and options of subresources. Nil means that there are none.
	Messages func() map[string]string
}
