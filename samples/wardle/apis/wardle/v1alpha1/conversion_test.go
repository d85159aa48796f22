package v1alpha1_test

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"testing"

	"example.com/wardle/apis/wardle/v1alpha1"
	"example.com/wardle/apis/wardle/v1beta1"
)

func typed(t v1alpha1.ReferenceType) *v1alpha1.ReferenceType { return &t }

func TestFlunderToHub_references(t *testing.T) {
	for name, c := range map[string]struct {
		spec v1alpha1.FlunderSpec
		hub  v1beta1.FlunderSpec
	}{
		"nothing": {},
		"flunder": {
			v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("Flunder")},
			v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: "Flunder"},
		},
		"fischer": {
			v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("Fischer")},
			v1beta1.FlunderSpec{FischerReference: "a", ReferenceType: "Fischer"},
		},
		"no type": {
			v1alpha1.FlunderSpec{Reference: "a"},
			v1beta1.FlunderSpec{FlunderReference: "a"},
		},
		"unknown type": {
			v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("Whale")},
			v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: "Whale"},
		},
		"flunder without reference": {
			v1alpha1.FlunderSpec{ReferenceType: typed("Flunder")},
			v1beta1.FlunderSpec{ReferenceType: "Flunder"},
		},
		"fischer without reference": {
			v1alpha1.FlunderSpec{ReferenceType: typed("Fischer")},
			v1beta1.FlunderSpec{ReferenceType: "Fischer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var hub v1beta1.Flunder
			if err := v1alpha1.FlunderToHub(&v1alpha1.Flunder{Spec: c.spec}, &hub); err != nil {
				t.Fatal(err)
			}
			if hub.Spec != c.hub {
				t.Errorf("to hub: %+v, want %+v", hub.Spec, c.hub)
			}
			var back v1alpha1.Flunder
			if err := v1alpha1.FlunderFromHub(&hub, &back); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(back.Spec, c.spec) {
				t.Errorf("from hub: %s, want %s", asJSON(t, back.Spec), asJSON(t, c.spec))
			}
		})
	}
}

func TestFlunder_conversionOverwrites(t *testing.T) {
	hub := v1beta1.Flunder{Spec: v1beta1.FlunderSpec{FlunderReference: "x", FischerReference: "y", ReferenceType: "Fischer"}}
	if err := v1alpha1.FlunderToHub(&v1alpha1.Flunder{}, &hub); err != nil || hub.Spec != (v1beta1.FlunderSpec{}) {
		t.Errorf("to hub: %+v, %v", hub.Spec, err)
	}
	old := v1alpha1.Flunder{Spec: v1alpha1.FlunderSpec{Reference: "x", ReferenceType: typed("Fischer")}}
	if err := v1alpha1.FlunderFromHub(&v1beta1.Flunder{}, &old); err != nil || old.Spec != (v1alpha1.FlunderSpec{}) {
		t.Errorf("from hub: %+v, %v", old.Spec, err)
	}
}

func TestFlunder_conversionKeepsMetadata(t *testing.T) {
	var hub v1beta1.Flunder
	hub.Name, hub.Kind = "kept", "Kept"
	if err := v1alpha1.FlunderToHub(&v1alpha1.Flunder{}, &hub); err != nil || hub.Name != "kept" || hub.Kind != "Kept" {
		t.Errorf("to hub: %+v, %v", hub, err)
	}
}

func TestFlunderFromHub_unrepresentable_fails(t *testing.T) {
	for name, spec := range map[string]v1beta1.FlunderSpec{
		"both references, flunder": {FlunderReference: "a", FischerReference: "b", ReferenceType: "Flunder"},
		"both references, fischer": {FlunderReference: "a", FischerReference: "b", ReferenceType: "Fischer"},
		"both references, no type": {FlunderReference: "a", FischerReference: "b"},
		"fischer without type":     {FischerReference: "b"},
		"fischer of flunder type":  {FischerReference: "b", ReferenceType: "Flunder"},
		"flunder of fischer type":  {FlunderReference: "a", ReferenceType: "Fischer"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &v1beta1.Flunder{Spec: spec}
			untouched := v1alpha1.Flunder{Spec: v1alpha1.FlunderSpec{Reference: "before"}}
			if err := v1alpha1.FlunderFromHub(hub, &untouched); err == nil {
				t.Errorf("converted to %s", asJSON(t, untouched.Spec))
			}
			if untouched.Spec.Reference != "before" {
				t.Error("a failed conversion changed its result")
			}
			if len(v1beta1.ValidateFlunder(context.Background(), hub)) == 0 {
				t.Error("is valid, so it could be stored")
			}
		})
	}
}

// Objects are stored in v1alpha1, and defaults are set when they are read.
func TestFlunder_storage_isExact(t *testing.T) {
	stored := 0
	for _, spec := range hubSpecs() {
		hub := v1beta1.Flunder{Spec: spec}
		if len(v1beta1.ValidateFlunder(context.Background(), &hub)) > 0 {
			continue
		}
		stored++
		var out v1alpha1.Flunder
		if err := v1alpha1.FlunderFromHub(&hub, &out); err != nil {
			t.Errorf("%+v is valid but cannot be stored: %v", spec, err)
			continue
		}
		var in v1alpha1.Flunder
		if err := json.Unmarshal([]byte(asJSON(t, out)), &in); err != nil {
			t.Fatal(err)
		}
		v1alpha1.SetObjectDefaults_Flunder(&in)
		var back v1beta1.Flunder
		if err := v1alpha1.FlunderToHub(&in, &back); err != nil {
			t.Fatal(err)
		}
		if back.Spec != spec {
			t.Errorf("stored %+v, read %+v", spec, back.Spec)
		}
	}
	if stored != 5 { // none, and each of two types with each of two names
		t.Errorf("%d specs are valid, want 5", stored)
	}
}

