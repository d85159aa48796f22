package sequences

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// step is one request. In its path, query and body, values from earlier responses of the server stand in braces, see
// (*server).expand.
type step struct {
	method, path, query string
	contentType, accept string
	body                string
	// watch makes the response a stream, and ends it: the name of the object whose creation is the last event, or
	// initial for the bookmark after the initial events, or untilItEnds.
	watch string
}

const (
	initial     = "{initial}"
	untilItEnds = "{end}"
)

func (s step) String() string {
	text := s.method + " " + s.path
	if s.query != "" {
		text += "?" + s.query
	}
	if s.accept != "" {
		text += " accept " + s.accept
	}
	if s.body != "" {
		text += fmt.Sprintf(" %s %s", s.contentType, s.body)
	}
	return text
}

// kind is a kind that sequences use.
type kind struct {
	resource, apiVersion, kind, path string
	object                           func(random) map[string]any
}

var kinds = []kind{
	{"configmaps", "v1", "ConfigMap", "/api/v1/namespaces/{ns}/configmaps", random.configMap},
	{"secrets", "v1", "Secret", "/api/v1/namespaces/{ns}/secrets", random.secret},
	{"leases", "coordination.k8s.io/v1", "Lease", "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", random.lease},
	{"roles", "rbac.authorization.k8s.io/v1", "Role", "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles", random.role},
	{"widgets", "sequences.example.com/v1", "Widget", "/apis/sequences.example.com/v1/namespaces/{ns}/widgets", random.widget},
}

var older = kind{
	"widgets",
	"sequences.example.com/v1beta1",
	"Widget",
	"/apis/sequences.example.com/v1beta1/namespaces/{ns}/widgets",
	random.widget,
}

