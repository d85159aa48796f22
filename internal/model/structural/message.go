package structural

import (
	"context"
	"net/url"
	"reflect"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// messageRules validate messages: they are the rules of a kind without those of its metadata.
type messageRules struct {
	document validation.SchemaValidator
	cel      *cel.Validator
}

func (v *Version) compileMessage() (messageRules, error) {
	document, _, err := validation.NewSchemaValidator(v.internal)
	if err != nil {
		return messageRules{}, err
	}
	return messageRules{document, cel.NewValidator(v.schema, true, celconfig.PerCallLimit)}, nil
}

// ValidateMessage validates an object of a request that is not stored. It validates the client's document if the
// context holds the request's body or query, and else the document derived from the value.
func (v *Version) ValidateMessage(ctx context.Context, obj runtime.Object) field.ErrorList {
	doc, err := v.message(ctx, obj)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	r, err := v.messages()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	errs := validation.ValidateCustomResource(nil, doc, r.document)
	errs = append(errs, objectmeta.Validate(ctx, nil, doc, v.schema, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, v.schema, doc)...)
	if r.cel == nil {
		return errs
	}
	if blocking(errs) {
		return append(errs, field.Invalid(nil, nil,
			"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	found, _ := r.cel.Validate(ctx, nil, v.schema, doc, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, found...)
}

// blocking reports whether the errors prevent CEL rules from running, by the criteria of a CRD server.
func blocking(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		}
	}
	return false
}

func (v *Version) message(ctx context.Context, obj runtime.Object) (map[string]any, error) {
	if raw := rawBodyIn(ctx); raw != nil && raw.query != nil {
		return v.options(obj, raw.query)
	}
	return v.Document(ctx, obj, nil)
}

// options returns the document of options that were read from a query. An empty field is present if the query
// contains it.
func (v *Version) options(obj runtime.Object, query url.Values) (map[string]any, error) {
	doc, err := v.Plain(obj)
	if err != nil {
		return nil, err
	}
	v.fields.eachField(
		reflect.ValueOf(obj).Elem(),
		v.schema,
		func(name string, _ reflect.StructField, field reflect.Value, _ *structuralschema.Structural) {
			_, written := doc[name]
			switch sent := query.Has(name); {
			case sent && !written && scalar(field.Kind()):
				doc[name] = zero(field)
			case !sent && field.IsZero():
				delete(doc, name)
			}
		},
	)
	return v.named(doc, nil), nil
}
