package typescript

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// groupVersion is a group version with its resources.
type groupVersion struct {
	group, version string
	resources      []*resource
}

func (gv *groupVersion) apiVersion() string { return strings.TrimPrefix(gv.group+"/"+gv.version, "/") }

// resource is a resource of a group version, with the requests that its server answers.
type resource struct {
	name, kind string
	namespaced bool
	schema     string // the name of the schema of its objects
	// everywhere and inside are the verbs for the objects of all namespaces, and for those of one. Both are the same
	// for a resource without namespaces.
	everywhere, inside map[string]bool
	query              *queries
	parts              []part
}

// queries are the facts of the query API.
type queries struct {
	prefix string
	fields []field
	tailed bool
}

type field struct {
	name, kind string // kind is string, number, boolean or time
	sortable   bool
}

// part is a subresource.
type part struct {
	name, use       string // use is part, action, view or stream
	verbs           map[string]bool
	object          string // the schema of a part's objects
	request, answer *schema
	parameters      []parameter
	long            bool
}

// model finds the group versions in a document, sorted.
func (d *document) model() []*groupVersion {
	all := map[string]*groupVersion{}
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		d.read(path, all)
	}
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		d.readQuery(path, all)
	}
	var found []*groupVersion
	for _, gv := range all {
		// Without a schema a resource has no objects, such as the redirect of a proxy.
		gv.resources = slices.DeleteFunc(gv.resources, func(r *resource) bool { return r.schema == "" })
		slices.SortFunc(gv.resources, func(a, b *resource) int { return cmp.Compare(a.name, b.name) })
		if len(gv.resources) > 0 {
			found = append(found, gv)
		}
	}
	slices.SortFunc(found, func(a, b *groupVersion) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.version, b.version))
	})
	return found
}

// place is where a path leads.
type place struct {
	group, version, resource, part string
	namespaced, named              bool
}

// placeOf parses a path of the API of resources.
func placeOf(path string) (p place, ok bool) {
	words := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(words) > 3 && words[0] == "apis":
		p.group, p.version, words = words[1], words[2], words[3:]
	case len(words) > 2 && words[0] == "api":
		p.version, words = words[1], words[2:]
	default:
		return place{}, false
	}
	if words[0] == "watch" {
		return place{}, false // the old form of watches
	}
	if len(words) > 2 && words[0] == "namespaces" && words[1] == "{namespace}" {
		p.namespaced, words = true, words[2:]
	}
	p.resource = words[0]
	if len(words) > 1 {
		if words[1] != "{name}" {
			return place{}, false
		}
		p.named = true
	}
	if len(words) > 2 {
		p.part = strings.Join(words[2:], "/")
	}
	// A path behind a proxy, a namespace's own path, or the root of a group.
	if strings.Contains(p.resource, "{") || strings.Contains(p.part, "{") {
		return place{}, false
	}
	return p, true
}

func (d *document) read(path string, all map[string]*groupVersion) {
	p, ok := placeOf(path)
	if !ok {
		return
	}
	gv := all[p.group+"/"+p.version]
	if gv == nil {
		gv = &groupVersion{group: p.group, version: p.version}
		all[p.group+"/"+p.version] = gv
	}
	i := slices.IndexFunc(gv.resources, func(r *resource) bool { return r.name == p.resource })
	if i < 0 {
		gv.resources = append(gv.resources, &resource{name: p.resource, everywhere: map[string]bool{}, inside: map[string]bool{}})
		i = len(gv.resources) - 1
	}
	r := gv.resources[i]
	r.namespaced = r.namespaced || p.namespaced
	if p.part != "" {
		d.readPart(path, p.part, r)
		return
	}
	verbs := r.inside
	if !p.namespaced {
		verbs = r.everywhere
	}
	for method, verb := range map[string]string{"get": "list", "post": "create", "delete": "deleteMany"} {
		if o := d.operation(path, method); o != nil && !p.named {
			verbs[verb] = true
			if verb == "list" && d.isWatched(path, o) {
				verbs["watch"] = true
			}
			d.noteKind(r, o, verb)
		}
	}
	for method, verb := range map[string]string{"get": "get", "put": "update", "patch": "patch", "delete": "delete"} {
		if o := d.operation(path, method); o != nil && p.named {
			verbs[verb] = true
			d.noteKind(r, o, verb)
		}
	}
}

