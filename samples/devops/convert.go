package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"example.com/devops/apis/devops/v1alpha1"
	"example.com/devops/apis/devops/v1alpha3"
)

const group = "devops.devops.io"

// answerConversion is the conversion webhook of the definitions. It serves the server itself, and callers who may
// post to its path.
func answerConversion(w http.ResponseWriter, r *http.Request) {
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil || review.Request == nil {
		http.Error(w, "the body is not a ConversionReview with a request", http.StatusBadRequest)
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, object := range review.Request.Objects {
		converted, err := convert(object.Raw, review.Request.DesiredAPIVersion)
		if err != nil {
			response.ConvertedObjects = nil
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Raw: converted})
	}
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // on an error the server reports that there is no answer
}

// convert converts an object to another version of the group.
func convert(raw []byte, to string) ([]byte, error) {
	var from metav1.TypeMeta
	if err := json.Unmarshal(raw, &from); err != nil {
		return nil, fmt.Errorf("convert to %s: %w", to, err)
	}
	version, ok := strings.CutPrefix(to, group+"/")
	if _, own := strings.CutPrefix(from.APIVersion, group+"/"); !ok || !own {
		return nil, fmt.Errorf("convert %s to %s: they are not both of the group %s", from.APIVersion, to, group)
	}
	if from.APIVersion == to {
		return raw, nil
	}
	switch gvk := (schema.GroupVersionKind{Group: group, Version: version, Kind: from.Kind}); gvk {
	case schema.GroupVersionKind{Group: group, Version: "v1alpha3", Kind: "Pipeline"}:
		return converted(raw, gvk, new(v1alpha1.Pipeline), new(v1alpha3.Pipeline), v1alpha1.PipelineToHub)
	case schema.GroupVersionKind{Group: group, Version: "v1alpha1", Kind: "Pipeline"}:
		return converted(raw, gvk, new(v1alpha3.Pipeline), new(v1alpha1.Pipeline), v1alpha1.PipelineFromHub)
	case schema.GroupVersionKind{Group: group, Version: "v1alpha3", Kind: "PipelineRun"}:
		return converted(raw, gvk, new(v1alpha1.PipelineRun), new(v1alpha3.PipelineRun), v1alpha1.PipelineRunToHub)
	case schema.GroupVersionKind{Group: group, Version: "v1alpha1", Kind: "PipelineRun"}:
		return converted(raw, gvk, new(v1alpha3.PipelineRun), new(v1alpha1.PipelineRun), v1alpha1.PipelineRunFromHub)
	}
	return nil, fmt.Errorf("convert %s %s to %s: there is no such kind or version", from.APIVersion, from.Kind, to)
}

// object is any kind of the group.
type object interface {
	runtime.Object
	metav1.ObjectMetaAccessor
}

func converted[From, To object](raw []byte, gvk schema.GroupVersionKind, in From, out To, convert func(From, To) error) ([]byte, error) {
	if err := json.Unmarshal(raw, in); err != nil {
		return nil, fmt.Errorf("convert to %s: %w", gvk.GroupVersion(), err)
	}
	*metadata(out) = *metadata(in)
	if err := convert(in, out); err != nil {
		return nil, fmt.Errorf("convert %s %s to %s: %w", gvk.Kind, metadata(in).Name, gvk.GroupVersion(), err)
	}
	out.GetObjectKind().SetGroupVersionKind(gvk)
	return json.Marshal(out)
}

func metadata(of metav1.ObjectMetaAccessor) *metav1.ObjectMeta {
	return of.GetObjectMeta().(*metav1.ObjectMeta)
}
