package kinds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/annexapi/annex/e2e/cluster/compare"
)

type random struct{ *rand.Rand }

func one[T any](r random, values []T) T { return values[r.IntN(len(values))] }

// generator fills objects by the schemas of an OpenAPI document.
type generator struct {
	random
	schemas map[string]any
	// sparse is the probability by which a field is left out.
	sparse float64
}

// schema returns the schema of a kind.
func (g generator) schema(group, version, kind string) (map[string]any, error) {
	for _, name := range slices.Sorted(maps.Keys(g.schemas)) {
		schema := g.schemas[name].(map[string]any)
		for _, gvk := range list(schema["x-kubernetes-group-version-kind"]) {
			if m := object(gvk); m["group"] == group && m["version"] == version && m["kind"] == kind {
				return schema, nil
			}
		}
	}
	return nil, fmt.Errorf("the OpenAPI document has no schema of %s/%s %s", group, version, kind)
}

func list(v any) []any                { l, _ := v.([]any); return l }
func object(v any) map[string]any     { m, _ := v.(map[string]any); return m }
func text(v any) string               { s, _ := v.(string); return s }
func tail(s, separator string) string { return s[strings.LastIndex(s, separator)+1:] }

// fill adds to an object the fields of a schema that the object lacks.
func (g generator) fill(doc, schema map[string]any, at path, within []string) {
	properties := object(schema["properties"])
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if len(at) == 0 && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name) {
			continue
		}
		old, ok := doc[name]
		if !ok {
			if len(at) > 0 && g.Float64() < g.sparse {
				continue
			}
			if made := g.make(name, object(properties[name]), append(slices.Clone(at), name), within); made != nil {
				doc[name] = made
			}
			continue
		}
		inner, ref := g.resolve(object(properties[name]))
		if ref != "" && slices.Contains(within, ref) || byName[ref] != nil {
			continue
		}
		more := append(slices.Clone(within), ref)
		switch old := old.(type) {
		case map[string]any:
			g.fill(old, inner, append(slices.Clone(at), name), more)
		case []any:
			items, ref := g.resolve(object(inner["items"]))
			for i := range old {
				if m := object(old[i]); m != nil {
					g.fill(m, items, append(slices.Clone(at), name, i), append(more, ref))
				}
			}
		}
	}
}

// resolve returns the schema that another one refers to, with its name.
func (g generator) resolve(schema map[string]any) (map[string]any, string) {
	ref := text(schema["$ref"])
	for _, part := range list(schema["allOf"]) {
		if ref == "" {
			ref = text(object(part)["$ref"])
		}
	}
	if ref == "" {
		return schema, ""
	}
	ref = tail(ref, "/")
	return object(g.schemas[ref]), tail(ref, ".")
}

// byName has values for types whose schemas do not tell their form.
var byName = map[string][]any{
	"Quantity":             {"1", "2Gi", "100m", "3"},
	"IntOrString":          {1.0, "50%", "http"},
	"Time":                 {"2020-01-02T03:04:05Z"},
	"MicroTime":            {"2020-01-02T03:04:05.000006Z"},
	"RawExtension":         {map[string]any{"apiVersion": "example.com/v1", "kind": "A", "a": "b"}},
	"FieldsV1":             {nil},
	"ManagedFieldsEntry":   {nil},
	"JSONSchemaProps":      {nil},
	"LabelSelector":        {map[string]any{"matchLabels": map[string]any{"app": "a"}}},
	"PersistentVolumeSpec": {nil},
	"ObjectMeta":           {map[string]any{"labels": map[string]any{"app": "a"}, "annotations": map[string]any{"a": "b"}}},
}

// byField has values for fields whose names tell their form.
var byField = map[string][]any{
	"namespace": {"default"}, "kind": {"ConfigMap"}, "apiVersion": {"v1", "example.com/v1"}, "apiGroup": {"example.com"},
	"image": {"a", "example.com/a:v1"}, "uid": {"u"}, "protocol": {"TCP", "UDP"}, "path": {"/a", "a"}, "mountPath": {"/a"},
	"ip": {"192.0.2.7"}, "podIP": {"192.0.2.7"}, "hostIP": {"192.0.2.7"}, "cidr": {"192.0.2.0/24"}, "cidrs": {"192.0.2.0/24"},
	"podCIDR": {"192.0.2.0/24"}, "podCIDRs": {"192.0.2.0/24"}, "externalIPs": {"192.0.2.7"}, "loadBalancerIP": {"192.0.2.8"},
	"loadBalancerSourceRanges": {"192.0.2.0/24"}, "url": {"https://localhost/a"}, "accessModes": {"ReadWriteOnce"}, "expression": {"true"},
	"schedule": {"0 0 1 1 *"}, "timeZone": {"Etc/UTC"}, "operator": {"In", "Exists", "Equal", "DoesNotExist"}, "operation": {"*"},
	"resource": {"pods", "limits.cpu"}, "host": {"a.example.com"}, "devicePath": {"/a"}, "driver": {"example.com"},
	"signerName": {"example.com/a"},
	"sysctls":    {map[string]any{"name": "kernel.shm_rmid_forced", "value": "1"}}, "type": {"a", "Opaque"}, "add": {"CHOWN"}, "drop": {"ALL"},
	"externalName": {"a.example.com"}, "nodePort": {nil}, "healthCheckNodePort": {nil}, "clusterIP": {nil}, "clusterIPs": {nil},
	"activeDeadlineSeconds": {100.0}, "medium": {"Memory", ""}, "generateName": {nil},
}

