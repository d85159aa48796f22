package operations

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	operationv1 "github.com/annexapi/annex/operation/v1"
)

// Client reads and writes operations. Its errors are API statuses.
type Client interface {
	// Create stores an operation with a generated name. A dry run only validates it.
	Create(ctx context.Context, op *operationv1.Operation, dryRun bool) (*operationv1.Operation, error)
	Get(ctx context.Context, namespace, name string) (*operationv1.Operation, error)
	// UpdateStatus returns a conflict if the stored operation has another resource version.
	UpdateStatus(ctx context.Context, op *operationv1.Operation) (*operationv1.Operation, error)
	// Delete returns a conflict if the stored operation has another UID or resource version.
	Delete(ctx context.Context, op *operationv1.Operation) error
}

// Resource is the resource of operations.
const Resource = "operations"

// NewClient returns a client of the operations of a server in a group version.
func NewClient(config *rest.Config, gv schema.GroupVersion) (Client, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, &operationv1.Operation{}, &operationv1.OperationList{})
	metav1.AddToGroupVersion(scheme, gv)
	config = rest.CopyConfig(config)
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1
	config.UserAgent = "annex-operations"
	rest, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", gv.WithResource(Resource), err)
	}
	return restClient{rest, runtime.NewParameterCodec(scheme)}, nil
}

type restClient struct {
	rest       *rest.RESTClient
	parameters runtime.ParameterCodec
}

var _ Client = restClient{}

// Create implements Client.
func (c restClient) Create(ctx context.Context, op *operationv1.Operation, dryRun bool) (*operationv1.Operation, error) {
	options := &metav1.CreateOptions{}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	stored := &operationv1.Operation{}
	err := c.rest.Post().Namespace(op.Namespace).Resource(Resource).VersionedParams(options, c.parameters).Body(op).Do(ctx).Into(stored)
	return stored, err
}

// Get implements Client.
func (c restClient) Get(ctx context.Context, namespace, name string) (*operationv1.Operation, error) {
	stored := &operationv1.Operation{}
	err := c.rest.Get().Namespace(namespace).Resource(Resource).Name(name).Do(ctx).Into(stored)
	return stored, err
}

// UpdateStatus implements Client.
func (c restClient) UpdateStatus(ctx context.Context, op *operationv1.Operation) (*operationv1.Operation, error) {
	stored := &operationv1.Operation{}
	err := c.rest.Put().Namespace(op.Namespace).Resource(Resource).Name(op.Name).SubResource("status").Body(op).Do(ctx).Into(stored)
	return stored, err
}

// Delete implements Client.
func (c restClient) Delete(ctx context.Context, op *operationv1.Operation) error {
	background := metav1.DeletePropagationBackground
	options := &metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &op.UID, ResourceVersion: &op.ResourceVersion},
		PropagationPolicy: &background,
	}
	return c.rest.Delete().Namespace(op.Namespace).Resource(Resource).Name(op.Name).Body(options).Do(ctx).Error()
}
