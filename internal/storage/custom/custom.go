// Package custom decodes stored custom resources. Upstream's codec of a definition decodes an object in four steps: it
// parses the JSON, coerces the object by the schema, sets defaults, and converts the object, which coerces it again.
// Each coercion encodes the metadata as JSON, decodes it as ObjectMeta and makes a map of it again, which takes three
// quarters of the time, and changes nothing if the metadata has the form in which servers store it.
//
// This package checks that form, and has upstream's codec coerce and default the object without the metadata, once, if it
// is stored in the version that is asked for. In every other case it leaves all to upstream's codec.
package custom

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/wire/plainjson"
)

// Below returns the codec to build upstream's codec on. It decodes like codec, and passes on the objects that a codec of
// Above has parsed already.
func Below(codec runtime.Codec) runtime.Codec { return below{codec} }

type below struct{ runtime.Codec }

// parsedKey is the key of a parsed object in the object that Above gives to upstream's codec, without any bytes.
// Upstream's codec passes that object on, because it has no version. No object that is decoded from bytes comes with it.
const parsedKey = "\x00"

// Decode implements runtime.Decoder.
func (b below) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if object, ok := into.(*unstructured.Unstructured); ok && len(data) == 0 {
		if parsed, ok := object.Object[parsedKey].(map[string]any); ok {
			object.Object = parsed
			kind := object.GroupVersionKind()
			return object, &kind, nil
		}
	}
	return b.Codec.Decode(data, defaults, into)
}

// Above returns a codec that decodes like upstream's codec for objects of kind, which is built on a codec of Below.
func Above(upstreams runtime.Codec, kind schema.GroupVersionKind) runtime.Codec {
	apiVersion, name := kind.ToAPIVersionAndKind()
	return &above{Codec: upstreams, kind: kind, apiVersion: apiVersion, name: name}
}

type above struct {
	runtime.Codec
	kind             schema.GroupVersionKind
	apiVersion, name string
	trees            plainjson.Trees
}

// Decode implements runtime.Decoder.
func (a *above) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if object, ok := into.(*unstructured.Unstructured); ok && object != nil && defaults == nil {
		if content := a.decode(data); content != nil {
			object.Object = content
			kind := a.kind
			return object, &kind, nil
		}
	}
	return a.Codec.Decode(data, defaults, into)
}

// decode returns nil if upstream's codec has to decode the object by itself.
func (a *above) decode(data []byte) map[string]any {
	content, ok := a.trees.Decode(data)
	if !ok || content["apiVersion"] != a.apiVersion || content["kind"] != a.name {
		return nil
	}
	if _, isList := content["items"]; isList {
		return nil
	}
	metadata, ok := content["metadata"].(map[string]any)
	if !ok || !isStored(metadata) {
		return nil
	}
	// Upstream's codec panics without metadata, and repairs a missing generation.
	content["metadata"] = map[string]any{"generation": int64(1)}
	object := &unstructured.Unstructured{Object: map[string]any{parsedKey: content}}
	decoded, _, err := a.Codec.Decode(nil, nil, object)
	if err != nil || decoded != runtime.Object(object) {
		return nil
	}
	object.Object["metadata"] = metadata
	return object.Object
}

// isStored reports whether metadata is unchanged by being decoded as ObjectMeta and encoded again, and has a generation,
// which upstream sets in old objects that have none.
func isStored(metadata map[string]any) bool {
	if generation, ok := metadata["generation"].(int64); !ok || generation == 0 {
		return false
	}
	for key, value := range metadata {
		ok := false
		switch key {
		case "generation":
			ok = true
		case "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion":
			ok = isText(value)
		case "creationTimestamp", "deletionTimestamp":
			ok = isTime(value)
		case "deletionGracePeriodSeconds":
			_, ok = value.(int64)
		case "labels", "annotations":
			ok = areStrings(value)
		case "finalizers":
			ok = isList(value, func(item any) bool {
				_, ok := item.(string)
				return ok
			})
		case "ownerReferences":
			ok = isList(value, isOwner)
		case "managedFields":
			ok = isList(value, isManager)
		}
		if !ok {
			return false
		}
	}
	return true
}

// isText reports whether a value is a string that is not omitted.
func isText(value any) bool {
	s, ok := value.(string)
	return ok && s != ""
}

// isTime reports whether a value is a time as it is encoded.
func isTime(value any) bool {
	s, ok := value.(string)
	if !ok || len(s) != len("2006-01-02T15:04:05Z") || s[len(s)-1] != 'Z' || s[0] == '0' {
		return false
	}
	_, err := time.Parse(time.RFC3339, s)
	return err == nil
}

func areStrings(value any) bool {
	all, ok := value.(map[string]any)
	if !ok || len(all) == 0 {
		return false
	}
	for _, s := range all {
		if _, ok := s.(string); !ok {
			return false
		}
	}
	return true
}

func isList(value any, isItem func(any) bool) bool {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return false
	}
	for _, item := range list {
		if !isItem(item) {
			return false
		}
	}
	return true
}

func isOwner(item any) bool {
	owner, ok := item.(map[string]any)
	if !ok {
		return false
	}
	required := 0
	for key, value := range owner {
		switch key {
		case "apiVersion", "kind", "name", "uid":
			if _, ok = value.(string); ok {
				required++
			}
		case "controller", "blockOwnerDeletion":
			_, ok = value.(bool)
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return required == 4
}

func isManager(item any) bool {
	entry, ok := item.(map[string]any)
	if !ok {
		return false
	}
	for key, value := range entry {
		switch key {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			ok = isText(value)
		case "time":
			ok = isTime(value)
		case "fieldsV1":
			ok = areFields(value)
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// areFields reports whether a value is a set of fields, which is made of objects only.
func areFields(value any) bool {
	fields, ok := value.(map[string]any)
	if !ok {
		return false
	}
	for _, below := range fields {
		if !areFields(below) {
			return false
		}
	}
	return true
}
