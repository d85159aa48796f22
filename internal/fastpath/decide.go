package fastpath

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Route is the way of a request behind the filters.
type Route uint8

// The routes. Each but Upstream is one bit, so that a condition names several.
const (
	// Upstream is the route to upstream's handlers.
	Upstream Route = 0
	// Get answers one object.
	Get Route = 1 << (iota - 1)
	// List answers a list as plain JSON.
	List
	// Items lets upstream's handler answer a list without its items, and puts the items in.
	Items
	// Watch writes the events of a watch.
	Watch
	Create
	Update
	Patch
	Delete

	reads  = Get | List | Watch
	writes = Create | Update | Patch | Delete
	all    = reads | writes
)

// names are the values of the label route.
var names = map[Route]string{
	Get: "get", List: "list", Items: "items", Watch: "watch", Create: "create", Update: "update", Patch: "patch", Delete: "delete",
}

// String returns the name of a route in metrics.
func (r Route) String() string {
	if name, ok := names[r]; ok {
		return name
	}
	return "upstream"
}

// Decision is the outcome of the gate for a request.
type Decision struct {
	// Route is Upstream if and only if Reason is set.
	Route  Route
	Reason Reason
	Info   *request.RequestInfo
	// The fields below are set unless Route is Upstream.
	Kind *Kind
	// Media is the media type of the answer. It is 0 for Items, whose media type upstream negotiates.
	Media Media
	// Scope is the scope of a list or a watch in metrics.
	Scope string
	// Options and ContentType are those of a write.
	Options     Options
	ContentType string

	gate *Gate
	// verb is the route without regard to conditions; Upstream for a request of no route.
	verb Route
}

// Reason is why upstream's handlers answer a request: a value of the label reason. It is empty if they do not.
type Reason string

// The reasons that the gate finds without looking at bodies and objects.
const (
	TurnedOff    Reason = "turned_off"
	NoRoute      Reason = "verb"
	Subresource  Reason = "subresource"
	NoKind       Reason = "kind"
	Deprecated   Reason = "deprecated"
	Unsupported  Reason = "unsupported"
	OddPath      Reason = "path"
	Traced       Reason = "traced"
	Audited      Reason = "audited"
	WebSocket    Reason = "websocket"
	OddMedia     Reason = "accept"
	ForPeople    Reason = "pretty"
	OddOptions   Reason = "options"
	OddBodyMedia Reason = "content_type"
)

// The reasons that are found behind the gate, before anything has been written or stored.
const (
	// OddBody is a body that is too large, cannot be decoded, or needs a warning.
	OddBody Reason = "body"
	// NoAnswer is an object that is missing or cannot be read or encoded, or a list or a watch with an error: upstream
	// finds the words.
	NoAnswer Reason = "error"
	// Compressed is an object that is large enough for compression, of a client that accepts it.
	Compressed Reason = "compressed"
	// OddList is a list whose storage does not give its objects as clients get them.
	OddList Reason = "list"
)

// A condition sends requests of some routes to upstream's handlers.
type condition struct {
	reason Reason
	routes Route
	// why is the sentence in docs/reference/fast-path.md.
	why   string
	holds func(g *Gate, d *Decision, r *http.Request) bool
	// instead is the route for which a request of List is declined no further; Upstream if there is none.
	instead Route
}