const (
	asJSON      = "application/json"
	jsonPatch   = "application/json-patch+json"
	merge       = "application/merge-patch+json"
	strategic   = "application/strategic-merge-patch+json"
	apply       = "application/apply-patch+yaml"
	asTable     = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata  = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	asMetadatas = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

type random struct{ *rand.Rand }

func one[T any](r random, values ...T) T { return values[r.IntN(len(values))] }

func (r random) chance(percent int) bool { return r.IntN(100) < percent }

type object = map[string]any

func (r random) configMap() object {
	o := object{}
	if r.chance(80) {
		o["data"] = r.some(object{"a": one(r, "1", "2", ""), "b": one(r, "x", "y"), "c.d-e_f": "z"})
	}
	if r.chance(15) {
		o["binaryData"] = object{one(r, "a", "bin"): one(r, "AAEC", "!", "eA==")}
	}
	if r.chance(10) {
		o["immutable"] = r.chance(60)
	}
	if r.chance(5) {
		o["data"] = object{one(r, "a b", "..", "..a", strings.Repeat("k", 254)): "v"}
	}
	return o
}

func (r random) secret() object {
	o := object{}
	if r.chance(60) {
		o["type"] = one(r, "Opaque", "example.com/own", "kubernetes.io/basic-auth", "kubernetes.io/tls", "kubernetes.io/dockerconfigjson", "")
	}
	if r.chance(70) {
		o["data"] = r.some(object{"username": one(r, "YQ==", "Yg=="), "password": "cA==", "other": one(r, "AA==", "eHg=")})
	}
	if r.chance(30) {
		o["stringData"] = r.some(object{"username": "me", "other": one(r, "1", "2")})
	}
	if r.chance(10) {
		o["immutable"] = r.chance(70)
	}
	return o
}

func (r random) lease() object {
	return object{"spec": r.some(object{
		"holderIdentity":       one(r, "me", "you", ""),
		"leaseDurationSeconds": one(r, 15, 30, 0, -1),
		"leaseTransitions":     one(r, 0, 1, -1),
		"acquireTime":          one(r, "2026-01-02T03:04:05.000006Z", "2026-01-02T03:04:05Z"),
		"renewTime":            one(r, "2026-01-02T03:04:05.000007Z", "2026-01-02T03:04:05.123456789Z"),
	})}
}

func (r random) role() object {
	rules := []any{}
	for range r.IntN(3) {
		rules = append(rules, r.mostly(object{
			"apiGroups": []any{one(r, "", "apps", "*")}, "resources": []any{one(r, "pods", "pods/log", "*")},
			"verbs": []any{one(r, "get", "*", "list")}, "resourceNames": []any{"n"},
		}))
	}
	return object{"rules": rules}
}

func (r random) widget() object {
	spec := r.some(object{
		"size":     one[any](r, 0, 1, 3, 7, 100, -1, "3", 1.5),
		"replicas": one(r, 0, 1, 5),
		"min":      one(r, 1, 5),
		"max":      one(r, 3, 9),
		"owner":    one(r, "me", "you", "much-too-long"),
		"code":     one[any](r, "abc", "A1", nil),
		"since":    one(r, "2026-01-02T03:04:05Z", "today"),
		"port": one[any](
			r,
			80,
			"http",
			true,
		),
		"tags":  one(r, []any{"a"}, []any{"a", "b"}, []any{"a", "a"}, []any{"a", "b", "c", "d", "e"}, []any{}),
		"parts": one(r, []any{r.part()}, []any{r.part(), r.part()}, []any{}),
		"limits": one(
			r,
			object{"cpu": "1"},
			object{"cpu": "2", "memory": "1Gi"},
			object{},
		),
		"free":  one(r, object{"x": object{"y": []any{1, "z"}}}, object{}),
		"whole": one(r, object{"a": "1"}, object{"b": "2"}, object{"a": "1", "b": "2"}),
	})
	if r.chance(60) {
		for _, name := range slices.Sorted(maps.Keys(spec)) {
			if !slices.Contains([]string{"replicas", "limits", "free", "whole"}, name) && r.chance(70) {
				delete(spec, name)
			}
		}
	}
	spec["color"] = one(r, "red", "green", "blue")
	if r.chance(6) {
		spec["color"] = one[any](r, "black", 1, nil)
	}
	if r.chance(8) {
		spec["unknown"] = one[any](r, "x", 1, object{"y": 1})
	}
	o := object{"spec": spec}
	if r.chance(15) {
		o["status"] = r.status()
	}
	return o
}

func (r random) part() object {
	return r.mostly(object{"name": one(r, "p", "q"), "count": one(r, 1, 2, 6), "protocol": one(r, "TCP", "UDP")})
}

func (r random) status() object {
	return r.some(object{"phase": one(r, "New", "Ready", "Ready", "Lost"), "replicas": one(r, 1, 2), "selector": "app=x", "unknown": 1})
}

// some keeps some of the entries, and mostly almost all.
func (r random) some(o object) object   { return r.keep(o, 50) }
func (r random) mostly(o object) object { return r.keep(o, 90) }

func (r random) keep(o object, percent int) object {
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if !r.chance(percent) {
			delete(o, key)
		}
	}
	return o
}

