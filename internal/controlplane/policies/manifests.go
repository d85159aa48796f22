package policies

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	policyloader "k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"
	webhookloader "k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/loader"
	"sigs.k8s.io/yaml"
)

// followFiles makes a plugin read the folder of policies or webhooks in its configuration, and reload it when files
// change. Upstream's sources do the work; the loaders here add the defaults and the validation of the kinds.
func (p *Policies) followFiles(plugin admission.Interface) {
	initializer.NewAPIServerIDInitializer(p.config.Server).Initialize(plugin)
	wants, ok := plugin.(initializer.WantsManifestLoaders)
	if !ok {
		return
	}
	complete := p.config.Complete
	wants.SetManifestLoaders(&initializer.ManifestLoaders{
		LoadValidatingPolicyManifests: policiesOf(
			complete,
			func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName },
			&admissionregistrationv1.ValidatingAdmissionPolicy{},
		),
		LoadMutatingPolicyManifests: policiesOf(
			complete,
			func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) string { return b.Spec.PolicyName },
			&admissionregistrationv1.MutatingAdmissionPolicy{},
		),
		LoadValidatingWebhookManifests: webhooksOf(complete, &admissionregistrationv1.ValidatingWebhookConfiguration{}),
		LoadMutatingWebhookManifests:   webhooksOf(complete, &admissionregistrationv1.MutatingWebhookConfiguration{}),
	})
}

// folderObject is an object that a folder may contain.
type folderObject interface {
	metav1.Object
	runtime.Object
}

func policiesOf[P, B folderObject](
	complete func(runtime.Object) error,
	policyOf func(B) string,
	_ P,
) func(dir string) ([]P, []B, string, error) {
	return func(dir string) ([]P, []B, string, error) {
		policies, bindings, hash, err := policyloader.LoadPolicyManifests(
			dir,
			newManifests(kindOf[P](), kindOf[B]()),
			accept[P](complete),
			accept[B](complete),
			policyOf,
		)
		return policies, bindings, hash, oneLine(err)
	}
}

func webhooksOf[T folderObject](complete func(runtime.Object) error, _ T) func(dir string) ([]T, string, error) {
	return func(dir string) ([]T, string, error) {
		configurations, hash, err := webhookloader.LoadManifests(dir, newManifests(kindOf[T]()), accept[T](complete))
		return configurations, hash, oneLine(err)
	}
}

// accept returns the objects of a kind in a document, with their defaults. It reports an error if one of them is
// invalid.
func accept[T folderObject](complete func(runtime.Object) error) func(runtime.Object) ([]T, error) {
	return func(document runtime.Object) ([]T, error) {
		found := []runtime.Object{document}
		if meta.IsListType(document) {
			var err error
			if found, err = meta.ExtractList(document); err != nil {
				return nil, err
			}
		}
		accepted := make([]T, 0, len(found))
		for _, one := range found {
			obj, ok := one.(T)
			if !ok {
				return nil, policyloader.ErrUnrecognizedType // or of the other kind
			}
			if err := complete(obj); err != nil {
				return nil, fmt.Errorf("%s %q: %w", kindOf[T](), obj.GetName(), err)
			}
			accepted = append(accepted, obj)
		}
		return accepted, nil
	}
}

func kindOf[T folderObject]() string { return reflect.TypeFor[T]().Elem().Name() }

// manifests is a strict decoder of documents.
type manifests struct {
	runtime.Decoder
	kinds []string
}

func newManifests(kinds ...string) manifests {
	scheme := runtime.NewScheme()
	_ = admissionregistrationv1.AddToScheme(scheme) // cannot fail
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.List{})
	return manifests{serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer(), kinds}
}

// Decode implements runtime.Decoder. Its errors about unknown kinds contain the names in the file, where upstream's
// contain Go types.
func (m manifests) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	var is metav1.TypeMeta
	if err := yaml.Unmarshal(data, &is); err != nil {
		return nil, nil, err
	}
	switch {
	case is.APIVersion == "" || is.Kind == "":
		return nil, nil, errors.New("a document has no apiVersion or no kind")
	case is.Kind != "List" && (is.APIVersion != admissionregistrationv1.SchemeGroupVersion.String() ||
		!slices.Contains(m.kinds, strings.TrimSuffix(is.Kind, "List"))):
		return nil, nil, fmt.Errorf(
			"apiVersion %q, kind %q: must be %s of %s",
			is.APIVersion,
			is.Kind,
			strings.Join(m.kinds, " or "),
			admissionregistrationv1.SchemeGroupVersion,
		)
	}
	return m.Decoder.Decode(data, defaults, into)
}

// oneLine joins the lines of errors in expressions, which point at the position, into one line with the name of the
// file.
func oneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}
