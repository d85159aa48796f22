package reads

import (
	"net/http"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// listOptions decodes, defaults and validates the options of a list or watch as upstream does. It returns nil if
// upstream would answer with an error.
func (r *Kind) listOptions(req *http.Request, info *request.RequestInfo) *internalversion.ListOptions {
	options := &internalversion.ListOptions{}
	if internalversionscheme.ParameterCodec.DecodeParameters(req.URL.Query(), metav1.SchemeGroupVersion, options) != nil {
		return nil
	}
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	internalversion.SetListOptionsDefaults(options, watchList)
	if len(validation.ValidateListOptions(options, watchList)) > 0 {
		return nil
	}
	if options.FieldSelector != nil {
		selector, err := options.FieldSelector.Transform(func(label, value string) (string, string, error) {
			return r.convertor.ConvertFieldLabel(r.kind, label, value)
		})
		if err != nil {
			return nil
		}
		options.FieldSelector = selector
	}
	if info.Name == "" {
		return options
	}
	if options.FieldSelector == nil || options.FieldSelector.Empty() {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", info.Name)
	} else if name, ok := options.FieldSelector.RequiresExactMatch("metadata.name"); !ok || name != info.Name {
		return nil
	}
	return options
}