// full returns an object with its metadata.
func (r random) full(k kind, name string, focus []kind) object {
	o := k.object(r)
	metadata := object{"name": name}
	if r.chance(60) {
		metadata["labels"] = r.some(object{"app": one(r, "x", "y"), "tier": one(r, "1", "2"), "example.com/long": "l"})
	}
	if r.chance(25) {
		metadata["annotations"] = r.some(object{"note": one(r, "n", "m"), "example.com/a": "b"})
	}
	if r.chance(12) {
		metadata["finalizers"] = []any{one(r, "example.com/hold", "example.com/hold", "example.com/other", "short", "a/b/c")}
	}
	if r.chance(18) {
		owners := []any{r.owner(focus)}
		if r.chance(20) {
			owners = []any{r.owner(focus), r.owner(focus)}
		}
		for _, owner := range owners {
			if owner := owner.(object); owner["kind"] == k.kind && owner["name"] == name {
				delete(owner, "blockOwnerDeletion") // a kube-apiserver never ends the deletion of an object that waits for itself
			}
		}
		metadata["ownerReferences"] = owners
	}
	if r.chance(4) {
		metadata[one(r, "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "uid", "selfLink")] = one[any](
			r,
			5,
			"2020-01-01T00:00:00Z",
			"u",
		)
	}
	o["apiVersion"], o["kind"], o["metadata"] = k.apiVersion, k.kind, metadata
	return o
}

func (r random) owner(focus []kind) object {
	k := one(r, focus...)
	name := r.name()
	o := object{"apiVersion": k.apiVersion, "kind": k.kind, "name": name, "uid": "{uid:" + k.resource + "/" + name + "}"}
	if r.chance(50) {
		o["blockOwnerDeletion"] = r.chance(80)
	}
	if r.chance(20) {
		o["controller"] = r.chance(80)
	}
	return o
}

func (r random) name() string { return one(r, "a", "a", "b", "b", "c", "d") }

func text(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // of objects, lists and scalars
	}
	return string(raw)
}

// sequence returns the steps of one sequence. Its random numbers alone determine it.
func (r random) sequence() []step {
	focus := slices.Clone(kinds)
	r.Shuffle(len(focus), func(i, j int) { focus[i], focus[j] = focus[j], focus[i] })
	focus = focus[:1+r.IntN(3)]
	if r.chance(40) && !slices.ContainsFunc(focus, func(k kind) bool { return k.resource == "widgets" }) {
		focus = append(focus, kinds[4])
	}
	var steps []step
	for _, k := range focus {
		steps = append(steps, step{method: "GET", path: k.path})
	}
	for i := range 12 + r.IntN(20) {
		steps = append(steps, r.step(i, focus))
	}
	for _, k := range focus {
		last := object{} // is valid of all other kinds, because the watch ends with it
		if k.resource == "widgets" {
			last = object{"spec": object{"color": "red"}}
		}
		last["apiVersion"], last["kind"], last["metadata"] = k.apiVersion, k.kind, object{"name": "z", "labels": object{"app": "x"}}
		steps = append(
			steps,
			step{method: "POST", path: k.path, contentType: asJSON, body: text(last)},
			step{
				method: "GET",
				path:   k.path,
				query:  "watch=1&resourceVersion={first:" + k.resource + "}" + one(r, "", "", "&labelSelector=app%3Dx"),
				accept: one(r, "", "", asTable, asMetadata),
				watch:  "z",
			},
			step{method: "GET", path: k.path},
		)
	}
	return steps
}

// weighted are the ways of making a step, each as frequent as its weight.
var weighted = []struct {
	weight int
	make   func(r random, i int, k kind, focus []kind) step
}{
	{20, random.create}, {8, random.read}, {12, random.list}, {12, random.update}, {8, random.jsonPatch}, {14, random.mergePatch},
	{14, random.apply}, {12, random.delete}, {3, random.deleteCollection}, {6, random.subresource}, {8, random.wrong}, {3, random.namespace},
	{3, random.watchList},
}

func (r random) step(i int, focus []kind) step {
	k := one(r, focus...)
	if k.resource == "widgets" && r.chance(15) {
		k = older
	}
	total := 0
	for _, w := range weighted {
		total += w.weight
	}
	n := r.IntN(total)
	for _, w := range weighted {
		if n < w.weight {
			return w.make(r, i, k, focus)
		}
		n -= w.weight
	}
	panic("the weights are larger than their sum")
}

// writing returns the query parameters of writes.
func (r random) writing() string {
	var query []string
	if r.chance(50) {
		query = append(query, "fieldManager="+one(r, "one", "two", "kubectl-edit", strings.Repeat("m", 129)))
	}
	if r.chance(30) {
		query = append(query, "fieldValidation="+one(r, "Strict", "Strict", "Warn", "Ignore", "Lax"))
	}
	if r.chance(12) {
		query = append(query, "dryRun="+one(r, "All", "All", "All", "Some"))
	}
	return strings.Join(query, "&")
}

