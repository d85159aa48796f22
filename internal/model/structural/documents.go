package structural

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/base/yamlsize"
)

// Decode completes an object decoded from a client's JSON or YAML: it fills in defaults for the fields that the
// client left out. If decoding failed, decoded is nil and failure is the error. If the reason is a value that neither
// the Go type nor the rules accept, Decode leaves the error to validation, which names the field: it returns an
// object without such values, in into if that has the right type. The object must then be validated together with the
// request body.
func (v *Version) Decode(data []byte, decoded, into runtime.Object, failure error) (runtime.Object, error) {
	// Go decodes a null in a map to a zero; a CRD server drops it.
	if failure == nil && !v.defaults && !bytes.Contains(data, []byte("null")) {
		return decoded, nil
	}
	doc, err := parse(data)
	if err != nil { // neither JSON nor YAML
		if failure == nil {
			v.Fill(decoded, nil)
		}
		return decoded, failure
	}
	metadata, named := doc["metadata"]
	delete(doc, "metadata")
	if err := v.complete(doc, false); err != nil {
		if failure == nil {
			failure = err
		}
		return decoded, failure
	}
	if failure != nil && v.fits(doc) {
		return decoded, failure
	}
	if named {
		doc["metadata"] = metadata
	}
	object, err := v.object(doc)
	if err != nil {
		return decoded, failure
	}
	v.Fill(object, doc)
	target := decoded
	if target == nil && into != nil && reflect.TypeOf(into) == reflect.PointerTo(v.goType) {
		target = into
	}
	if target == nil {
		return object, nil
	}
	reflect.ValueOf(target).Elem().Set(reflect.ValueOf(object).Elem())
	return target, nil
}

// Fitting returns a client's document as JSON without the values that the Go type cannot hold, but with unknown
// fields. It returns nil if data is neither JSON nor YAML.
func (v *Version) Fitting(data []byte) []byte {
	doc, err := parse(data)
	if err != nil {
		return nil
	}
	fits, err := json.Marshal(v.fields.fitting(doc, v.goType, true))
	if err != nil {
		return nil
	}
	return fits
}

// largest is the maximum size of YAML after alias expansion, in bytes. It equals the limit of request bodies.
const largest = 3 << 20

func parse(data []byte) (map[string]any, error) {
	if trimmed := bytes.TrimSpace(data); len(trimmed) == 0 || trimmed[0] != '{' {
		err := yamlsize.Check(data, largest)
		if err != nil {
			return nil, err
		}
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return nil, err
		}
	}
	doc := map[string]any{}
	if err := utiljson.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// complete prunes a document and fills in its defaults. If nulls is set, nulls are kept, as in an applied
// configuration.
func (v *Version) complete(doc map[string]any, nulls bool) error {
	if err := v.prune(doc, nulls); err != nil {
		return err
	}
	defaulting.Default(doc, v.schema)
	return nil
}

// object decodes a document into an object, without the values that do not fit the Go type.
func (v *Version) object(doc map[string]any) (runtime.Object, error) {
	fresh := reflect.New(v.goType).Interface().(runtime.Object)
	return fresh, v.into(v.fields.fitting(doc, v.goType, false), fresh)
}

func (v *Version) into(doc any, obj runtime.Object) error {
	data, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, obj); err != nil {
		return fmt.Errorf("%s: %w", v.kind.Kind, err)
	}
	return nil
}

// Document returns the document that a request is about to write: the client's document, with the changes that were
// made to obj since it was decoded. old is the document to be replaced, or nil. If the context holds no request body,
// or a body that does not determine which fields are present, the document is derived from obj alone, as in Read.
func (v *Version) Document(ctx context.Context, obj runtime.Object, old map[string]any) (map[string]any, error) {
	raw := rawBodyIn(ctx)
	if raw == nil {
		return v.Read(obj)
	}
	doc, err := v.patched(raw, old)
	if err != nil {
		return v.read(obj, raw, old)
	}
	delete(doc, "metadata")
	if err := v.complete(doc, raw.applies()); err != nil {
		return nil, err
	}
	now, err := v.plain(obj)
	if err != nil {
		return nil, err
	}
	metadata := now["metadata"]
	decoded := reflect.New(v.goType).Interface().(runtime.Object)
	if v.into(doc, decoded) != nil {
		raw.unfit = true
		// obj lacks the values that do not fit its type; validation rejects them in doc.
		return v.named(doc, metadata), nil
	}
	v.Fill(decoded, doc)
	then, err := v.plain(decoded)
	if err != nil {
		return nil, err
	}
	for _, part := range []map[string]any{doc, then, now} {
		delete(part, "metadata")
		delete(part, "apiVersion")
		delete(part, "kind")
	}
	overlaid, _ := overlay(doc, then, now).(map[string]any)
	if old != nil {
		// Clients send back objects that they have read, with empty fields that they had originally left out.
		v.fields.tidyObject(overlaid, reflect.ValueOf(obj).Elem(), v.schema, false)
	}
	return v.named(overlaid, metadata), nil
}

