// Package api holds what generated code tells a server about one API package:
// one group version and the types in it.
//
// It is apart from package annex so that a program that only uses the types, a
// client say, links no server.
package api

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"
)

// Facts are the generated facts about one API package. The generator writes a
// function named API into the package that returns them; the server asks for
// them once, and nothing is registered behind its back.
type Facts struct {
	// GroupVersion is the package's group and version, such as
	// restaurant.wukong.com/v1beta1.
	GroupVersion schema.GroupVersion

	// AddToScheme registers the package's types under GroupVersion, and the meta
	// types that clients need with them. Calling it again with the same scheme is
	// harmless.
	AddToScheme func(*runtime.Scheme) error

	// AddDefaults registers the package's defaulting functions. Nil means that
	// the package has none.
	AddDefaults func(*runtime.Scheme) error

	// AddConversions registers the generated conversions between the package's types
	// and those of the hub's package, and those that were written by hand instead. Nil
	// means that the package has none.
	AddConversions func(*runtime.Scheme) error

	// AddValidations registers the package's declarative validation, of the k8s tags
	// in its types. Nil means that the package has none.
	AddValidations func(*runtime.Scheme) error

	// ValidationOptions are the options that those tags name, in +k8s:ifEnabled and
	// +k8s:ifDisabled, sorted. The server passes each of them to the validation. Nil means
	// that the tags name none.
	ValidationOptions []string

	// OpenAPI returns the definitions of the package's types and of all types
	// they refer to, by OpenAPI model name, but for those of apimachinery, which
	// the server has.
	OpenAPI common.GetOpenAPIDefinitions

	// CustomResources returns, by kind, the CustomResourceDefinition in JSON that the
	// package's kubebuilder markers make: with this version alone, and without
	// descriptions. The version has storage set if the kind is marked
	// +kubebuilder:storageversion, and subresources, if only empty ones, if the kind's own
	// markers speak of them: otherwise the Go type decides about /status. Its scope is empty
	// if the kind's own markers do not decide about the resource. The text is empty for a kind that is not to be served in
	// this version, by +kubebuilder:skipversion or +kubebuilder:skip. Nil means that the
	// package has no markers of kubebuilder's.
	CustomResources func() map[string]string

	// Messages returns, by Go type, the OpenAPI v3 schema in JSON that the package's
	// kubebuilder markers make of its objects that are no kinds: the requests and options
	// of subresources. Nil means that there are none.
	Messages func() map[string]string
}