func (r random) create(i int, k kind, focus []kind) step {
	o := r.full(k, r.name(), focus)
	if metadata := o["metadata"].(object); r.chance(8) {
		delete(metadata, "name")
		metadata["generateName"] = fmt.Sprintf("gen%d-", i)
	}
	s := step{method: "POST", path: k.path, query: r.writing(), contentType: asJSON, body: text(o)}
	if r.chance(6) {
		s.accept = one(r, asTable, asMetadata)
	}
	return s
}

func (r random) read(_ int, k kind, _ []kind) step {
	return step{method: "GET", path: k.path + "/" + r.name(), accept: one(r, "", "", asTable, asMetadata),
		query: one(r, "", "", "", "resourceVersion=0", "resourceVersion={rv:"+k.resource+"/a}", "pretty=true", "resourceVersion=x")}
}

func (r random) list(_ int, k kind, _ []kind) step {
	s := step{method: "GET", path: k.path, accept: one(r, "", "", "", asTable, asMetadatas)}
	var query []string
	if r.chance(40) {
		query = append(
			query,
			"labelSelector="+one(
				r,
				"app%3Dx",
				"app%3Dy,tier!%3D1",
				"app+in+(x,y)",
				"!app",
				"tier+notin+(1)",
				"app%3D%3Dx,app",
				"app+in+x",
				"a%20b",
				"app%3D-x",
				"app%3E1",
			),
		)
	}
	if r.chance(30) {
		query = append(
			query,
			"fieldSelector="+one(
				r,
				"metadata.name%3Da",
				"metadata.name!%3Da",
				"metadata.namespace%3D{ns}",
				"spec.color%3Dred",
				"spec.size%3D3",
				"type%3DOpaque",
				"immutable%3Dtrue",
				"spec.nothing%3D1",
				"metadata.name",
				"spec.color%3Dred,spec.size!%3D3",
			),
		)
	}
	if r.chance(35) {
		query = append(query, "limit="+one(r, "1", "2", "2", "0", "-1", "x"))
		if r.chance(40) {
			query = append(query, "continue="+one(r, "{continue:"+k.resource+"}", "{continue:"+k.resource+"}", "garbage"))
		}
	}
	if r.chance(15) {
		query = append(query, one(
			r,
			"resourceVersion=0",
			"resourceVersion={rv:"+k.resource+"/a}&resourceVersionMatch=NotOlderThan",
			"resourceVersion={rv:"+k.resource+"/a}&resourceVersionMatch=Exact",
			"resourceVersionMatch=Exact",
			"resourceVersion=9999999999999999&timeoutSeconds=1",
			"resourceVersion=-1",
			"resourceVersion={list:"+k.resource+"}&resourceVersionMatch=Exact",
			"resourceVersionMatch=Latest&resourceVersion=1",
		))
	}
	s.query = strings.Join(query, "&")
	return s
}

func (r random) update(_ int, k kind, focus []kind) step {
	name := r.name()
	o := r.full(k, name, focus)
	metadata := o["metadata"].(object)
	switch r.IntN(10) {
	case 0, 1, 2:
		metadata["resourceVersion"] = "{rv:" + k.resource + "/" + name + "}"
	case 3:
		metadata["resourceVersion"] = "{old:" + k.resource + "/" + name + "}"
	case 4:
		metadata["uid"] = "{uid:" + k.resource + "/" + r.name() + "}"
	case 5:
		metadata["resourceVersion"] = one(r, "x", "0", "")
	case 6:
		metadata["name"] = r.name()
	}
	return step{method: "PUT", path: k.path + "/" + name, query: r.writing(), contentType: asJSON, body: text(o)}
}

