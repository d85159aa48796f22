package servingcert

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// Place contains the names of a Keeper's objects in its cluster. The Secret and the Lease have to exist, because the
// permission to create objects cannot be restricted to a name. Workload runs the server there, as in
// deployments/shop; without it, the server never leaves its APIServices.
type Place struct{ Namespace, Secret, Lease, Workload string }

// New returns a keeper of a certificate. Until Run has read the Secret, it serves a temporary certificate that no
// client trusts. New sends no requests.
func New(config *rest.Config, place Place, options Options) (*Keeper, error) {
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	keeper, err := newKeeper(options, &cluster{config, client, place})
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return keeper, nil
}

// Run follows the Secret, and leads whenever it holds the Lease, until the context ends. ready returns an error while
// the server is not ready. A server that has left its APIServices returns to them only when it is ready.
func (k *Keeper) Run(ctx context.Context, ready func() error) error { return k.host.run(ctx, k, ready) }

func (c *cluster) run(ctx context.Context, k *Keeper, ready func() error) error {
	client, place := c.client, c.place
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, place.Namespace, place.Lease,
		resourcelock.ResourceLockConfig{Identity: hostname + "_" + uuid.NewString()}, c.config, renewDeadline)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(
			client.RESTClient(),
			"secrets",
			place.Namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, place.Secret),
		),
		ObjectType: &corev1.Secret{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { k.follow(o.(*corev1.Secret)) },
			UpdateFunc: func(_, o any) { k.follow(o.(*corev1.Secret)) },
		},
	})
	running.Go(func() { informer.RunWithContext(ctx) })
	// The elector does not wait for its goroutines, so they only pass on the lead.
	leads := make(chan context.Context)
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case lead := <-leads:
				k.lead(klog.NewContext(lead, klog.FromContext(ctx)), ready)
			}
		}
	})
	// The elector would log every other second that the cluster is unreachable, which Check reports once.
	quiet := klog.NewContext(ctx, logr.Discard())
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, Name: place.Lease, ReleaseOnCancel: true,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(lead context.Context) {
					select {
					case leads <- lead:
					case <-lead.Done():
					}
				},
				// Another replica may lead while this one still writes. A write that is based on an older state is a
				// conflict, and has no effect.
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("serving certificate: %w", err)
		}
		elector.Run(quiet) // returns when the lead is lost
	}
	return nil
}

// cluster is a host.
type cluster struct {
	config *rest.Config
	client corev1client.CoreV1Interface
	place  Place
}

func (c *cluster) secret(ctx context.Context) (*corev1.Secret, error) {
	return c.client.Secrets(c.place.Namespace).Get(ctx, c.place.Secret, metav1.GetOptions{})
}

func (c *cluster) updateSecret(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	return c.client.Secrets(c.place.Namespace).Update(ctx, secret, metav1.UpdateOptions{FieldManager: fieldManager})
}

const fieldManager = "annex-serving-certificate"

const apiServicesPath = "/apis/apiregistration.k8s.io/v1/apiservices"

// leftAnnotation is the annotation of an APIService with the service, as NAMESPACE/NAME:PORT, that it pointed to
// before the server left.
const leftAnnotation = "annex/left-service"

func (c *cluster) get(ctx context.Context, into any, path ...string) error {
	raw, err := c.client.RESTClient().Get().AbsPath(path...).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("read the cluster's answer: %w", err)
	}
	return nil
}

func (c *cluster) apiService(ctx context.Context, name string) (*apiService, error) {
	var object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Service               service `json:"service"`
			InsecureSkipTLSVerify bool    `json:"insecureSkipTLSVerify"`
			CABundle              []byte  `json:"caBundle"`
		} `json:"spec"`
	}
	if err := c.get(ctx, &object, apiServicesPath, name); err != nil {
		return nil, err
	}
	left, err := parseService(object.Metadata.Annotations[leftAnnotation])
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", leftAnnotation, err)
	}
	return &apiService{
		name: name, resourceVersion: object.Metadata.ResourceVersion,
		service: object.Spec.Service, left: left,
		insecure: object.Spec.InsecureSkipTLSVerify, bundle: object.Spec.CABundle,
	}, nil
}

func parseService(text string) (service, error) {
	if text == "" {
		return service{}, nil
	}
	at, port, ok := strings.Cut(text, ":")
	namespace, name, ok2 := strings.Cut(at, "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if !ok || !ok2 || err != nil {
		return service{}, fmt.Errorf("%q is not NAMESPACE/NAME:PORT", text)
	}
	return service{namespace, name, int32(number)}, nil
}

func (c *cluster) updateAPIService(ctx context.Context, s *apiService) error {
	// An APIService without a service has no bundle, and insecureSkipTLSVerify excludes a bundle.
	spec := map[string]any{"service": nil, "caBundle": nil, "insecureSkipTLSVerify": nil}
	var left any
	if s.service != (service{}) {
		spec["service"] = map[string]any{"namespace": s.service.Namespace, "name": s.service.Name, "port": s.service.Port}
		spec["caBundle"] = s.bundle
	}
	if s.left != (service{}) {
		left = s.left.String()
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.resourceVersion, "annotations": map[string]any{leftAnnotation: left}},
		"spec":     spec,
	})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return c.client.RESTClient().Patch(types.MergePatchType).AbsPath(apiServicesPath, s.name).
		VersionedParams(&metav1.PatchOptions{FieldManager: fieldManager}, scheme.ParameterCodec).
		SetHeader("Accept", "application/json").Body(patch).Do(ctx).Error()
}

// unwanted reads the workload and, if that is missing or cannot be read, the namespace: the permissions in a
// namespace that is being deleted may already be gone.
func (c *cluster) unwanted(ctx context.Context) (bool, error) {
	if c.place.Workload == "" {
		return false, nil
	}
	var workload struct {
		Metadata metav1.ObjectMeta         `json:"metadata"`
		Spec     struct{ Replicas *int32 } `json:"spec"`
	}
	err := c.get(ctx, &workload, "/apis/apps/v1/namespaces", c.place.Namespace, c.place.Workload)
	switch {
	case err == nil:
		return workload.Metadata.DeletionTimestamp != nil || workload.Spec.Replicas != nil && *workload.Spec.Replicas == 0, nil
	case apierrors.IsNotFound(err):
		return true, nil
	case !apierrors.IsForbidden(err):
		return false, err
	}
	namespace, failure := c.client.Namespaces().Get(ctx, c.place.Namespace, metav1.GetOptions{})
	if failure != nil {
		return false, err
	}
	return namespace.DeletionTimestamp != nil, nil
}
