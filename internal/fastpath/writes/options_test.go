package writes

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
)

// upstreamOptions are those of a query as upstream's handlers read them; false if they refuse it.
func upstreamOptions[O runtime.Object](query string, into O, validate func(O) field.ErrorList) (O, bool) {
	values := (&url.URL{RawQuery: query}).Query()
	err := metainternalversionscheme.ParameterCodec.DecodeParameters(values, metav1.SchemeGroupVersion, into)
	return into, err == nil && len(validate(into)) == 0
}

// FuzzOptions reads the options of writes as upstream does, whatever the query.
func FuzzOptions(f *testing.F) {
	for _, query := range []string{
		"", "fieldManager=me", "fieldManager=", "fieldManager=a&fieldManager=b", "fieldManager=%07", "fieldManager=%C3%A9",
		"fieldManager=%ff", "fieldManager=" + strings.Repeat("x", 128), "fieldManager=" + strings.Repeat("x", 129),
		"fieldManager=" + strings.Repeat("%C3%A9", 65), "fieldmanager=me", "field%4Danager=me", "fieldManager=a;b", "fieldManager=a+b",
		"fieldManager", "&&", "=", "%", "a%zz=1", "?fieldManager=x",
		"fieldValidation=Strict", "fieldValidation=Warn&fieldManager=me", "fieldValidation=Ignore", "fieldValidation=strict",
		"fieldValidation=", "fieldValidation=Strict&fieldValidation=Warn",
		"force=true", "force=false", "force=1", "force=", "force=True", "force=true&force=false", "force=true&fieldManager=me", "dryRun=All",
		"dryRun=", "pretty=true", "timeout=1s", "other=1", "kind=x&apiVersion=v1", "gracePeriodSeconds=1",
	} {
		f.Add(query)
	}
	f.Fuzz(compareOptions)
}

func compareOptions(t *testing.T, query string) {
	for _, patch := range []types.PatchType{"", types.MergePatchType, types.JSONPatchType, types.ApplyYAMLPatchType} {
		ours, ok := optionsOf(query, patch != "")
		if ok && patch != "" {
			ok = (&call{options: ours}).mayPatch(patch)
		}
		if !ok {
			if isUsual(query, patch) {
				t.Errorf("%q of %q is left to upstream", query, patch)
			}
			continue
		}
		var upstreams []runtime.Object
		accepted := true
		add := func(o runtime.Object, ok bool) { upstreams, accepted = append(upstreams, o), accepted && ok }
		want := []runtime.Object{}
		if patch == "" {
			create, ok := upstreamOptions(query, &metav1.CreateOptions{}, validation.ValidateCreateOptions)
			add(create, ok)
			update, ok := upstreamOptions(query, &metav1.UpdateOptions{}, validation.ValidateUpdateOptions)
			add(update, ok)
			want = append(
				want,
				&metav1.CreateOptions{FieldManager: ours.fieldManager, FieldValidation: ours.fieldValidation},
				&metav1.UpdateOptions{FieldManager: ours.fieldManager, FieldValidation: ours.fieldValidation},
			)
		} else {
			o, ok := upstreamOptions(
				query,
				&metav1.PatchOptions{},
				func(o *metav1.PatchOptions) field.ErrorList { return validation.ValidatePatchOptions(o, patch) },
			)
			add(o, ok)
			want = append(want, &metav1.PatchOptions{FieldManager: ours.fieldManager, FieldValidation: ours.fieldValidation, Force: ours.force})
		}
		if !accepted || !reflect.DeepEqual(upstreams, want) {
			t.Errorf("%q of %q: upstream has %+v, accepted: %t; ours are %+v", query, patch, upstreams, accepted, want)
		}
	}
}

// isUsual says whether a query has nothing but what is to be answered directly.
func isUsual(query string, patch types.PatchType) bool {
	values, err := url.ParseQuery(query)
	if err != nil || patch == types.ApplyYAMLPatchType && values.Get("fieldManager") == "" {
		return false
	}
	for name, given := range values {
		switch {
		case len(given) != 1:
			return false
		case name == "fieldManager" && len(validation.ValidateFieldManager(given[0], nil)) == 0:
		case name == "fieldValidation" && slices.Contains([]string{"Strict", "Warn", "Ignore"}, given[0]):
		case name == "force" && patch == types.ApplyYAMLPatchType && slices.Contains([]string{"true", "false"}, given[0]):
		default:
			return false
		}
	}
	return true
}

