package writes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/warning"
	kjson "sigs.k8s.io/json"
)

// mostOperations is upstream's limit of operations in a JSON patch.
const mostOperations = 10_000

// patcher returns the patched object of the stored object.
type patcher func(ctx context.Context, current runtime.Object) (runtime.Object, error)

// patch answers a patch. It declines a body that has an error or needs a warning.
func (c *call) patch(kind types.PatchType) bool {
	var apply patcher
	recorded := c.body
	switch kind {
	case types.MergePatchType:
		apply = c.mergePatch()
	case types.JSONPatchType:
		apply = c.jsonPatch()
	case types.ApplyYAMLPatchType:
		apply, recorded = c.apply()
	}
	if apply == nil {
		return false
	}
	requestmetrics.RecordRequestBodySize(c.r.Context(), c.Scope.Resource.GroupResource(), requestmetrics.Patch, len(c.body))
	ctx, cancel := c.context()
	defer cancel()
	audit.LogRequestPatch(c.r.Context(), recorded)
	result, created, err := c.change(
		ctx,
		kind == types.ApplyYAMLPatchType,
		nil,
		func(ctx context.Context, _, current runtime.Object) (runtime.Object, error) {
			return c.patched(ctx, kind, current, apply)
		},
		kind != types.ApplyYAMLPatchType,
	)
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	return c.finish(code, result, err)
}

// patched returns the object that results from a patch.
func (c *call) patched(ctx context.Context, kind types.PatchType, current runtime.Object, apply patcher) (runtime.Object, error) {
	// A patch that conflicts with another write is applied again, which is useless once the request has ended.
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	exists, err := isStored(current)
	if err != nil {
		return nil, err
	}
	if !exists {
		if kind != types.ApplyYAMLPatchType {
			return nil, apierrors.NewNotFound(c.Scope.Resource.GroupResource(), c.info.Name)
		}
		if current, err = c.Scope.Creater.New(c.Scope.Kind); err != nil {
			return nil, fmt.Errorf("failed to create new object: %w", err)
		}
	}
	obj, err := apply(ctx, current)
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if !exists && m.GetUID() != "" {
		return nil, apierrors.NewConflict(c.Scope.Resource.GroupResource(), c.info.Name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", m.GetUID()))
	}
	if err := c.belongs(m); err != nil {
		return nil, err
	}
	return obj, nil
}

// mergePatch returns a patcher for the body. It returns nil if upstream has to report an error or a warning.
func (c *call) mergePatch() patcher {
	if !c.decodeStrict(&map[string]any{}) {
		return nil
	}
	library := func(document []byte) ([]byte, error) {
		merged, err := jsonpatch.MergePatch(document, c.body)
		if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return merged, err
	}
	return func(_ context.Context, current runtime.Object) (runtime.Object, error) {
		document, err := c.document(current)
		if err != nil {
			return nil, err
		}
		if c.options.FieldValidation != metav1.FieldValidationIgnore { // the document may repeat members
			if merged := mergePatch(document, c.body); merged != nil {
				obj := c.patcher.New()
				if err := runtime.DecodeInto(c.strict, merged, obj); err == nil {
					return c.Manager.UpdateNoErrors(current, obj, c.manager()), nil
				}
				// The error has to be about the document that the library makes.
			}
		}
		return c.patchJSON(current, document, library)
	}
}

// jsonPatch returns a patcher for the body. It returns nil if upstream has to report an error or a warning.
func (c *call) jsonPatch() patcher {
	var quick []quickOperation
	if c.options.FieldValidation != metav1.FieldValidationIgnore && json.Valid(c.body) { // otherwise the patch may repeat members
		quick = quickOperations(c.body)
	}
	var decoded jsonpatch.Patch
	if quick == nil {
		var operations []struct {
			Op    string `json:"op"`
			Path  string `json:"path"`
			From  string `json:"from"`
			Value any    `json:"value"`
		}
		if !c.decodeStrict(&operations) || len(operations) > mostOperations {
			return nil
		}
		var err error
		if decoded, err = jsonpatch.DecodePatch(c.body); err != nil || len(decoded) > mostOperations {
			return nil
		}
	}
	return func(_ context.Context, current runtime.Object) (runtime.Object, error) {
		document, err := c.document(current)
		if err != nil {
			return nil, err
		}
		if quick != nil {
			if patched := applyQuickly(document, quick); patched != nil {
				obj := c.patcher.New()
				if err := runtime.DecodeInto(c.strict, patched, obj); err == nil {
					return c.Manager.UpdateNoErrors(current, obj, c.manager()), nil
				}
				// The error has to be about the document that the library makes.
			}
		}
		return c.patchJSON(current, document, func(document []byte) ([]byte, error) {
			patch := decoded
			if decoded = nil; patch == nil { // a further attempt: a patched document shares values with its patch
				if patch, err = jsonpatch.DecodePatch(c.body); err != nil {
					return nil, apierrors.NewBadRequest(err.Error())
				}
			}
			patched, err := patch.Apply(document)
			if err != nil {
				return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
			}
			return patched, nil
		})
	}
}

// decodeStrict reports whether the body is valid JSON of a form and needs no warning.
func (c *call) decodeStrict(form any) bool {
	if !json.Valid(c.body) {
		return false
	}
	if c.options.FieldValidation == metav1.FieldValidationIgnore {
		return true
	}
	strict, err := kjson.UnmarshalStrict(c.body, form)
	return err == nil && len(strict) == 0
}

// document returns the stored object as JSON in the version of the request.
func (c *call) document(current runtime.Object) ([]byte, error) {
	if stored := c.result.Previous(current); stored != nil {
		return stored, nil
	}
	return runtime.Encode(c.encoder, current)
}

// patchJSON applies patch to the document of an object, and decodes the result.
func (c *call) patchJSON(current runtime.Object, document []byte, patch func(document []byte) ([]byte, error)) (runtime.Object, error) {
	decoder := c.strict
	if c.options.FieldValidation == metav1.FieldValidationIgnore {
		decoder = c.decoder
	}
	patched, err := patch(document)
	if err != nil {
		return nil, err
	}
	obj := c.patcher.New()
	if err := runtime.DecodeInto(decoder, patched, obj); err != nil {
		strict, isStrict := runtime.AsStrictDecodingError(err)
		switch {
		case !isStrict:
			return nil, invalidPatch(string(patched), err)
		case c.options.FieldValidation != metav1.FieldValidationStrict:
			warn(c.r.Context(), strict.Errors())
		default:
			return nil, invalidPatch(string(patched), runtime.NewStrictDecodingError(strict.Errors()))
		}
	}
	return c.Manager.UpdateNoErrors(current, obj, c.manager()), nil
}

func invalidPatch(patched string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), patched, err.Error())})
}

