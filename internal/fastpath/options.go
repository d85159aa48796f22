package fastpath

import (
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/annexapi/annex/internal/wire/managed"
)

// Options are the options of a write that the fast path honours. The zero value has none.
type Options struct {
	FieldManager    string
	FieldValidation string // one of metav1.FieldValidationIgnore, Warn and Strict; empty is upstream's default
	Force           *bool  // of a patch
}

// optionsOf parses the query of a write. It reports false for a query with any other option, a repeated option or an invalid value:
// upstream has to read it.
func optionsOf(query string, patch bool) (Options, bool) {
	var o Options
	if query == "" {
		return o, true
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return o, false
	}
	for name, given := range values {
		if len(given) != 1 {
			return o, false
		}
		switch name {
		case "fieldManager":
			o.FieldManager = given[0]
		case "fieldValidation":
			o.FieldValidation = given[0]
			switch o.FieldValidation {
			case metav1.FieldValidationStrict, metav1.FieldValidationWarn, metav1.FieldValidationIgnore:
			default:
				return o, false
			}
		case "force":
			force := given[0] == "true"
			if o.Force = &force; !patch || !force && given[0] != "false" {
				return o, false
			}
		default:
			return o, false
		}
	}
	return o, managed.IsName(o.FieldManager)
}

// suit reports whether a patch of a type may have the options: an applied configuration needs a field manager, and no other patch is
// forced. A strategic merge patch is upstream's.
func (o Options) suit(patch types.PatchType) bool {
	switch patch {
	case types.MergePatchType, types.JSONPatchType:
		return o.Force == nil
	case types.ApplyYAMLPatchType:
		return o.FieldManager != ""
	}
	return false
}