func (r random) jsonPatch(_ int, k kind, focus []kind) step {
	o := r.full(k, "a", focus)
	delete(o, "apiVersion")
	delete(o, "kind")
	var patch []any
	for range 1 + r.IntN(2) {
		field := one(r, slices.Sorted(maps.Keys(o))...)
		at, value := "/"+field, o[field]
		if inner, ok := value.(object); ok && len(inner) > 0 {
			name := one(r, slices.Sorted(maps.Keys(inner))...)
			at, value = at+"/"+name, inner[name]
		}
		if at == "/metadata/name" {
			at, value = "/metadata/labels", object{"app": one(r, "x", "y")}
		}
		patch = append(patch, one(r,
			object{"op": "add", "path": at, "value": value}, object{"op": "add", "path": at, "value": value},
			object{"op": "replace", "path": at, "value": value}, object{"op": "remove", "path": at},
			object{"op": "test", "path": at, "value": value}, object{"op": "copy", "from": at, "path": "/metadata/annotations"},
			object{"op": "move", "from": at, "path": "/spec"}, object{"op": "remove", "path": "/metadata/finalizers"},
			object{"op": one(r, "replce", "add"), "path": one(r, at, "nothing", ""), "value": value}))
	}
	return step{method: "PATCH", path: k.path + "/" + r.name(), query: r.writing(), contentType: jsonPatch, body: text(patch)}
}

func (r random) mergePatch(_ int, k kind, focus []kind) step {
	o := r.full(k, "a", focus)
	metadata := o["metadata"].(object)
	if r.chance(80) {
		delete(metadata, "name")
	}
	if r.chance(50) {
		delete(o, "apiVersion")
		delete(o, "kind")
	}
	if r.chance(25) {
		metadata["finalizers"] = nil
	}
	if r.chance(10) {
		metadata["resourceVersion"] = one(r, "{rv:"+k.resource+"/a}", "{old:"+k.resource+"/a}")
	}
	if r.chance(15) {
		metadata["labels"] = one(
			r,
			object{"app": nil},
			object{"$patch": "replace", "new": "1"},
			object{"app": 1},
			object{"bad value": "x", "app": "not valid!"},
		)
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if name != "metadata" && r.chance(25) {
			delete(o, name)
		}
	}
	contentType := one(r, merge, merge, strategic)
	if contentType == strategic && r.chance(20) {
		metadata["$deleteFromPrimitiveList/finalizers"] = []any{"example.com/hold"}
	}
	return step{method: "PATCH", path: k.path + "/" + r.name(), query: r.writing(), contentType: contentType, body: text(o)}
}

func (r random) apply(_ int, k kind, focus []kind) step {
	name := r.name()
	o := r.full(k, name, focus)
	query := []string{"fieldManager=" + one(r, "one", "two", "three")}
	if r.chance(5) {
		query[0] = "fieldManager="
	}
	if r.chance(35) {
		query = append(query, "force="+one(r, "true", "true", "false", "maybe"))
	}
	if r.chance(10) {
		query = append(query, "dryRun=All")
	}
	if r.chance(20) {
		query = append(query, "fieldValidation="+one(r, "Strict", "Warn", "Ignore"))
	}
	metadata := o["metadata"].(object)
	switch r.IntN(20) {
	case 0:
		metadata["managedFields"] = []any{}
	case 1:
		metadata["resourceVersion"] = "{rv:" + k.resource + "/" + name + "}"
	case 2:
		delete(o, "apiVersion")
	case 3:
		metadata["uid"] = "{uid:" + k.resource + "/" + name + "}"
	case 4:
		metadata["name"] = "other"
	}
	return step{method: "PATCH", path: k.path + "/" + name, query: strings.Join(query, "&"), contentType: apply, body: text(o)}
}

