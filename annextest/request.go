package annextest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Test is the part of testing.TB that faults and reports need. *testing.T and *testing.B have it, and so has the
// value of Ginkgo's GinkgoT().
type Test interface {
	Helper()
	Name() string
	Failed() bool
	Cleanup(f func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

const protobufType = "application/vnd.kubernetes.protobuf"

// target is the object or the collection that a request addresses. A request outside of /api and /apis has no
// resource.
type target struct {
	verb                  string
	group                 string
	resource, subresource string
	namespace, name       string
	path                  string
}

// targetOf reads a request to a server whose API begins at the path prefix. The name of an object to create is in the
// body of the request, which is read if GetBody returns a copy of it, as it does for requests of client-go.
func targetOf(r *http.Request, prefix string) target {
	at := *r.URL
	if rest, ok := strings.CutPrefix(at.Path, strings.TrimSuffix(prefix, "/")); ok {
		at.Path = rest
	}
	factory := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(&http.Request{Method: r.Method, URL: &at})
	if err != nil || !info.IsResourceRequest {
		return target{verb: strings.ToLower(r.Method), path: at.Path}
	}
	t := target{
		verb: info.Verb, group: info.APIGroup, resource: info.Resource, subresource: info.Subresource,
		namespace: info.Namespace, name: info.Name, path: at.Path,
	}
	if t.resource == "namespaces" && t.group == "" {
		t.namespace = "" // the request info has the name there, too
	}
	if t.verb == "create" && t.name == "" {
		t.name = nameIn(r)
	}
	return t
}

// nameIn returns the name of the object in the body of a request; empty if the body cannot be read twice or has no
// name.
func nameIn(r *http.Request) string {
	data := bodyOf(r)
	if data == nil {
		return ""
	}
	var obj metav1.PartialObjectMetadata
	if raw, ok := bytes.CutPrefix(data, []byte("k8s\x00")); ok {
		// All kinds have their metadata in the first field.
		var unknown runtime.Unknown
		if unknown.Unmarshal(raw) != nil || obj.Unmarshal(unknown.Raw) != nil {
			return ""
		}
		return obj.Name
	}
	if json.Unmarshal(data, &obj) != nil {
		return ""
	}
	return obj.Name
}

// bodyOf returns the body of a request without reading the request itself; nil if it has none or GetBody is not set.
func bodyOf(r *http.Request) []byte {
	if r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return nil
	}
	return data
}

// kind is the resource of the target with its group and its subresource, as On has it.
func (t target) kind() string {
	name := schema.GroupResource{Group: t.group, Resource: t.resource}.String()
	if t.resource == "" {
		name = t.path
	}
	if t.subresource != "" {
		name += "/" + t.subresource
	}
	return name
}

// object is the namespace and the name.
func (t target) object() string { return path.Join(t.namespace, t.name) }

// String is the verb, the resource and the object.
func (t target) String() string {
	return strings.TrimSpace(t.verb + " " + t.kind() + " " + t.object())
}

// prefixOf returns the path below which the server of a configuration has its API.
func prefixOf(config *rest.Config) string {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return "" // no client can be made of it either
	}
	return base.Path
}

// encode writes a Status in the first media type that the client accepts and this function knows: protobuf, or else
// JSON.
func encode(accept string, status *metav1.Status) (contentType string, data []byte, err error) {
	status.APIVersion, status.Kind = "v1", "Status"
	for media := range strings.SplitSeq(accept, ",") {
		switch media, _, _ := strings.Cut(strings.TrimSpace(media), ";"); media {
		case protobufType:
			data, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), status)
			return protobufType, data, err
		case "application/json", "*/*":
			data, err := json.Marshal(status)
			return "application/json", data, err
		}
	}
	data, err = json.Marshal(status)
	return "application/json", data, err
}
