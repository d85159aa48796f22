package writes

import (
	"context"
	"net/http"
	"sync"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/base/objects"
)

func (c *call) delete() bool {
	options := &metav1.DeleteOptions{}
	kind := c.Scope.MetaGroupVersion.WithKind("DeleteOptions")
	if len(c.body) > 0 {
		codecs := metainternalversionscheme.Codecs
		media, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
		if !ok {
			return false
		}
		obj, gvk, err := codecs.DecoderToVersion(media.Serializer, kind.GroupVersion()).Decode(c.body, &kind, options)
		if err != nil || obj != options || gvk == nil || len(options.DryRun) > 0 ||
			options.IgnoreStoreReadErrorWithClusterBreakingPotential != nil ||
			len(validation.ValidateDeleteOptions(options)) > 0 {
			return false
		}
		audit.LogRequestObject(c.r.Context(), obj, gvk.GroupVersion(), c.Scope.Resource, "", codecs)
	}
	requestmetrics.RecordRequestBodySize(c.r.Context(), c.Scope.Resource.GroupResource(), requestmetrics.Delete, len(c.body))
	options.TypeMeta = typeOf("DeleteOptions")
	ctx, cancel := c.context()
	defer cancel()
	deleted := true
	result, err := c.run(ctx, func() (runtime.Object, error) {
		obj, done, err := c.deleter.Delete(objects.WithUnreadValidated(ctx), c.info.Name, c.validateDelete(options), options)
		deleted = done
		return obj, err
	})
	if err != nil {
		return c.finish(0, nil, err)
	}
	code := http.StatusOK
	//lint:ignore SA1019 clients of long ago still say so
	if orphan := options.OrphanDependents; !deleted && orphan != nil && !*orphan {
		code = http.StatusAccepted
	}
	if result == nil {
		result = &metav1.Status{
			Status:  metav1.StatusSuccess,
			Code:    int32(code),
			Details: &metav1.StatusDetails{Name: c.info.Name, Kind: c.Scope.Kind.Kind},
		}
	}
	return c.finish(code, result, nil)
}

// validateDelete returns a function that runs admission for a deletion, as rest.AdmissionToValidateObjectDeleteFunc
// does. Plugins get a copy of the object of their own. It is made, and the object read if it has not been read yet,
// only when a plugin asks for it.
func (c *call) validateDelete(options *metav1.DeleteOptions) rest.ValidateObjectFunc {
	return func(ctx context.Context, old runtime.Object) error {
		seen := deletion{}
		mutating, isMutating := c.Admission.(admission.MutationInterface)
		if isMutating && mutating.Handles(admission.Delete) {
			seen.mutating = mutating
		}
		validating, isValidating := c.Admission.(admission.ValidationInterface)
		if isValidating && validating.Handles(admission.Delete) {
			seen.validating = validating
		}
		if seen.mutating == nil && seen.validating == nil {
			return nil
		}
		seen.old = sync.OnceValue(old.DeepCopyObject)
		attributes := c.attributes(ctx, nil, nil, c.info.Name, admission.Delete, options)
		// admission.WithAudit adds the annotations of plugins to the audit. It takes them from the attributes record
		// itself, so deletion wraps the record inside of it.
		audited := admission.WithAudit(seen)
		if err := audited.(admission.MutationInterface).Admit(ctx, attributes, &c.Scope); err != nil {
			return err
		}
		return audited.(admission.ValidationInterface).Validate(ctx, attributes, &c.Scope)
	}
}

// deletion is the admission chain of the server, whose plugins see the deleted object.
type deletion struct {
	mutating   admission.MutationInterface   // nil if the chain has none that handles deletions
	validating admission.ValidationInterface // likewise
	old        func() runtime.Object
}

var (
	_ admission.MutationInterface   = deletion{}
	_ admission.ValidationInterface = deletion{}
)

// Handles implements admission.Interface.
func (deletion) Handles(admission.Operation) bool { return true }

// Admit implements admission.MutationInterface.
func (d deletion) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if d.mutating == nil {
		return nil
	}
	return d.mutating.Admit(ctx, deletionAttributes{a, d.old}, o)
}

// Validate implements admission.ValidationInterface.
func (d deletion) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if d.validating == nil {
		return nil
	}
	return d.validating.Validate(ctx, deletionAttributes{a, d.old}, o)
}

// deletionAttributes are the attributes of a deletion, with the old object.
type deletionAttributes struct {
	admission.Attributes
	old func() runtime.Object
}

// GetOldObject implements admission.Attributes.
func (d deletionAttributes) GetOldObject() runtime.Object { return d.old() }

// appendStatus appends the status of a successful deletion exactly as upstream's encoder writes it. It returns false
// if the status holds anything else, or needs escaping.
func appendStatus(to []byte, status *metav1.Status) ([]byte, bool) {
	details := status.Details
	if status.Status != metav1.StatusSuccess || status.Message != "" || status.Reason != "" || status.Code != 0 ||
		status.ListMeta != (metav1.ListMeta{}) ||
		details == nil ||
		len(details.Causes) > 0 ||
		details.RetryAfterSeconds != 0 {
		return to, false
	}
	to = append(to, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{`...)
	begin := len(to)
	for _, field := range [...]struct{ name, value string }{{"name", details.Name}, {"group", details.Group}, {"kind", details.Kind},
		{"uid", string(details.UID)}} {
		if field.value == "" {
			continue
		}
		if !isPlainString(field.value) {
			return to, false
		}
		if len(to) > begin {
			to = append(to, ',')
		}
		to = append(append(append(to, '"'), field.name...), `":"`...)
		to = append(append(to, field.value...), '"')
	}
	return append(to, "}}\n"...), true
}

// isPlainString reports whether JSON holds a string without escaping any character.
func isPlainString(text string) bool {
	for i := range len(text) {
		switch b := text[i]; {
		case b < ' ', b > '~', b == '"', b == '\\', b == '<', b == '>', b == '&':
			return false
		}
	}
	return true
}
