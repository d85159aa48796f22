package annextest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// reader reads bodies of answers.
type reader struct{ codecs serializer.CodecFactory }

func newReader() (*reader, error) {
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return &reader{serializer.NewCodecFactory(scheme)}, nil
}

// object returns an object as its JSON has it; nil if it has an encoding or, in protobuf, a type that the reader does not
// know.
func (r *reader) object(data []byte) map[string]any {
	var fields map[string]any
	if !strings.HasPrefix(string(data[:min(4, len(data))]), "k8s\x00") {
		if utiljson.Unmarshal(data, &fields) != nil {
			return nil
		}
		return fields
	}
	obj, _, err := r.codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil
	}
	fields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil
	}
	return fields
}

// redactor takes confidential values out of objects. Equal values have equal replacements within a report, so that a
// change can be seen; the key, which is never written, keeps short values from being guessed.
type redactor struct {
	key  []byte
	more func(obj map[string]any)
}

func newRedactor(more func(obj map[string]any)) *redactor {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never returns an error
	return &redactor{key, more}
}

// object changes an object of a resource.
func (r *redactor) object(t target, obj map[string]any) {
	switch {
	case t.group == "" && t.resource == "secrets":
		for _, field := range []string{"data", "stringData"} {
			values, _ := obj[field].(map[string]any)
			for key, value := range values {
				values[key] = r.replacement(value)
			}
		}
	case t.resource == "events":
		for field, text := range map[string]string{"involvedObject": "message", "regarding": "note"} {
			if about, ok := obj[field].(map[string]any); ok && about["kind"] == "Secret" && obj[text] != nil {
				obj[text] = r.replacement(obj[text])
			}
		}
	case t.resource == "tokenreviews" || t.subresource == "token":
		for _, part := range []string{"spec", "status"} {
			if fields, ok := obj[part].(map[string]any); ok && fields["token"] != nil {
				fields["token"] = r.replacement(fields["token"])
			}
		}
	}
	if r.more != nil {
		r.more(obj)
	}
}

func (r *redactor) replacement(value any) string {
	mac := hmac.New(sha256.New, r.key)
	fmt.Fprint(mac, value)
	return fmt.Sprintf("redacted-%x", mac.Sum(nil)[:4])
}

// confidential reports whether messages about objects of a resource may repeat their confidential values.
func confidential(t target) bool {
	return t.group == "" && t.resource == "secrets" || t.resource == "tokenreviews" || t.subresource == "token"
}

// silent are fields of the metadata that the server changes by itself, or that are in the line above the changes.
var silent = map[string]bool{
	"name": true, "namespace": true, "resourceVersion": true, "managedFields": true, "uid": true, "creationTimestamp": true,
	"generation": true, "selfLink": true,
}

// lastApplied is the annotation of kubectl apply, which repeats the object, with the data of a secret.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// changes returns a line for each field in which two objects differ. An object that is nil has no fields.
func changes(before, after map[string]any) []string {
	var c changed
	c.fields(visible(before), visible(after), func(key string) string { return step("", key) })
	return c
}

// visible returns an object without its type and the silent fields.
func visible(obj map[string]any) map[string]any {
	obj = maps.Clone(obj)
	delete(obj, "apiVersion")
	delete(obj, "kind")
	metadata, ok := obj["metadata"].(map[string]any)
	if !ok {
		return obj
	}
	metadata = maps.Clone(metadata)
	maps.DeleteFunc(metadata, func(field string, _ any) bool { return silent[field] })
	if annotations, ok := metadata["annotations"].(map[string]any); ok && annotations[lastApplied] != nil {
		annotations = maps.Clone(annotations)
		delete(annotations, lastApplied)
		metadata["annotations"] = annotations
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	obj["metadata"] = metadata
	return obj
}

// changed are the lines of changes.
type changed []string

// fields compares fields, or elements of a list by their keys. at returns the path of a key.
func (c *changed) fields(before, after map[string]any, at func(key string) string) {
	keys := slices.Collect(maps.Keys(before))
	for key := range after {
		if _, both := before[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		was, had := before[key]
		is, has := after[key]
		c.value(at(key), was, is, had, has)
	}
}

func (c *changed) value(path string, was, is any, had, has bool) {
	a, aFields := was.(map[string]any)
	b, bFields := is.(map[string]any)
	before, aList := was.([]any)
	after, bList := is.([]any)
	switch {
	case aFields && (bFields || !has) || bFields && !had:
		if len(a) > 0 || len(b) > 0 {
			c.fields(a, b, func(key string) string { return step(path, key) })
			return
		}
		if had == has {
			return
		}
	case aList && bList:
		c.elements(path, before, after)
		return
	}
	switch {
	case !had:
		*c = append(*c, "+ "+path+": "+brief(is))
	case !has:
		*c = append(*c, "- "+path+": "+brief(was))
	case brief(was) != brief(is) || encoded(was) != encoded(is):
		*c = append(*c, "~ "+path+": "+brief(was)+" -> "+brief(is))
	}
}

// elements compares lists by the key of their elements, or else by index.
func (c *changed) elements(path string, before, after []any) {
	for _, field := range []string{"name", "type", "uid"} {
		a, aKeyed := keyed(before, field)
		b, bKeyed := keyed(after, field)
		if aKeyed && bKeyed {
			c.fields(a, b, func(key string) string { return path + "[" + key + "]" })
			return
		}
	}
	for i := range max(len(before), len(after)) {
		var was, is any
		if i < len(before) {
			was = before[i]
		}
		if i < len(after) {
			is = after[i]
		}
		c.value(path+"["+strconv.Itoa(i)+"]", was, is, i < len(before), i < len(after))
	}
}

// keyed returns a list of objects by a field, if each has its own value there.
func keyed(list []any, field string) (map[string]any, bool) {
	all := map[string]any{}
	for _, element := range list {
		fields, _ := element.(map[string]any)
		key, ok := fields[field].(string)
		if _, twice := all[key]; !ok || twice {
			return nil, false
		}
		all[key] = element
	}
	return all, true
}

// step is the path of a field.
func step(path, field string) string {
	switch {
	case strings.ContainsAny(field, "./"):
		return path + "[" + field + "]"
	case path == "":
		return field
	}
	return path + "." + field
}

func encoded(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// brief is the JSON of a value, cut where it is long.
func brief(v any) string {
	const most = 100
	return shortened(encoded(v), most)
}

// shortened cuts a text after a number of characters.
func shortened(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-3]) + "..."
}
