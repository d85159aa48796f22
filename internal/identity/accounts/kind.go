// Package accounts keeps the service accounts of a server that stands alone: programs that
// are callers. It serves them as the kind ServiceAccount of the core group, issues
// short-lived tokens for them, knows the tokens when they come back, and publishes the keys
// by which others can verify them.
//
// A token counts as long as the account does, and the object that it is bound to: both are
// read from their storage each time, so that what is deleted is refused at once by every
// process over that storage.
package accounts

import (
	"context"
	"reflect"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/define"
)

// Resource names the service accounts in storage and in errors.
var Resource = corev1.Resource("serviceaccounts")

// Group returns the part of the core group that service accounts are.
func Group() define.Group {
	return define.Group{Name: corev1.GroupName, Kinds: []*define.Kind{
		{
			Resource:   Resource.Resource,
			ShortNames: []string{"sa"},
			Versions: []*define.Version{
				{Facts: facts, Type: reflect.TypeFor[corev1.ServiceAccount](), ListType: reflect.TypeFor[corev1.ServiceAccountList]()},
			},
			WithoutGeneration: true,
			PrepareForCreate:  func(_ context.Context, obj runtime.Object) { keepNames(obj) },
			PrepareForUpdate:  func(_ context.Context, obj, _ runtime.Object) { keepNames(obj) },
		},
	}}
}

// keepNames leaves of references to secrets what they are known by, as kube-apiserver does.
func keepNames(obj runtime.Object) {
	account := obj.(*corev1.ServiceAccount)
	for i, secret := range account.Secrets {
		account.Secrets[i] = corev1.ObjectReference{Name: secret.Name}
	}
}

// facts are those of k8s.io/api/core/v1 that service accounts need. All of them would be a
// megabyte.
func facts() api.Facts {
	return api.Facts{
		GroupVersion: corev1.SchemeGroupVersion,
		AddToScheme: func(scheme *runtime.Scheme) error {
			scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ServiceAccount{}, &corev1.ServiceAccountList{})
			metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
			return nil
		},
		OpenAPI: openAPI,
	}
}

// AddToScheme registers the type of requests for tokens. With aliases, it also stands for the
// internal version of its group.
func AddToScheme(scheme *runtime.Scheme, aliases bool) error {
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenRequest{})
	if aliases {
		internal := schema.GroupVersion{Group: authenticationv1.GroupName, Version: runtime.APIVersionInternal}
		scheme.AddKnownTypes(internal, &authenticationv1.TokenRequest{})
	}
	return nil
}