func (r random) deletion(k kind, name string) (query, body string) {
	var parameters []string
	if r.chance(30) {
		parameters = append(parameters, "propagationPolicy="+one(r, "Foreground", "Background", "Orphan", "Sideways"))
	}
	if r.chance(8) {
		parameters = append(parameters, "gracePeriodSeconds="+one(r, "0", "5", "-1"))
	}
	if r.chance(8) {
		parameters = append(parameters, "dryRun=All")
	}
	query = strings.Join(parameters, "&")
	if r.chance(45) {
		options := object{"apiVersion": "v1", "kind": "DeleteOptions"}
		if r.chance(40) {
			options["preconditions"] = r.some(
				object{
					"uid":             one(r, "{uid:"+k.resource+"/"+name+"}", "wrong"),
					"resourceVersion": one(r, "{rv:"+k.resource+"/"+name+"}", "{old:"+k.resource+"/"+name+"}"),
				},
			)
		}
		if r.chance(40) {
			options["propagationPolicy"] = one(r, "Foreground", "Background", "Orphan", "Sideways")
		}
		if r.chance(10) {
			options["orphanDependents"] = r.chance(50)
		}
		if r.chance(5) {
			options["unknown"] = true
		}
		if r.chance(5) {
			options["kind"] = one(r, "Options", "ConfigMap", "")
		}
		if r.chance(10) {
			options["dryRun"] = []any{one(r, "All", "Some")}
		}
		body = text(options)
	}
	return query, body
}

func (r random) delete(_ int, k kind, _ []kind) step {
	name := r.name()
	query, body := r.deletion(k, name)
	return step{method: "DELETE", path: k.path + "/" + name, query: query, contentType: asJSON, body: body}
}

func (r random) deleteCollection(_ int, k kind, _ []kind) step {
	query, body := r.deletion(k, "a")
	if r.chance(70) {
		if query != "" {
			query += "&"
		}
		query += one(r, "labelSelector=app%3Dx", "labelSelector=!app", "fieldSelector=metadata.name%3Da", "labelSelector=a%20b", "limit=x")
	}
	return step{method: "DELETE", path: k.path, query: query, contentType: asJSON, body: body}
}

func (r random) subresource(i int, k kind, focus []kind) step {
	name := r.name()
	if r.chance(15) || k.resource != "widgets" && r.chance(50) {
		return step{
			method:      one(r, "GET", "PUT"),
			path:        k.path + "/" + name + "/" + one(r, "status", "scale", "nothing"),
			contentType: asJSON,
			body:        text(r.full(k, name, focus)),
		}
	}
	if k.resource != "widgets" {
		return r.read(i, k, focus)
	}
	o := r.full(k, name, focus)
	o["status"] = r.status()
	scale := object{
		"apiVersion": one(r, "autoscaling/v1", "autoscaling/v1", "autoscaling/v2", ""),
		"kind":       "Scale",
		"metadata":   r.mostly(object{"name": name, "resourceVersion": one(r, "", "{rv:widgets/"+name+"}", "{old:widgets/"+name+"}")}),
		"spec":       one(r, object{"replicas": one[any](r, 0, 3, -1, "2")}, object{}),
	}
	at, query := k.path+"/"+name, r.writing()
	return one(
		r,
		step{method: "PUT", path: at + "/status", query: query, contentType: asJSON, body: text(o)},
		step{
			method:      "PATCH",
			path:        at + "/status",
			query:       query,
			contentType: merge,
			body:        text(object{"metadata": object{"labels": object{"app": "y"}}, "spec": object{"color": "blue"}, "status": o["status"]}),
		},
		step{method: "PATCH", path: at + "/status", query: "fieldManager=one&force=true", contentType: apply, body: text(o)},
		step{method: "GET", path: at + "/status", accept: one(r, "", asTable, asMetadata)},
		step{method: "GET", path: at + "/scale", accept: one(r, "", "", asTable)},
		step{method: "PUT", path: at + "/scale", query: query, contentType: asJSON, body: text(scale)},
		step{
			method:      "PATCH",
			path:        at + "/scale",
			query:       query,
			contentType: one(r, merge, strategic, merge),
			body:        text(object{"spec": scale["spec"]}),
		},
		step{method: "PATCH", path: at + "/scale", query: "fieldManager=one", contentType: apply, body: text(scale)},
	)
}