// patched returns the document that results from a request body: the body itself, or old patched by it.
func (v *Version) patched(raw *rawBody, old map[string]any) (map[string]any, error) {
	body := raw.body.Bytes()
	switch kind := types.PatchType(raw.media); {
	case raw.info.Verb != "patch":
		return parse(body)
	case kind == types.ApplyYAMLPatchType && old == nil:
		return parse(body)
	case kind == types.MergePatchType && old != nil:
		before, err := json.Marshal(old)
		if err != nil {
			return nil, err
		}
		after, err := jsonpatch.MergePatch(before, body)
		if err != nil {
			return nil, err
		}
		return parse(after)
	case kind == types.JSONPatchType && old != nil:
		before, err := json.Marshal(old)
		if err != nil {
			return nil, err
		}
		patch, err := jsonpatch.DecodePatch(body)
		if err != nil {
			return nil, err
		}
		after, err := patch.Apply(before)
		if err != nil {
			return nil, err
		}
		return parse(after)
	}
	return nil, errUnread
}

// Read returns the document that a client would have sent for an object, derived from its value alone. It omits empty
// fields that are optional, that encoding/json always writes, and that the rules do not allow to be empty. It adds
// required fields that encoding/json omits because they are empty.
func (v *Version) Read(obj runtime.Object) (map[string]any, error) {
	doc, err := v.plain(obj)
	if err != nil {
		return nil, err
	}
	v.fields.tidyObject(doc, reflect.ValueOf(obj).Elem(), v.schema, true)
	return v.named(doc, doc["metadata"]), nil
}

// read is like Read, for an object that results from applying a configuration to an older object. It omits empty
// required fields that neither of the two has. Applied values are as the client sent them.
func (v *Version) read(obj runtime.Object, raw *rawBody, old map[string]any) (map[string]any, error) {
	doc, err := v.Read(obj)
	if err != nil || !raw.applies() {
		return doc, err
	}
	if applied, err := parse(raw.body.Bytes()); err == nil {
		value := reflect.ValueOf(obj).Elem()
		v.fields.removeAbsent(doc, value, v.schema, applied, old)
		delete(applied, "metadata")
		raw.unfit = len(v.fields.misfits(applied, v.goType, holdsNot)) > 0
		v.fields.impose(doc, value, value.Type(), v.schema, applied)
	}
	return v.named(doc, nil), nil
}

// Unfit returns errors for the applied values that the Go type cannot hold, in the selected parts of the object. It
// covers values that the rules allow and that would be lost; for other kinds of requests, decoding rejects them.
// Document must have been called before.
func (v *Version) Unfit(ctx context.Context, about func(part string) bool) field.ErrorList {
	raw := rawBodyIn(ctx)
	if raw == nil || !raw.unfit || !raw.applies() {
		return nil
	}
	applied, err := parse(raw.body.Bytes())
	if err != nil {
		return nil // cannot happen: it has been parsed before
	}
	delete(applied, "metadata")
	maps.DeleteFunc(applied, func(part string, _ any) bool { return !about(part) })
	var errs field.ErrorList
	for _, m := range v.fields.misfits(applied, v.goType, holdsNot) {
		errs = append(errs, &field.Error{Type: field.ErrorTypeInvalid, Field: strings.TrimPrefix(m.path, "."), BadValue: m.value,
			Detail: fmt.Sprintf("the value does not fit the Go type %s of the server", m.t)})
	}
	return errs
}

// plain is like Plain, without the metadata that clients cannot set.
func (v *Version) plain(obj runtime.Object) (map[string]any, error) {
	doc, err := v.Plain(obj)
	if err != nil {
		return nil, err
	}
	if metadata, ok := doc["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
		if metadata["creationTimestamp"] == nil {
			delete(metadata, "creationTimestamp")
		}
	}
	return doc, nil
}

func (v *Version) named(doc map[string]any, metadata any) map[string]any {
	if doc == nil {
		doc = map[string]any{}
	}
	doc["apiVersion"], doc["kind"] = v.kind.GroupVersion().String(), v.kind.Kind
	if metadata != nil {
		doc["metadata"] = metadata
	}
	return doc
}

// overlay returns the document sent, with the differences between then, which was decoded from it, and now. It may
// reuse its arguments.
func overlay(sent, then, now any) any {
	if reflect.DeepEqual(then, now) {
		return sent
	}
	switch now := now.(type) {
	case map[string]any:
		sent, ok := sent.(map[string]any)
		then, both := then.(map[string]any)
		if !ok || !both {
			return withoutNulls(now)
		}
		for key, value := range now {
			before, had := then[key]
			is, present := sent[key]
			switch {
			case had && reflect.DeepEqual(before, value):
			case present && had:
				sent[key] = overlay(is, before, value)
			case value != nil:
				sent[key] = withoutNulls(value)
			}
		}
		for key := range then {
			if _, still := now[key]; !still {
				delete(sent, key)
			}
		}
		return sent
	case []any:
		sent, ok := sent.([]any)
		then, both := then.([]any)
		if !ok || !both || len(sent) != len(now) || len(then) != len(now) {
			return withoutNulls(now)
		}
		for i := range now {
			sent[i] = overlay(sent[i], then[i], now[i])
		}
		return sent
	}
	return now
}

// withoutNulls removes the nulls that Go writes for empty values.
func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if v == nil {
				delete(value, key)
			} else {
				value[key] = withoutNulls(v)
			}
		}
	case []any:
		for i := range value {
			value[i] = withoutNulls(value[i])
		}
	}
	return value
}
