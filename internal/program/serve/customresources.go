package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/store"
)

// definitions is the resource of CustomResourceDefinitions.
var definitions = apiextensionsv1.Resource("customresourcedefinitions")

// custom finds the stored custom resources in a backend: the definitions, and the objects of each definition. A
// server without CustomResourceDefinitions has stored none. With a maintenance.UnreadableDefinition, it returns the others, too.
type custom struct{ keys *encryption.Encryption }

func (c custom) resources(ctx context.Context, in string, backend store.Backend) ([]maintenance.Resource, error) {
	reader, ok := backend.(store.ValueReader)
	if !ok {
		return nil, nil
	}
	var all []maintenance.Resource
	var unreadable []error
	transformer := c.keys.TransformerForResource(definitions)
	for v, err := range reader.Values(ctx, registry.KeyPrefix(definitions)) {
		if err != nil {
			return nil, err
		}
		data := v.Data
		if transformer != nil {
			if data, _, err = transformer.TransformFromStorage(ctx, data, v.Context); err != nil {
				unreadable = append(unreadable, &maintenance.UnreadableDefinition{Key: v.Key, Err: err})
				continue
			}
		}
		d := &apiextensionsv1.CustomResourceDefinition{}
		if err := json.Unmarshal(data, d); err != nil {
			unreadable = append(unreadable, &maintenance.UnreadableDefinition{Key: v.Key, Err: err})
			continue
		}
		all = append(all, c.resource(in, backend, schema.GroupResource{Group: d.Spec.Group, Resource: d.Spec.Names.Plural}, storedForm(d)))
	}
	if len(all)+len(unreadable) > 0 {
		all = append(all, c.resource(in, backend, definitions, convert.Form{}))
	}
	return all, errors.Join(unreadable...)
}

// storedForm returns the form in which new objects of a definition are stored. It is empty if only a webhook can
// convert objects to that form.
func storedForm(d *apiextensionsv1.CustomResourceDefinition) convert.Form {
	at := slices.IndexFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if at < 0 || d.Spec.Conversion != nil && d.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter {
		return convert.Form{}
	}
	kind := schema.GroupVersionKind{Group: d.Spec.Group, Version: d.Spec.Versions[at].Name, Kind: d.Spec.Names.Kind}
	return convert.Form{GroupVersionKind: kind, MediaType: runtime.ContentTypeJSON}
}

func (c custom) resource(in string, backend store.Backend, resource schema.GroupResource, form convert.Form) maintenance.Resource {
	r := maintenance.Resource{
		Resource: resource, Prefix: registry.KeyPrefix(resource), In: in, Form: form,
		Codec:       asStored{form},
		New:         func() runtime.Object { return &storedObject{} },
		Transformer: c.keys.TransformerForResource(resource),
	}
	r.Open = func() (storage.Interface, error) {
		return backend.Open(store.Resource{
			Resource: resource, Prefix: r.Prefix, Codec: r.Codec, Transformer: r.Transformer, New: r.New,
			NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
		})
	}
	return r
}

// storedObject is an object as encoded by a codec. Its metadata is empty except for the resource version.
type storedObject struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	data []byte
}

// DeepCopyObject implements runtime.Object. The copies share the encoded bytes, which never change.
func (o *storedObject) DeepCopyObject() runtime.Object {
	return &storedObject{o.TypeMeta, *o.ObjectMeta.DeepCopy(), o.data}
}

// asStored is a codec that keeps objects as they are. It changes only the version, for definitions whose versions
// differ in name alone. No schema prunes fields or fills in defaults.
type asStored struct{ form convert.Form }

var _ runtime.Codec = asStored{}

// Decode implements runtime.Decoder.
func (asStored) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, ok := into.(*storedObject)
	if !ok {
		return nil, nil, fmt.Errorf("decode the stored value into a %T", into)
	}
	form, ok := convert.FormOf(data)
	if !ok {
		return nil, nil, errors.New("the stored value is not an object")
	}
	object.data = bytes.Clone(data)
	return object, &form.GroupVersionKind, nil
}

// Encode implements runtime.Encoder.
func (a asStored) Encode(object runtime.Object, w io.Writer) error {
	stored, ok := object.(*storedObject)
	if !ok {
		return fmt.Errorf("encode a %T as a stored value", object)
	}
	data := stored.data
	if form, ok := convert.FormOf(data); ok && a.form.MediaType != "" && form.GroupVersion() != a.form.GroupVersion() {
		u := &unstructured.Unstructured{}
		if err := runtime.DecodeInto(unstructured.UnstructuredJSONScheme, data, u); err != nil {
			return err
		}
		u.SetAPIVersion(a.form.GroupVersion().String())
		return unstructured.UnstructuredJSONScheme.Encode(u, w)
	}
	_, err := w.Write(data)
	return err
}

// Identifier implements runtime.Encoder.
func (a asStored) Identifier() runtime.Identifier {
	return runtime.Identifier("asStored:" + a.form.GroupVersion().String())
}
