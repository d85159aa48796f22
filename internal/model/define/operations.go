package define

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Long makes an operation carry out an action. The request is answered with the operation before it has finished.
type Long struct {
	// Run carries out one attempt. The attempt is a value of the server's Operations; define does not use it. The
	// result is encoded as JSON.
	Run func(ctx context.Context, call *Call, attempt any) (any, error)
	// Result is the Go type of the result of Run.
	Result reflect.Type
	// Resumable actions are run again after their process has ended; other actions then fail.
	Resumable bool
	// TTL is how long finished operations are kept: at least a second, or forever if it is negative.
	TTL time.Duration
}

// OperationsKind configures a kind whose objects are operations.
type OperationsKind struct {
	// Mistake is an error in its options, or nil.
	Mistake error
	// New creates the operations of one server.
	New func(env OperationsEnv) (Operations, error)
}

// Operations carry out the long actions of one server.
type Operations interface {
	// Start creates an operation for a call, and waits for its end if the call requests it.
	Start(ctx context.Context, call *Call) (runtime.Object, error)
	// Changed is called for each existing, new or modified operation, and Removed for each deleted one, sequentially.
	// The objects are shared.
	Changed(obj runtime.Object)
	Removed(obj runtime.Object)
	// Run carries out operations until the context ends, and then waits for running ones. It recalls their recorded
	// calls.
	Run(ctx context.Context, recall Recall)
	Metrics() []prometheus.Collector
}

// OperationsEnv is the interface of a server for its Operations.
type OperationsEnv struct {
	// Env is the façade's handle on the server.
	Env any
	// Shared means that other processes may use the same storage.
	Shared bool
}

// Recall recreates a recorded call of an action, with the current object. The returned context is for the call's
// function. The error is ErrUnknownAction if the server does not have the action.
type Recall func(ctx context.Context, recorded Recorded) (context.Context, *Call, error)

// ErrUnknownAction reports a call of an action that the server does not have. A previous version or another replica
// may have had it.
var ErrUnknownAction = errors.New("the server has no such action")

// Recorded is the stored form of a call.
type Recorded struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
	UID             types.UID
	Subresource     string
	User            user.Info
	// Request is the object of the request, as JSON.
	Request []byte
}

// operations checks that the server has exactly one kind of operations if it needs them.
func (c *checker) operations(s *Server) {
	var first *Kind
	for _, k := range s.Kinds() {
		if k == nil || k.Operations == nil {
			continue
		}
		where := "kind " + k.Name + " (" + k.GroupResource().String() + ")"
		if k.Operations.Mistake != nil {
			c.errorf(where, "%v", k.Operations.Mistake)
		}
		switch {
		case first != nil:
			c.errorf(where, "the server already has operations, %s: one kind serves the actions of all groups", first.GroupResource())
		case k.ClusterScoped:
			c.errorf(where, "operations must be namespaced: remove ClusterScoped")
		case k.Source != nil || k.CustomStorage != nil:
			c.errorf(where, "the server must store operations itself: remove Virtual and CustomStorage")
		case len(k.Aliases) > 0:
			c.errorf(where, "operations must be in only one group: remove AlsoServedAs")
		}
		first = k
	}
	for _, k := range s.Kinds() {
		if k == nil || first != nil || k.AliasOf != nil {
			continue
		}
		for _, sub := range k.CustomSubresources {
			if sub != nil && sub.Long != nil {
				c.errorf("kind "+k.Name+" ("+k.GroupResource().String()+"), subresource \""+sub.Name+"\"", "the server has no operations: add "+
					"operation.Kind(API, operation.Options{}) to the kinds of a group")
			}
		}
	}
}