// isWatched reports whether a list can be watched.
func (d *document) isWatched(path string, o *operation) bool {
	return slices.ContainsFunc(d.parametersOf(path, o), func(p parameter) bool { return p.Name == "watch" })
}

// noteKind finds the kind and the schema of a resource in an operation.
func (d *document) noteKind(r *resource, o *operation, verb string) {
	if o.Kind != nil && r.kind == "" {
		r.kind = o.Kind.Kind
	}
	found, _ := o.answer()
	if r.schema != "" || found == nil || verb == "delete" || verb == "deleteMany" {
		return
	}
	name := found.reference()
	if verb == "list" {
		list := d.Components.Schemas[name]
		if list == nil || list.Properties["items"] == nil || list.Properties["items"].Items == nil {
			return
		}
		name = list.Properties["items"].Items.reference()
	}
	r.schema = name
}

func (d *document) readPart(path, name string, r *resource) {
	p := part{name: name, verbs: map[string]bool{}}
	get, put, patch, post := d.operation(path, "get"), d.operation(path, "put"), d.operation(path, "patch"), d.operation(path, "post")
	switch {
	case put != nil && put.Action != "connect" || patch != nil && patch.Action != "connect":
		p.use = "part"
		for verb, o := range map[string]*operation{"get": get, "update": put, "patch": patch} {
			if o == nil {
				continue
			}
			p.verbs[verb] = true
			if found, _ := o.answer(); found != nil {
				p.object = found.reference()
			}
		}
		if p.object == "" {
			return
		}
	case post != nil && post.Action != "connect" && post.body() != nil:
		p.use, p.request = "action", post.body()
		p.answer, _ = post.answer()
		p.long = post.parameter("wait") != nil
	case get != nil:
		p.parameters = d.parametersOf(path, get)
		var others []string
		p.answer, others = get.answer()
		isText := p.answer == nil || p.answer.reference() == "" && p.answer.Type == "string"
		switch {
		case !isText:
			p.use = "view"
		// Terminals and forwarded ports are no streams of text.
		case post == nil && (get.Action != "connect" || len(others) > 0 || p.answer != nil):
			p.use = "stream"
		default:
			return
		}
	default:
		return
	}
	r.parts = append(r.parts, p)
}

// parametersOf returns the parameters of a query, of the path or of its operation.
func (d *document) parametersOf(path string, o *operation) []parameter {
	all := slices.Concat(decodeParameters(d.Paths[path]["parameters"]), o.Parameters)
	all = slices.DeleteFunc(all, func(p parameter) bool { return p.In != "query" || p.Name == "pretty" })
	slices.SortFunc(all, func(a, b parameter) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b parameter) bool { return a.Name == b.Name })
}

// readQuery adds the facts of a path of the query API to its resource. Its operation has the tag query.
func (d *document) readQuery(path string, all map[string]*groupVersion) {
	o := d.operation(path, "get")
	if o == nil || !slices.Contains(o.Tags, "query") || strings.Contains(path, "{namespace}") {
		return
	}
	words := strings.Split(path, "/")
	if len(words) < 4 {
		return
	}
	group, version, name := words[len(words)-3], words[len(words)-2], words[len(words)-1]
	if group == "core" {
		group = ""
	}
	gv := all[group+"/"+version]
	if gv == nil {
		return
	}
	i := slices.IndexFunc(gv.resources, func(r *resource) bool { return r.name == name })
	if i < 0 {
		return
	}
	q := &queries{prefix: strings.Join(words[:len(words)-3], "/"), tailed: o.parameter("watch") != nil}
	sortable := []string{}
	if by := o.parameter("sortBy"); by != nil {
		sortable = literals(by.Schema.Enum)
	}
	for _, p := range o.Parameters {
		name, isField := strings.CutSuffix(p.Name, "[ne]")
		if !isField {
			continue
		}
		kind := p.Schema.Type
		if p.Schema.Format == "date-time" {
			kind = "time"
		}
		q.fields = append(q.fields, field{name, kind, slices.Contains(sortable, name)})
	}
	gv.resources[i].query = q
}
