// Package accounts implements the service accounts of a standalone server, which are the callers that are programs.
// It serves them as the kind ServiceAccount of the core group, issues short-lived tokens, authenticates the tokens,
// and publishes the keys for verifying them.
//
// A token is valid as long as its account and the object that it is bound to exist. Both are read from storage each
// time, so that every process over the same storage rejects the tokens of deleted objects at once.
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

// Resource is the resource of service accounts in storage and in errors.
var Resource = corev1.Resource("serviceaccounts")

// Group returns the core group with the kind ServiceAccount.
func Group() define.Group {
	return define.Group{Name: corev1.GroupName, Kinds: []*define.Kind{
		{
			Resource:   Resource.Resource,
			ShortNames: []string{"sa"},
			Versions: []*define.Version{
				{Facts: facts, Type: reflect.TypeFor[corev1.ServiceAccount](), ListType: reflect.TypeFor[corev1.ServiceAccountList]()},
			},
			WithoutGeneration: true,
			Unconditional:     true,
			ReturnsDeleted:    true,
			Columns: []define.Column{{
				Name:        "Age",
				Type:        "string", // upstream's word, where kinds without columns have a date
				Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
				Value:       func(obj runtime.Object) any { return obj.(*corev1.ServiceAccount).CreationTimestamp },
			}},
			PrepareForCreate: func(_ context.Context, obj runtime.Object) { keepNames(obj) },
			PrepareForUpdate: func(_ context.Context, obj, _ runtime.Object) { keepNames(obj) },
		},
	}}
}

// keepNames reduces references to secrets to their names, as kube-apiserver does.
func keepNames(obj runtime.Object) {
	account := obj.(*corev1.ServiceAccount)
	for i, secret := range account.Secrets {
		account.Secrets[i] = corev1.ObjectReference{Name: secret.Name}
	}
}

// facts returns the facts of k8s.io/api/core/v1 that service accounts need. The complete facts would take a megabyte.
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

// AddToScheme registers the type TokenRequest. With aliases, it also stands for the internal version of its group.
func AddToScheme(scheme *runtime.Scheme, aliases bool) error {
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenRequest{})
	if aliases {
		internal := schema.GroupVersion{Group: authenticationv1.GroupName, Version: runtime.APIVersionInternal}
		scheme.AddKnownTypes(internal, &authenticationv1.TokenRequest{})
	}
	return nil
}
