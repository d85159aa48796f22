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

// Decode completes the object decoded from the bytes that a client sent, in JSON or YAML: it
// fills defaults in where the client left a field out. decoded is nil if decoding failed,
// with failure. If it failed because of a value that does not fit the Go type and that the
// rules do not allow either, the error is left to validation, which names the field: then
// Decode returns an object without such values, in into if that has the type. The object
// must be validated together with what was sent.
func (v *Version) Decode(data []byte, decoded, into runtime.Object, failure error) (runtime.Object, error) {
	// Go has zero for a null in a map, which a server of the definition leaves out.
	if failure == nil && !v.defaults && !bytes.Contains(data, []byte("null")) {
		return decoded, nil
	}
	doc, err := parse(data)
	if err != nil { // in another format
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

// Fitting returns what a client sent, in JSON, without the values that the Go type cannot
// hold, but with the fields that it does not have; nil if it is in neither JSON nor YAML.
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

// largest is how large YAML may be when its aliases have been replaced: as a request's
// body may be.
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

// complete prunes a document and fills in its defaults. Its nulls stay if nulls is set, as
// those of an applied configuration do.
func (v *Version) complete(doc map[string]any, nulls bool) error {
	if err := v.prune(doc, nulls); err != nil {
		return err
	}
	defaulting.Default(doc, v.schema)
	return nil
}

// object reads a document into an object, without the values that do not fit.
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

// Document returns the document that a request is about to write: as its client sent it,
// with the changes made to obj since it was decoded. old is the document that it replaces,
// nil if there is none. If the context holds no request body, or one that does not tell
// which fields of the object are present, the document is made from obj alone: see Read.
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
		// The object lacks the values that do not fit its type; validation refuses them.
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
		// A client sends back what it got, and got fields that it had left out.
		v.fields.tidyObject(overlaid, reflect.ValueOf(obj).Elem(), v.schema, false)
	}
	return v.named(overlaid, metadata), nil
}

// patched returns the document that results from a body: the body itself, or old patched
// by it.
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

// Read returns an object as a client would have sent it, judged by its value: without
// empty fields that are optional, always written, and that the rules do not allow to be
// empty; and with a required field that is left out because it is empty.
func (v *Version) Read(obj runtime.Object) (map[string]any, error) {
	doc, err := v.plain(obj)
	if err != nil {
		return nil, err
	}
	v.fields.tidyObject(doc, reflect.ValueOf(obj).Elem(), v.schema, true)
	return v.named(doc, doc["metadata"]), nil
}

// read is Read for an object that was applied to an older one: required fields that are
// empty, and that neither of the two has, are absent, and applied values are as the
// client sent them.
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

// Unfit refuses the values that a client applies and that the Go type cannot hold, in the
// parts of the object that the request is about. It is for those that the rules allow, and
// that would be lost; other requests with such are refused when they are decoded. Document
// must have been called.
func (v *Version) Unfit(ctx context.Context, about func(part string) bool) field.ErrorList {
	raw := rawBodyIn(ctx)
	if raw == nil || !raw.unfit || !raw.applies() {
		return nil
	}
	applied, err := parse(raw.body.Bytes())
	if err != nil {
		return nil // it has been read before
	}
	delete(applied, "metadata")
	maps.DeleteFunc(applied, func(part string, _ any) bool { return !about(part) })
	var errs field.ErrorList
	for _, m := range v.fields.misfits(applied, v.goType, holdsNot) {
		errs = append(errs, &field.Error{Type: field.ErrorTypeInvalid, Field: strings.TrimPrefix(m.path, "."), BadValue: m.value,
			Detail: fmt.Sprintf("the server keeps a Go %s, which cannot hold it", m.t)})
	}
	return errs
}

// plain is Plain without the metadata that clients cannot set.
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

// overlay returns what was sent with the differences between then, which is what was
// decoded from it, and now. It may reuse what it is given.
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

// withoutNulls removes the nulls that Go writes for what is empty.
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
