package publish

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

// AuthenticationName is the name of the ConfigMap in kube-system from which servers behind this one read how to
// authenticate.
const AuthenticationName = "extension-apiserver-authentication"

const (
	userCAKey       = "client-ca-file"
	proxyCAKey      = "requestheader-client-ca-file"
	allowedNamesKey = "requestheader-allowed-names"
)

// Authentication contains the authorities by which servers behind a server authenticate it and its callers. The
// functions return the current PEM bundles.
type Authentication struct {
	// UserCA returns the authorities of users' certificates.
	UserCA func() []byte
	// ProxyCA returns the authorities of the certificate of the server in front, and ProxyNames its allowed common
	// names.
	ProxyCA    func() []byte
	ProxyNames func() []string
	// Changed is notified when any of these has changed.
	Changed <-chan struct{}
}

// RunAuthentication maintains the ConfigMap AuthenticationName until the context ends. Replicas with authorities of
// their own add them to those of the others. It returns an error only if the client cannot be created; all other
// errors are logged and retried.
func RunAuthentication(ctx context.Context, config *rest.Config, a Authentication) error {
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for the ConfigMap %s: %w", AuthenticationName, err)
	}
	return run(ctx, core, publishedObject{
		resource: "configmaps", name: AuthenticationName, only: metav1.NamespaceSystem, empty: &corev1.ConfigMap{}, changed: a.Changed,
		create: func(ctx context.Context, namespace string) error {
			published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: AuthenticationName, Namespace: namespace}, Data: a.data(nil)}
			_, err := core.ConfigMaps(namespace).Create(ctx, published, metav1.CreateOptions{})
			return err
		},
		repair: func(ctx context.Context, obj runtime.Object) error {
			published := obj.(*corev1.ConfigMap)
			data := a.data(published.Data)
			if maps.Equal(published.Data, data) {
				return nil
			}
			published = published.DeepCopy()
			published.Data = data
			_, err := core.ConfigMaps(published.Namespace).Update(ctx, published, metav1.UpdateOptions{})
			return err
		},
	})
}

// data returns the wanted data of the ConfigMap. It keeps names of others, and their authorities until these have
// expired.
func (a Authentication) data(found map[string]string) map[string]string {
	names := slices.Concat(listOf(found[allowedNamesKey]), a.ProxyNames())
	slices.Sort(names)
	names = slices.Compact(names)
	return map[string]string{
		userCAKey:                            union(found[userCAKey], a.UserCA()),
		proxyCAKey:                           union(found[proxyCAKey], a.ProxyCA()),
		allowedNamesKey:                      text(names),
		"requestheader-username-headers":     text([]string{"X-Remote-User"}),
		"requestheader-uid-headers":          text([]string{"X-Remote-Uid"}),
		"requestheader-group-headers":        text([]string{"X-Remote-Group"}),
		"requestheader-extra-headers-prefix": text([]string{"X-Remote-Extra-"}),
	}
}

// listOf parses a list. It returns an empty list for invalid input.
func listOf(list string) []string {
	var all []string
	if json.Unmarshal([]byte(list), &all) != nil {
		return nil
	}
	return all
}

func text(list []string) string {
	out, _ := json.Marshal(list) // strings can be encoded
	return string(out)
}

// union returns the valid certificates of a bundle and the own ones. It ignores a bundle that cannot be parsed.
func union(bundle string, own []byte) string {
	all, err := cert.ParseCertsPEM([]byte(bundle))
	if err != nil {
		all = nil
	}
	mine, err := cert.ParseCertsPEM(own)
	if err != nil {
		mine = nil
	}
	all = slices.DeleteFunc(all, func(c *x509.Certificate) bool { return time.Now().After(c.NotAfter) })
	for _, c := range mine {
		if !slices.ContainsFunc(all, c.Equal) {
			all = append(all, c)
		}
	}
	var out bytes.Buffer
	for _, c := range all {
		_ = pem.Encode(&out, &pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw}) // a buffer returns no errors
	}
	return out.String()
}