// apply returns a patcher that applies the body as a configuration, and the body as recorded in the audit. It returns
// nil if upstream has to report an error or a warning.
func (c *call) apply() (patcher, []byte) {
	if !isPlain(c.body) {
		return nil, nil
	}
	var configuration map[string]any
	strict, err := kjson.UnmarshalStrict(c.body, &configuration)
	if err != nil || len(strict) > 0 || configuration == nil || !sameInYAML(configuration) {
		return nil, nil
	}
	force := c.options.Force != nil && *c.options.Force
	return func(_ context.Context, current runtime.Object) (runtime.Object, error) {
		applied := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(configuration)}
		return c.Manager.Apply(current, applied, c.options.FieldManager, force)
	}, c.body
}

// isPlain reports whether a body is JSON that a YAML decoder certainly reads with the same result. Upstream reads
// configurations as YAML.
func isPlain(body []byte) bool {
	if !json.Valid(body) || bytes.Contains(body, []byte("<<")) {
		return false
	}
	for i, b := range body {
		switch {
		case b == '\t' || b >= 0x7f:
			return false
		case b == '\\' && i+1 < len(body) && (body[i+1] == 'u' || body[i+1] == '/'):
			return false
		}
	}
	return true
}

// maxPlainKey is the length up to which a YAML decoder finds the end of a key.
const maxPlainKey = 1000

// sameInYAML reports whether YAML yields the same values as JSON did. Numbers that are not integers and long keys may
// differ.
func sameInYAML(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			if len(key) > maxPlainKey || !sameInYAML(inner) {
				return false
			}
		}
	case []any:
		for _, inner := range v {
			if !sameInYAML(inner) {
				return false
			}
		}
	case float64:
		return false
	}
	return true
}

func warn(ctx context.Context, errs []error) {
	for _, err := range errs {
		warning.AddWarning(ctx, "", err.Error())
	}
}