// conditions are all conditions of the gate, in the order in which they are tried. Conditions further down rely on those before:
// d.Kind is set behind NoKind, d.Scope behind OddPath, d.Media behind OddMedia, d.Options behind OddOptions.
var conditions = []condition{
	{reason: TurnedOff, routes: all,
		why:   "The operator disabled the fast path.",
		holds: func(g *Gate, _ *Decision, _ *http.Request) bool { return g.config.Off }},
	{reason: NoRoute, routes: Upstream,
		why:   "The verb has no fast path: deletecollection, proxy, HEAD, or a watch by the old path.",
		holds: func(_ *Gate, d *Decision, _ *http.Request) bool { return d.verb == Upstream }},
	{reason: Subresource, routes: all,
		why:   "Subresources, such as status, are upstream's.",
		holds: func(_ *Gate, d *Decision, _ *http.Request) bool { return d.Info.Subresource != "" }},
	{reason: NoKind, routes: all,
		why: "The server does not store the objects of the kind itself: a virtual kind, a custom storage, or a custom resource, " +
			"whose storage is opened while the server runs.",
		holds: func(g *Gate, d *Decision, _ *http.Request) bool { return !g.find(d) }},
	{reason: Unsupported, routes: all,
		why:   "The storage of the kind does not implement the verb.",
		holds: func(_ *Gate, d *Decision, _ *http.Request) bool { return d.Kind.routes&d.Route == 0 }},
	{reason: Audited, routes: all &^ Watch,
		why: "The audit policy records the body of the answer.",
		holds: func(g *Gate, _ *Decision, r *http.Request) bool {
			return g.config.Audited && RecordsAnswers(r.Context())
		}},
	{reason: Deprecated, routes: all, instead: Items,
		why:   "The Go type has a release after which upstream warns of the version.",
		holds: func(_ *Gate, d *Decision, _ *http.Request) bool { return d.Kind.deprecated }},
	{reason: OddPath, routes: all, instead: Items,
		why:   "The path is escaped, or not in the usual form; upstream's routing may treat it differently from the request info.",
		holds: func(_ *Gate, d *Decision, r *http.Request) bool { return r.URL.RawPath != "" || !d.locate() }},
	{reason: Traced, routes: all, instead: Items,
		why:   "Requests are traced, and upstream's handlers record the spans.",
		holds: func(g *Gate, _ *Decision, _ *http.Request) bool { return g.config.Traced }},
	{reason: WebSocket, routes: Watch,
		why:   "The events of the watch go to a WebSocket.",
		holds: func(_ *Gate, _ *Decision, r *http.Request) bool { return wsstream.IsWebSocketRequest(r) }},
	{reason: OddMedia, routes: all, instead: Items,
		why: "The Accept header has a value that upstream must negotiate. For lists as tables, metadata, YAML and protobuf, the fast path " +
			"provides at least the items.",
		holds: func(_ *Gate, d *Decision, r *http.Request) bool { return !d.negotiate(r.Header.Get("Accept")) }},
	{reason: ForPeople, routes: all &^ Watch, instead: Items,
		why:   "The client gets indented JSON: because of the parameter pretty, or because the client is a browser or curl.",
		holds: func(g *Gate, _ *Decision, r *http.Request) bool { return g.config.Pretty != nil && g.config.Pretty(r) }},
	{reason: OddOptions, routes: Get | writes,
		why: "The query has an unsupported option. The fast path supports fieldManager, fieldValidation and force of a create, update or " +
			"patch, each once and valid; those of lists and watches are read behind the gate, by listOptions in package reads.",
		holds: func(_ *Gate, d *Decision, r *http.Request) bool { return !d.readOptions(r.URL.RawQuery) }},
	{reason: OddBodyMedia, routes: writes,
		why:   "The body is not JSON, or the patch is not a JSON patch, a merge patch, or an applied configuration with the required options.",
		holds: func(_ *Gate, d *Decision, r *http.Request) bool { return !d.readContentType(r.Header["Content-Type"]) }},
}

// Decide returns the route of a request, by its path, headers and query alone. The answerer of the route may still decline it.
func (g *Gate) Decide(r *http.Request) *Decision {
	d := &Decision{gate: g}
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		d.Reason = NoRoute
		return d
	}
	d.Info, d.verb = info, routeOf(r.Method, info)
	d.Route = d.verb
	for i := range conditions {
		c := &conditions[i]
		if d.Route != Upstream && c.routes&d.Route == 0 || !c.holds(g, d, r) {
			continue
		}
		if d.Route == List && c.instead != Upstream {
			d.Route, d.Media = c.instead, 0
			return d
		}
		d.Route, d.Reason = Upstream, c.reason
		return d
	}
	return d
}

// routeOf returns the route of a verb, by the method that clients use for it.
func routeOf(method string, info *request.RequestInfo) Route {
	named := info.Name != ""
	switch {
	case method == http.MethodGet && info.Verb == "get" && named:
		return Get
	case method == http.MethodGet && info.Verb == "list":
		return List
	case method == http.MethodGet && info.Verb == "watch":
		return Watch
	case method == http.MethodPost && info.Verb == "create" && !named:
		return Create
	case method == http.MethodPut && info.Verb == "update" && named:
		return Update
	case method == http.MethodPatch && info.Verb == "patch" && named:
		return Patch
	case method == http.MethodDelete && info.Verb == "delete" && named:
		return Delete
	}
	return Upstream
}

// find sets the kind of a request.
func (g *Gate) find(d *Decision) bool {
	d.Kind = g.kinds[schema.GroupVersionResource{Group: d.Info.APIGroup, Version: d.Info.APIVersion, Resource: d.Info.Resource}]
	return d.Kind != nil
}

// locate sets the scope of a request; false for a path that is spelled unusually.
func (d *Decision) locate() bool {
	if d.Route&(List|Watch) == 0 {
		return d.Kind.path.Matches(d.Info)
	}
	d.Scope = d.Kind.path.Scope(d.Info)
	return d.Scope != ""
}

// negotiate sets the media type of the answer. Only gets and watches are answered as protobuf.
func (d *Decision) negotiate(accept string) bool {
	d.Media = negotiate(accept, d.Route == Watch, d.Kind.Protobuf)
	return d.Media == JSON || d.Media == Protobuf && d.Route&(Get|Watch) != 0
}

func (d *Decision) readOptions(query string) (ok bool) {
	if d.Route&(Get|Delete) != 0 {
		return query == ""
	}
	d.Options, ok = optionsOf(query, d.Route == Patch)
	return ok
}

// readContentType sets the media type of the body. A header that is repeated is upstream's.
func (d *Decision) readContentType(header []string) bool {
	switch len(header) {
	case 0:
	case 1:
		d.ContentType = header[0]
	default:
		return false
	}
	if d.Route == Patch {
		return d.Options.suit(types.PatchType(d.ContentType))
	}
	return d.ContentType == "" || d.ContentType == runtime.ContentTypeJSON
}
