package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/convert"
)

// Edit is a change of one object that was made in the storage instead of through the API, for example in its YAML file.
type Edit struct {
	Namespace, Name string
	// Document is the complete object, in JSON and in any served version. Nil deletes the object.
	Document []byte
	// Onto returns the document to write over an existing object, whose stored form is its argument.
	Onto func(stored []byte) []byte
}

// ErrMistaken marks an error that is caused by the edit itself. Any other error may be gone at the next attempt.
var ErrMistaken = errors.New("mistake in the document")

type mistakenError struct{ error }

func (mistakenError) Is(target error) bool { return target == ErrMistaken }
func (e mistakenError) Unwrap() error      { return e.error }

// Editable is the storage that an Editor writes to.
type Editable interface {
	rest.Getter
	rest.Creater
	rest.Updater
	rest.GracefulDeleter
}

// Editor applies edits to the objects of one resource. It uses ordinary writes that pass the resource's strategy, but
// no admission.
type Editor struct {
	// Resource is the resource to write, Kind its kind, and Served the versions that documents may use.
	Resource schema.GroupResource
	Kind     string
	Served   []string
	Storage  Editable
	// Stored encodes objects in their stored form.
	Stored    runtime.Codec
	Machinery *convert.Machinery
	// EnsureNamespace creates a missing namespace; nil if the objects have no namespace.
	EnsureNamespace func(ctx context.Context, name string) error
	// CheckNamespace returns an error if objects may not be created in a namespace. It is needed for namespaces that
	// are stored elsewhere, where creating an object does not check this; otherwise it is nil.
	CheckNamespace func(ctx context.Context, name string) error
	// Keep reports whether the deletion of an object must be ignored; nil ignores none.
	Keep func(name string) bool
}

// Editor returns the editor of the kind's objects.
func (k *Kind) Editor(machinery *convert.Machinery, ensureNamespace func(ctx context.Context, name string) error) *Editor {
	e := &Editor{
		Resource:  k.Definition.GroupResource(),
		Kind:      k.Definition.Name,
		Storage:   &mainREST{Store: k.store, kind: k.Definition, dryRun: k.dryRunHooks()},
		Stored:    k.store.Storage.Codec,
		Machinery: machinery,
	}
	if !k.Definition.ClusterScoped {
		e.EnsureNamespace = ensureNamespace
	}
	for _, v := range k.Definition.Versions {
		if !v.Unserved {
			e.Served = append(e.Served, v.GroupVersion.Version)
		}
	}
	return e
}

// EditorOf returns the one of several editors of the same objects whose kind matches a document. If there is none, or
// no document, it returns the first.
func EditorOf(editors []*Editor, document []byte) *Editor {
	for _, e := range editors {
		if _, err := e.kindOf(document); err == nil {
			return e
		}
	}
	return editors[0]
}

// Do applies an edit. If the object already equals the document, Do writes nothing. It returns the stored form that the
// document alone would have, nil for a deletion. An error matches ErrMistaken if the document is at fault.
func (e *Editor) Do(ctx context.Context, edit Edit) (says []byte, err error) {
	ctx = withEdit(request.WithNamespace(ctx, edit.Namespace))
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "system:files"})
	if edit.Document == nil {
		return nil, e.delete(ctx, edit)
	}
	obj, version, err := e.decode(edit.Document)
	if err != nil {
		return nil, mistakenError{err}
	}
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true,
		APIGroup:          e.Resource.Group,
		APIVersion:        version,
		Resource:          e.Resource.Resource,
		Namespace:         edit.Namespace,
		Name:              edit.Name,
	})
	if says, err = runtime.Encode(e.Stored, obj.DeepCopyObject()); err != nil {
		return nil, mistakenError{err}
	}
	err = e.write(ctx, edit, obj)
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return nil, mistakenError{errors.New(strings.TrimPrefix(err.Error(), e.Kind+"."))}
	}
	return says, err
}