// FuzzApply reads configurations to apply as upstream does, who takes them for YAML.
func FuzzApply(f *testing.F) {
	for _, body := range []string{
		`{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}`, `{"a":1,"b":-1,"c":9223372036854775807,` +
			`"d":9223372036854775808,"e":1e3,"f":1.0,"g":-0}`, `{"a":null,"b":true,"c":[],"d":{}}`, `{"a":[1,"b",{"c":[[]]}]}`,
		` { "a" : "b" } `, "{\n\"a\":\n\"b\"}", "{\r\n\"a\":1}", "{\"a\":\t1}", `{"a":"x y: z # no"}`,
		`{"a":"'","b":"\"","c":"\\","d":"\n\r\b\f\t"}`, `{"a":"\u0041","b":"\/"}`, `{"a":"é"}`, `{"<<":{"a":1}}`,
		`{"a":"*x","b":"&x","c":"!!int 3"}`,
		`{"":1}`, `{"a":1,"a":2}`, `{"a":{"b":1,"b":1}}`, `{"A":1,"a":2}`, `[]`, `null`, `"a"`, `1`, ``, `{`, `{}{}`, `{} `,
		"{\"a\":1}\n---\n{\"b\":2}", `{"yes":"no","1":"2","true":"false","null":"null","~":"~"}`, `{"a":"` + strings.Repeat("x", 1100) + `"}`,
		`{"` + strings.Repeat("x", 1010) + `":1}`,
		"{\"a\":\"b\x7f\"}", "\ufeff{\"a\":1}", `{"a":0001}`, `{"a":"2001-01-01","b":"0x10","c":"1_000","d":".inf"}`, `{"? a":1}`,
		`{"a":"%"}`, `{"-":"-","- ":"- a","|":">"}`,
	} {
		f.Add(body)
	}
	f.Fuzz(compareApply)
}

func compareApply(t *testing.T, body string) {
	c := &call{body: []byte(body)}
	if apply, _ := c.apply(); apply == nil {
		return
	}
	var ours map[string]any
	if _, err := kjson.UnmarshalStrict(c.body, &ours); err != nil {
		t.Fatal(err)
	}
	theirs := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(c.body, &theirs.Object); err != nil {
		t.Fatalf("%q: upstream says %v", body, err)
	}
	if err := yaml.UnmarshalStrict(c.body, &map[string]any{}); err != nil {
		t.Fatalf("%q: upstream warns of %v", body, err)
	}
	if !reflect.DeepEqual(ours, theirs.Object) {
		t.Fatalf("%q: upstream reads %#v, we %#v", body, theirs.Object, ours)
	}
	if recorded, err := yaml.ToJSON(c.body); err != nil || string(recorded) != body {
		t.Fatalf("%q: upstream records %q, %v", body, recorded, err)
	}
}

// FuzzKind reads the kind of an object as upstream does.
func FuzzKind(f *testing.F) {
	for _, body := range kinds {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if json.Valid([]byte(body)) { // or it is refused later on
			compareKind(t, body)
		}
	})
}

// FuzzAccept takes for JSON what upstream negotiates as that, alone and without options.
func FuzzAccept(f *testing.F) {
	for _, accept := range []string{"", "*/*", "application/json", "application/json, */*", "application/json;pretty=1",
		"application/yaml", ",", "application/json,application/yaml", "APPLICATION/JSON"} {
		f.Add(accept)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		r := &http.Request{Header: http.Header{"Accept": {accept}}, URL: &url.URL{}}
		if !acceptsJSON(r) {
			return
		}
		wanted, info, err := negotiation.NegotiateOutputMediaType(r, scheme.Codecs, negotiation.DefaultEndpointRestrictions)
		if err != nil || info.MediaType != runtime.ContentTypeJSON || info.Serializer != wanted.Accepted.Serializer || wanted.Convert != nil ||
			len(wanted.Unrecognized) > 0 {
			t.Errorf("%q is not plain JSON to upstream: %+v, %v", accept, wanted, err)
		}
	})
}