// wrong returns an invalid request.
func (r random) wrong(_ int, k kind, focus []kind) step {
	name := r.name()
	at, o := k.path+"/"+name, text(r.full(k, name, focus))
	version, _, _ := strings.Cut(k.path, "/namespaces")
	return one(
		r,
		step{
			method:      "POST",
			path:        k.path,
			contentType: one(r, "text/plain", "application/yaml", "application/xml", "application/json;charset=utf-8", merge),
			body:        o,
		},
		step{
			method:      "POST",
			path:        k.path,
			contentType: asJSON,
			body:        one(r, "", "{", "[]", "null", "{}", `"x"`, `{"kind":"`+k.kind+`"}`, o[:len(o)/2], o+"x"),
		},
		step{
			method:      "POST",
			path:        k.path,
			contentType: asJSON,
			body:        strings.Replace(o, k.apiVersion, one(r, "v1", "v9", "apps/v1", "a/b/c", ""), 1),
		},
		step{
			method:      "POST",
			path:        k.path,
			contentType: asJSON,
			body:        strings.Replace(o, `"`+k.kind+`"`, one(r, `"Pod"`, `"Nothing"`, `1`, `""`), 1),
		},
		step{
			method:      "POST",
			path:        k.path,
			contentType: asJSON,
			query:       "fieldValidation=" + one(r, "Strict", "Warn", "Ignore"),
			body:        `{"extra":{},"metadata":{"extra":1,"name":"d","name":"c"},` + o[1:],
		},
		step{
			method:      "POST",
			path:        k.path,
			contentType: asJSON,
			body: strings.Replace(
				o,
				`"name":"`+name+`"`,
				`"name":`+one(r, `"A"`, `""`, `"a/b"`, `"a b"`, `1`, `"`+strings.Repeat("n", 254)+`"`, `"a","namespace":"other"`, `"a..b"`),
				1,
			),
		},
		step{method: "PUT", path: at, contentType: one(r, asJSON, "text/plain"), body: one(r, "", "{}", "[]", o[:len(o)/2])},
		step{
			method:      "PATCH",
			path:        at,
			contentType: one(r, asJSON, "", "application/apply-patch+cbor", jsonPatch, merge, strategic, apply),
			body:        one(r, "", "{}", "[]", "null", "x: [", `{"metadata":1}`, `{"metadata":{"labels":[1]}}`),
		},
		step{method: one(r, "GET", "DELETE", "PUT"), path: strings.Replace(at, "/v1", one(r, "/v7", "/v1alpha1"), 1), contentType: asJSON},
		step{
			method:      one(r, "GET", "POST", "PATCH", "DELETE"),
			path:        version + "/namespaces/{ns}/nothings" + one(r, "", "/a"),
			contentType: asJSON,
			body:        o,
		},
		step{method: one(r, "POST", "HEAD", "OPTIONS"), path: at, contentType: asJSON, body: o},
		step{method: one(r, "PUT", "PATCH"), path: k.path, contentType: asJSON, body: o},
		step{
			method: "GET",
			path:   k.path,
			accept: one(
				r,
				"text/plain",
				"application/xml",
				"application/json;as=Table;v=v9;g=meta.k8s.io",
				"application/json;as=Chair;v=v1;g=meta.k8s.io",
				"image/png, application/json",
				"*/*",
				"application/yaml",
			),
		},
		step{
			method: "GET",
			path:   k.path,
			query: one(
				r,
				"timeoutSeconds=x",
				"watch=1&resourceVersion=x",
				"watch=1&resourceVersion=1&resourceVersionMatch=Exact",
				"watch=1&sendInitialEvents=true",
				"watch=1&labelSelector=a%20b",
				"sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
				"unknown=1",
				"watch=1&continue=x",
			),
		},
		step{method: "GET", path: k.path, query: "watch=maybe&limit=1&timeoutSeconds=1", watch: untilItEnds},
		step{
			method:      "POST",
			path:        strings.Replace(k.path, "{ns}", "{ns}-missing", 1),
			contentType: asJSON,
			query:       one(r, "", "dryRun=All"),
			body:        o,
		},
		step{method: "GET", path: strings.Replace(k.path, "{ns}", "{ns}-missing", 1) + one(r, "", "/a")},
		step{method: "GET", path: version + "/" + k.resource + "/a"},
		step{method: "POST", path: version + "/" + k.resource, contentType: asJSON, body: o},
		step{
			method: "GET",
			path: one(
				r,
				"/apis/nothing.example.com/v1",
				"/apis/nothing.example.com",
				"/api/v2",
				"/apis/sequences.example.com",
				"/apis/sequences.example.com/v1",
				"/apis/sequences.example.com/v1/",
				"/nothing",
			),
		},
	)
}