func hubSpecs() []v1beta1.FlunderSpec {
	var all []v1beta1.FlunderSpec
	for _, flunder := range []string{"", "a", "b"} {
		for _, fischer := range []string{"", "a", "b"} {
			for _, t := range []v1beta1.ReferenceType{"", "Flunder", "Fischer", "Whale"} {
				all = append(all, v1beta1.FlunderSpec{FlunderReference: flunder, FischerReference: fischer, ReferenceType: t})
			}
		}
	}
	return all
}

// The bytes that the upstream sample server writes to etcd for the same objects.
func TestFlunder_storedBytes_equalUpstream(t *testing.T) {
	for name, c := range map[string]struct {
		object any
		want   string
	}{
		"empty flunder": {
			&v1alpha1.Flunder{},
			`{"metadata":{},"spec":{},"status":{}}`,
		},
		"flunder": {
			flunder(),
			`{"kind":"Flunder","apiVersion":"wardle.example.com/v1alpha1","metadata":{"name":"f",` +
				`"namespace":"default"},"spec":{"reference":"other","referenceType":"Flunder"},"status":{}}`,
		},
		"fischer": {
			fischer("bad", "worse"),
			`{"kind":"Fischer","apiVersion":"wardle.example.com/v1alpha1","metadata":{"name":"f"},"disallowedFlunders":["bad","worse"]}`,
		},
		"empty fischer": {
			fischer(),
			`{"kind":"Fischer","apiVersion":"wardle.example.com/v1alpha1","metadata":{"name":"f"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := asJSON(t, c.object); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func flunder() *v1alpha1.Flunder {
	f := &v1alpha1.Flunder{Spec: v1alpha1.FlunderSpec{Reference: "other", ReferenceType: typed("Flunder")}}
	f.Kind, f.APIVersion, f.Name, f.Namespace = "Flunder", "wardle.example.com/v1alpha1", "f", "default"
	return f
}

func fischer(names ...string) *v1alpha1.Fischer {
	f := &v1alpha1.Fischer{DisallowedFlunders: names}
	f.Kind, f.APIVersion, f.Name = "Fischer", "wardle.example.com/v1alpha1", "f"
	return f
}

func FuzzV1alpha1RoundTripIsExact(f *testing.F) {
	f.Add("", false, "")
	f.Add("a", true, "Flunder")
	f.Add("a", true, "Fischer")
	f.Add("a", true, "Whale")
	f.Add("a", true, "")
	f.Add("\x00", true, "\xff")
	f.Fuzz(func(t *testing.T, reference string, hasType bool, referenceType string) {
		in := v1alpha1.Flunder{Spec: v1alpha1.FlunderSpec{Reference: reference}}
		if hasType {
			in.Spec.ReferenceType = typed(v1alpha1.ReferenceType(referenceType))
		}
		want := in.DeepCopy()
		if hasType && referenceType == "" {
			want.Spec.ReferenceType = nil
		}
		var hub v1beta1.Flunder
		if err := v1alpha1.FlunderToHub(&in, &hub); err != nil {
			t.Fatal(err)
		}
		var back v1alpha1.Flunder
		if err := v1alpha1.FlunderFromHub(&hub, &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&back, want) {
			t.Errorf("%s came back as %s", asJSON(t, in), asJSON(t, back))
		}
	})
}

func FuzzHubRoundTripIsExactOrRefused(f *testing.F) {
	for _, s := range hubSpecs() {
		f.Add(s.FlunderReference, s.FischerReference, string(s.ReferenceType))
	}
	f.Fuzz(func(t *testing.T, flunder, fischer, referenceType string) {
		hub := v1beta1.Flunder{Spec: v1beta1.FlunderSpec{
			FlunderReference: flunder, FischerReference: fischer, ReferenceType: v1beta1.ReferenceType(referenceType)}}
		var out v1alpha1.Flunder
		if err := v1alpha1.FlunderFromHub(&hub, &out); err != nil {
			if len(v1beta1.ValidateFlunder(context.Background(), &hub)) == 0 {
				t.Errorf("valid but refused: %v", err)
			}
			return
		}
		var back v1beta1.Flunder
		if err := v1alpha1.FlunderToHub(&out, &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back, hub) {
			t.Errorf("%s came back as %s", asJSON(t, hub), asJSON(t, back))
		}
	})
}

func TestSetDefaults_FlunderSpec(t *testing.T) {
	for name, c := range map[string]struct{ in, want v1alpha1.FlunderSpec }{
		"nothing": {},
		"no type": {v1alpha1.FlunderSpec{Reference: "a"}, v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("Flunder")}},
		"empty type": {v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("")},
			v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("Flunder")}},
		"fischer stands": {v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("Fischer")},
			v1alpha1.FlunderSpec{Reference: "a", ReferenceType: typed("Fischer")}},
	} {
		t.Run(name, func(t *testing.T) {
			list := &v1alpha1.FlunderList{Items: []v1alpha1.Flunder{{Spec: c.in}}}
			v1alpha1.SetObjectDefaults_FlunderList(list)
			if !reflect.DeepEqual(list.Items[0].Spec, c.want) {
				t.Errorf("got %s, want %s", asJSON(t, list.Items[0].Spec), asJSON(t, c.want))
			}
		})
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