func (g generator) make(name string, schema map[string]any, at path, within []string) any {
	schema, ref := g.resolve(schema)
	if values, ok := byName[ref]; ok {
		return one(g.random, values)
	}
	if ref != "" && slices.Contains(within, ref) || len(at) > 24 {
		return nil
	}
	if all := list(schema["enum"]); len(all) > 0 {
		return one(g.random, all)
	}
	if values := byField[name]; values != nil && schema["type"] != "array" && schema["type"] != "object" && schema["properties"] == nil {
		return one(g.random, values)
	}
	within = append(slices.Clone(within), ref)
	switch schema["type"] {
	case "array":
		item := g.make(name, object(schema["items"]), append(slices.Clone(at), 0), within)
		if item == nil {
			return nil
		}
		return []any{item}
	case "object", nil:
		if values := object(schema["additionalProperties"]); values != nil {
			if _, ref := g.resolve(values); ref == "Quantity" {
				return map[string]any{one(g.random, []string{"cpu", "memory", "storage", "ephemeral-storage"}): one(g.random, byName[ref])}
			}
			if value := g.make("", values, append(slices.Clone(at), "a"), within); value != nil {
				return map[string]any{"a": value}
			}
			return nil
		}
		made := map[string]any{}
		g.fill(made, schema, at, within)
		return made
	case "integer", "number":
		return one(g.random, []any{1.0, 1.0, 2.0, 30.0, 80.0})
	case "boolean":
		return g.IntN(3) > 0
	case "string":
		if schema["format"] == "byte" {
			return "YQ=="
		}
		return one(g.random, scalars[:3])
	}
	return nil
}

// scalars are tried for texts in turn until one is accepted.
var scalars = []any{
	"a", "a", "example.com/a", "a.example.com", "/a", "192.0.2.7", "192.0.2.0/24", "https://localhost/a", "1", "true", "v1", "a=b",
	"2020-01-02T03:04:05Z", "Always", "None", "",
}

var supported = regexp.MustCompile(`supported values: (.*)$`)

// errNoneFound means that every attempt was refused.
var errNoneFound = errors.New("no valid object found")

// repair changes the generated parts of an object until the real server accepts it: what is not in the base goes or gets another
// value, as the causes of the rejection ask for. send makes the request.
func (r random) repair(
	ctx context.Context, doc, base map[string]any, send func(context.Context, map[string]any) (compare.Answer, error),
) (map[string]any, error) {
	tries := map[string]int{}
	var last compare.Answer
	for range 600 {
		var err error
		if last, err = send(ctx, doc); err != nil {
			return nil, err
		}
		if last.Code == http.StatusOK || last.Code == http.StatusCreated {
			return doc, nil
		}
		causes := list(object(last.Body["details"])["causes"])
		if len(causes) == 0 {
			if !r.dropSome(doc, base, text(last.Body["message"])) {
				break
			}
			continue
		}
		for _, cause := range causes {
			c := object(cause)
			r.mend(doc, base, text(c["field"]), text(c["reason"]), text(c["message"]), tries)
		}
	}
	return nil, fmt.Errorf("%w: %d %s", errNoneFound, last.Code, text(last.Body["message"]))
}

// mend changes the value that a cause names.
func (r random) mend(doc, base map[string]any, field, reason, message string, tries map[string]int) {
	at, whole := find(doc, field)
	old, _ := get(doc, at)
	if len(at) == 0 {
		r.dropSome(doc, base, field)
		return
	}
	tries[field]++
	_, isText := old.(string)
	_, isNumber := old.(float64)
	if whole && !given(base, at) && (isText || isNumber) && reason != "FieldValueForbidden" && tries[field] < 16 {
		values := scalars
		if isNumber {
			values = []any{1.0, 2.0, 0.0, 5.0, 10.0, 60.0, 600.0, 100.0, 3600.0, 86400.0}
		}
		if m := supported.FindStringSubmatch(message); m != nil {
			values = nil
			for _, value := range strings.Split(m[1], ", ") {
				values = append(values, strings.Trim(value, `"`))
			}
		}
		set(doc, at, one(r, values))
		return
	}
	for len(at) > 0 && given(base, at) { // the fault is in a value beside it
		at = at[:len(at)-1]
		if r.dropBelow(doc, base, at) {
			return
		}
	}
	if len(at) > 0 {
		drop(doc, at)
	}
}

// given reports whether the base has a value at the path.
func given(base map[string]any, at path) bool {
	_, ok := get(base, at)
	return ok
}

// dropBelow drops a generated value below a path.
func (r random) dropBelow(doc, base map[string]any, at path) bool {
	var all []path
	for _, p := range places(doc) {
		if len(p) > len(at) && slices.Equal(p[:len(at)], at) && !given(base, p) && given(base, p[:len(p)-1]) {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return false
	}
	drop(doc, one(r, all))
	return true
}

// dropSome drops a generated value whose name or text a message has, or else any.
func (r random) dropSome(doc, base map[string]any, message string) bool {
	var named, all []path
	for _, p := range places(doc) {
		if given(base, p) || p[0] == "metadata" && len(p) < 3 {
			continue
		}
		all = append(all, p)
		if name, ok := p[len(p)-1].(string); ok && strings.Contains(message, name) {
			named = append(named, p)
		}
	}
	if len(named) > 0 && r.IntN(4) > 0 {
		all = named
	}
	if len(all) == 0 {
		return false
	}
	drop(doc, one(r, all))
	return true
}