// namespace works on a second namespace of the sequence.
func (r random) namespace(_ int, _ kind, _ []kind) step {
	const all, at = "/api/v1/namespaces", "/api/v1/namespaces/{ns}-a"
	o := object{
		"apiVersion": "v1",
		"kind":       "Namespace",
		"metadata":   object{"name": "{ns}-a", "labels": r.some(object{"app": "x", "sequence": "{ns}"})},
	}
	if r.chance(20) {
		o["spec"] = object{"finalizers": []any{one(r, "kubernetes", "example.com/own")}}
	}
	inside := object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "in"}}
	create := step{method: "POST", path: all, query: r.writing(), contentType: asJSON, body: text(o)}
	return one(
		r,
		create,
		create,
		create,
		step{method: "GET", path: at, accept: one(r, "", asTable, asMetadata)},
		step{
			method: "GET",
			path:   all,
			query:  "labelSelector=sequence%3D{ns}" + one(r, "", "&fieldSelector=status.phase%3DActive", "&fieldSelector=metadata.name%3Dx"),
			accept: one(r, "", asTable),
		},
		step{method: "PUT", path: at, query: r.writing(), contentType: asJSON, body: text(o)},
		step{
			method:      "PATCH",
			path:        at,
			query:       r.writing(),
			contentType: one(r, merge, strategic),
			body:        `{"metadata":{"labels":{"app":"` + one(r, "x", "y", "!") + `"}}}`,
		},
		step{method: "PATCH", path: at, query: "fieldManager=one&force=true", contentType: apply, body: text(o)},
		step{
			method:      "PUT",
			path:        at + "/status",
			contentType: asJSON,
			body: text(
				object{
					"apiVersion": "v1",
					"kind":       "Namespace",
					"metadata":   object{"name": "{ns}-a"},
					"status":     object{"phase": one(r, "Active", "Terminating", "x")},
				},
			),
		},
		step{method: "PUT", path: at + "/finalize", contentType: asJSON, body: text(o)},
		step{method: "POST", path: at + "/configmaps", contentType: asJSON, body: text(inside)},
		step{method: "DELETE", path: at, query: one(r, "", "propagationPolicy=Foreground", "propagationPolicy=Orphan", "dryRun=All")},
		step{method: "DELETE", path: all, query: "labelSelector=sequence%3D{ns}"},
	)
}

// watchList reads all objects by a watch.
func (r random) watchList(_ int, k kind, _ []kind) step {
	return step{
		method: "GET",
		path:   k.path,
		accept: one(r, "", "", asTable, asMetadata),
		watch:  initial,
		query: "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true" + one(
			r,
			"",
			"&labelSelector=app%3Dx",
			"&fieldSelector=metadata.name%3Da",
			"&resourceVersion={rv:"+k.resource+"/a}",
		),
	}
}