// write updates the object, or creates it if it does not exist.
func (e *Editor) write(ctx context.Context, edit Edit, obj runtime.Object) error {
	_, err := e.Storage.Get(ctx, edit.Name, &metav1.GetOptions{})
	if err == nil {
		_, _, err = e.Storage.Update(
			ctx,
			edit.Name,
			replacement{e, edit, obj},
			rest.ValidateAllObjectFunc,
			rest.ValidateAllObjectUpdateFunc,
			false,
			&metav1.UpdateOptions{},
		)
		return err
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	if e.CheckNamespace != nil && edit.Namespace != "" {
		if err := e.CheckNamespace(ctx, edit.Namespace); err != nil {
			return err
		}
	}
	_, err = e.Storage.Create(ctx, obj.DeepCopyObject(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsNotFound(err) && e.EnsureNamespace != nil {
		if err := e.EnsureNamespace(ctx, edit.Namespace); err != nil {
			return fmt.Errorf("namespace %s: %w", edit.Namespace, err)
		}
		_, err = e.Storage.Create(ctx, obj.DeepCopyObject(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	}
	return err
}

func (e *Editor) delete(ctx context.Context, edit Edit) error {
	if e.Keep != nil && e.Keep(edit.Name) {
		return nil
	}
	_, _, err := e.Storage.Delete(ctx, edit.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// decode decodes a document strictly, applies defaults and converts the object to the hub. Of the metadata it keeps
// only the fields that users may set.
func (e *Editor) decode(document []byte) (obj runtime.Object, version string, err error) {
	media, ok := runtime.SerializerInfoForMediaType(e.Machinery.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok || media.StrictSerializer == nil {
		return nil, "", errors.New("no strict decoder")
	}
	kind, err := e.kindOf(document)
	if err != nil {
		return nil, "", err
	}
	internal := schema.GroupVersion{Group: e.Resource.Group, Version: runtime.APIVersionInternal}
	decoder := e.Machinery.DefaultingDecoder(media.StrictSerializer)
	obj, _, err = e.Machinery.Codecs.DecoderToVersion(decoder, internal).Decode(document, nil, nil)
	if err != nil {
		return nil, "", err
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	m := objects.Meta(obj)
	given := metav1.ObjectMeta{
		Name:            m.GetName(),
		Namespace:       m.GetNamespace(),
		Labels:          m.GetLabels(),
		Annotations:     m.GetAnnotations(),
		OwnerReferences: m.GetOwnerReferences(),
		Finalizers:      m.GetFinalizers(),
	}
	part(obj, "ObjectMeta").Set(reflect.ValueOf(given))
	return obj, kind.Version, nil
}

// kindOf returns the kind of a document, and an error unless it is the editor's kind in a served version.
func (e *Editor) kindOf(document []byte) (schema.GroupVersionKind, error) {
	var t metav1.TypeMeta
	if err := json.Unmarshal(document, &t); err != nil {
		return schema.GroupVersionKind{}, err
	}
	if t.APIVersion == "" || t.Kind == "" {
		return schema.GroupVersionKind{}, errors.New("apiVersion or kind is missing")
	}
	got := schema.FromAPIVersionAndKind(t.APIVersion, t.Kind)
	if got.Group != e.Resource.Group || got.Kind != e.Kind || !slices.Contains(e.Served, got.Version) {
		want := schema.GroupVersion{Group: e.Resource.Group, Version: strings.Join(e.Served, "|")}
		return got, fmt.Errorf("the object is a %s of %s, but %s must be of kind %s in %s", t.Kind, t.APIVersion, e.Resource, e.Kind, want)
	}
	return got, nil
}

// replacement replaces an object by a document, but keeps the metadata that the API maintains.
type replacement struct {
	editor   *Editor
	edit     Edit
	document runtime.Object
}

var _ rest.UpdatedObjectInfo = replacement{}

func (r replacement) Preconditions() *metav1.Preconditions { return nil }

func (r replacement) UpdatedObject(_ context.Context, old runtime.Object) (runtime.Object, error) {
	obj, err := r.onto(old)
	if err != nil {
		return nil, err
	}
	m, before := objects.Meta(obj), objects.Meta(old)
	m.SetUID(before.GetUID())
	m.SetResourceVersion(before.GetResourceVersion())
	m.SetGeneration(before.GetGeneration())
	m.SetGenerateName(before.GetGenerateName())
	m.SetSelfLink(before.GetSelfLink())
	m.SetCreationTimestamp(before.GetCreationTimestamp())
	m.SetDeletionTimestamp(before.GetDeletionTimestamp())
	m.SetDeletionGracePeriodSeconds(before.GetDeletionGracePeriodSeconds())
	m.SetManagedFields(before.GetManagedFields())
	return obj, nil
}

// onto returns the document to write over an object.
func (r replacement) onto(old runtime.Object) (runtime.Object, error) {
	stored, err := runtime.Encode(r.editor.Stored, old.DeepCopyObject())
	if err != nil {
		return nil, err
	}
	document := r.edit.Onto(stored)
	if bytes.Equal(document, r.edit.Document) {
		return r.document.DeepCopyObject(), nil
	}
	obj, _, err := r.editor.decode(document)
	if err != nil {
		return nil, mistakenError{err}
	}
	return obj, nil
}
