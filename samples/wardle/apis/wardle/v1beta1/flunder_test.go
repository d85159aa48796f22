package v1beta1_test

import (
	"context"
	"slices"
	"testing"

	"example.com/wardle/apis/wardle/v1beta1"
)

func TestValidateFlunder(t *testing.T) {
	for name, c := range map[string]struct {
		spec v1beta1.FlunderSpec
		want []string
	}{
		"nothing is valid":           {},
		"flunder reference is valid": {spec: v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: "Flunder"}},
		"fischer reference is valid": {spec: v1beta1.FlunderSpec{FischerReference: "a", ReferenceType: "Fischer"}},
		"flunder type, no reference": {v1beta1.FlunderSpec{ReferenceType: "Flunder"}, []string{"spec.flunderReference: Required value: " +
			"must be set if referenceType is Flunder"}},
		"fischer type, no reference": {v1beta1.FlunderSpec{ReferenceType: "Fischer"}, []string{"spec.fischerReference: Required value: " +
			"must be set if referenceType is Fischer"}},
		"flunder type, both": {v1beta1.FlunderSpec{ReferenceType: "Flunder", FlunderReference: "a", FischerReference: "b"},
			[]string{`spec.fischerReference: Invalid value: "b": must not be set if referenceType is Flunder`}},
		"fischer type, both": {v1beta1.FlunderSpec{ReferenceType: "Fischer", FlunderReference: "a", FischerReference: "b"},
			[]string{`spec.flunderReference: Invalid value: "a": must not be set if referenceType is Fischer`}},
		"flunder type, only a fischer": {v1beta1.FlunderSpec{ReferenceType: "Flunder", FischerReference: "b"},
			[]string{"spec.flunderReference: Required value: must be set if referenceType is Flunder",
				`spec.fischerReference: Invalid value: "b": must not be set if referenceType is Flunder`}},
		"fischer type, only a flunder": {v1beta1.FlunderSpec{ReferenceType: "Fischer", FlunderReference: "a"},
			[]string{"spec.fischerReference: Required value: must be set if referenceType is Fischer",
				`spec.flunderReference: Invalid value: "a": must not be set if referenceType is Fischer`}},
		"fischer reference, no type": {v1beta1.FlunderSpec{FischerReference: "b"}, []string{"spec.referenceType: Required value: must say " +
			"what the reference is to"}},
		"both references, no type": {v1beta1.FlunderSpec{FlunderReference: "a", FischerReference: "b"}, []string{"spec.referenceType: " +
			"Required value: must say what the reference is to"}},
		"unknown type": {v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: "Whale"}, []string{`spec.referenceType: ` +
			`Unsupported value: "Whale": supported values: "Fischer", "Flunder"`}},
		"unknown type, no reference": {v1beta1.FlunderSpec{ReferenceType: "flunder"}, []string{`spec.referenceType: Unsupported value: ` +
			`"flunder": supported values: "Fischer", "Flunder"`}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, err := range v1beta1.ValidateFlunder(context.Background(), &v1beta1.Flunder{Spec: c.spec}) {
				got = append(got, err.Error())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestSetDefaults_FlunderSpec_loneReference(t *testing.T) {
	for name, c := range map[string]struct {
		in, want v1beta1.FlunderSpec
	}{
		"nothing": {},
		"flunder": {v1beta1.FlunderSpec{FlunderReference: "a"}, v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: "Flunder"}},
		"fischer": {v1beta1.FlunderSpec{FischerReference: "a"}, v1beta1.FlunderSpec{FischerReference: "a"}},
		"both": {v1beta1.FlunderSpec{FlunderReference: "a", FischerReference: "b"},
			v1beta1.FlunderSpec{FlunderReference: "a", FischerReference: "b"}},
		"a type that is": {v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: "Fischer"},
			v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: "Fischer"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &v1beta1.Flunder{Spec: c.in}
			v1beta1.SetObjectDefaults_Flunder(f)
			if f.Spec != c.want {
				t.Errorf("got %+v, want %+v", f.Spec, c.want)
			}
		})
	}
}
