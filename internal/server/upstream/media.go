package upstream

import (
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/registry"
)

// withoutProtobuf is a serializer that does not offer protobuf. Clients that prefer protobuf fall back to JSON, and
// clients that accept nothing else get a 406.
type withoutProtobuf struct {
	runtime.NegotiatedSerializer
}

func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType == runtime.ContentTypeProtobuf
	})
}

// offersProtobuf reports whether any kind of a group can be encoded as protobuf. Upstream has a single answer per
// group, which noProtobuf corrects for other kinds.
func offersProtobuf(g *define.Group) bool {
	// Namespaces are in the core group.
	return g.Name == "" || slices.ContainsFunc(g.Kinds, func(k *define.Kind) bool {
		return slices.ContainsFunc(k.Versions, func(v *define.Version) bool { return !v.Unserved && v.SpeaksProtobuf() })
	})
}

// endpoint is a resource or a subresource in one version.
type endpoint struct {
	schema.GroupVersionResource
	subresource string
}

// noProtobuf holds the endpoints without protobuf in groups that offer it for other endpoints.
type noProtobuf map[endpoint]bool

func newNoProtobuf(groups []define.Group, kinds []*registry.Kind) noProtobuf {
	all := noProtobuf{}
	for i := range groups {
		if !offersProtobuf(&groups[i]) {
			continue
		}
		for _, k := range kinds {
			if k.Definition.Group != groups[i].Name {
				continue
			}
			for path, storage := range k.Storage() {
				_, sub, _ := strings.Cut(path, "/")
				for _, v := range k.Definition.Versions {
					if !speaksProtobuf(k.Definition, v, sub, storage) {
						all[endpoint{v.GroupVersion.WithResource(k.Definition.Resource), sub}] = true
					}
				}
			}
		}
	}
	return all
}

// speaksProtobuf reports whether the request and response types of a storage have protobuf methods when a kind is
// served in a version.
func speaksProtobuf(k *define.Kind, v *define.Version, path string, storage rest.Storage) bool {
	if is[rest.Connecter](storage) {
		return true // the handler negotiates its own media types
	}
	types := []reflect.Type{reflect.TypeOf(storage.New()).Elem()}
	for _, s := range k.CustomSubresources {
		if s.Name == path && !s.IsPart {
			types = []reflect.Type{s.Answer}
			if !s.ReadsQuery() {
				types = append(types, s.Object)
			}
		}
	}
	return !slices.ContainsFunc(types, func(t reflect.Type) bool {
		if t == k.Hub().Type {
			return !v.SpeaksProtobuf()
		}
		return t != nil && !define.IsProtobuf(t)
	})
}

// has reports whether a request is for one of the endpoints, and returns its request info.
func (t noProtobuf) has(r *http.Request) (*request.RequestInfo, bool) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		return nil, false
	}
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	return info, t[endpoint{resource, info.Subresource}]
}

// filter answers 406 or 415 to requests that accept or send only protobuf, as upstream does where protobuf is not
// offered, and removes protobuf from the Accept headers of other requests. Tables and metadata can always be encoded
// as protobuf.
func (t noProtobuf) filter(handler http.Handler, c *server.Config) http.Handler {
	text := withoutProtobuf{c.Serializer}
	types, streams := negotiation.MediaTypesForSerializer(text)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := t.has(r)
		if !ok {
			handler.ServeHTTP(w, r)
			return
		}
		refuse := func(err error) {
			responsewriters.ErrorNegotiated(err, text, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
		}
		accept, changed := dropProtobuf(r.Header.Get("Accept"))
		switch {
		case changed && accept == "" && info.Verb == "watch":
			refuse(negotiation.NewNotAcceptableError(streams))
			return
		case changed && accept == "":
			refuse(negotiation.NewNotAcceptableError(types))
			return
		}
		if (info.Verb == "create" || info.Verb == "update") && isProtobuf(r.Header.Get("Content-Type")) {
			refuse(negotiation.NewUnsupportedMediaTypeError(types))
			return
		}
		if changed {
			r = r.WithContext(r.Context())
			r.Header = r.Header.Clone()
			r.Header.Set("Accept", accept)
		}
		handler.ServeHTTP(w, r)
	})
}

// dropProtobuf returns an Accept header without protobuf, and reports whether it contained any.
func dropProtobuf(accept string) (string, bool) {
	if !strings.Contains(accept, runtime.ContentTypeProtobuf) {
		return accept, false
	}
	clauses := strings.Split(accept, ",")
	kept := slices.DeleteFunc(slices.Clone(clauses), isProtobuf)
	return strings.Join(kept, ","), len(kept) < len(clauses)
}

// isProtobuf reports whether a media type is the protobuf of an unconverted object.
func isProtobuf(mediaType string) bool {
	name, parameters, err := mime.ParseMediaType(mediaType)
	return err == nil && name == runtime.ContentTypeProtobuf && parameters["as"] == ""
}

// endpointOf returns the endpoint that a path of OpenAPI describes.
func endpointOf(path string) endpoint {
	group, ok := strings.CutPrefix(path, server.APIGroupPrefix)
	if !ok {
		group = "/" + strings.TrimPrefix(path, server.DefaultLegacyAPIPrefix) // the core group has an empty name
	}
	parts := strings.Split(group, "/")[1:]
	if len(parts) < 3 {
		return endpoint{}
	}
	e := endpoint{GroupVersionResource: schema.GroupVersionResource{Group: parts[0], Version: parts[1]}}
	parts = parts[2:]
	if parts[0] == "watch" {
		parts = parts[1:]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	e.Resource = parts[0]
	if len(parts) > 2 {
		e.subresource = parts[2]
	}
	return e
}

// correctV2 removes protobuf from the media types of the endpoints in OpenAPI v2.
func (t noProtobuf) correctV2(doc *spec.Swagger) (*spec.Swagger, error) {
	for path, item := range doc.Paths.Paths {
		if !t[endpointOf(path)] {
			continue
		}
		for _, operation := range []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
			if operation != nil {
				operation.Produces = slices.DeleteFunc(slices.Clone(operation.Produces), isProtobuf)
			}
		}
	}
	return doc, nil
}

// correctV3 is correctV2 for OpenAPI v3.
func (t noProtobuf) correctV3(doc *spec3.OpenAPI) (*spec3.OpenAPI, error) {
	for path, item := range doc.Paths.Paths {
		if !t[endpointOf(path)] {
			continue
		}
		for _, operation := range []*spec3.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
			if operation == nil || operation.Responses == nil {
				continue
			}
			for _, response := range operation.Responses.StatusCodeResponses {
				for mediaType := range response.Content {
					if isProtobuf(mediaType) {
						delete(response.Content, mediaType)
					}
				}
			}
		}
	}
	return doc, nil
}
