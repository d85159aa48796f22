package fastpath

import (
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
			ok = ours.suit(patch)
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
				&metav1.CreateOptions{FieldManager: ours.FieldManager, FieldValidation: ours.FieldValidation},
				&metav1.UpdateOptions{FieldManager: ours.FieldManager, FieldValidation: ours.FieldValidation},
			)
		} else {
			o, ok := upstreamOptions(
				query,
				&metav1.PatchOptions{},
				func(o *metav1.PatchOptions) field.ErrorList { return validation.ValidatePatchOptions(o, patch) },
			)
			add(o, ok)
			want = append(want, &metav1.PatchOptions{FieldManager: ours.FieldManager, FieldValidation: ours.FieldValidation, Force: ours.Force})
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
