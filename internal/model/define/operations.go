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

// Long makes an action one that an operation carries out, after the request has been answered
// with the operation.
type Long struct {
	// Run does the work of one attempt. The attempt is that of the server's Operations; define
	// does not look inside. What it returns is encoded as JSON.
	Run func(ctx context.Context, call *Call, attempt any) (any, error)
	// Result is the Go type of what Run returns.
	Result reflect.Type
	// Resumable actions are run again when the process that ran them has ended; others fail.
	Resumable bool
	// TTL is how long operations are kept after they have finished: at least a second, or
	// negative for ever.
	TTL time.Duration
}

// OperationsKind is what a kind has whose objects are operations.
type OperationsKind struct {
	// Mistake is what is wrong with its options; nil if nothing is.
	Mistake error
	// New makes the operations of one server.
	New func(env OperationsEnv) (Operations, error)
}

// Operations carry out the long actions of one server.
type Operations interface {
	// Start makes an operation of a call, and waits for its end if the call says so.
	Start(ctx context.Context, call *Call) (runtime.Object, error)
	// Changed is called with every operation that there is, is new or has changed, and Removed
	// with one that is gone, one after the other. The objects are shared.
	Changed(obj runtime.Object)
	Removed(obj runtime.Object)
	// Run carries operations out until the context ends, and then lets those that run end.
	Run(ctx context.Context)
	Metrics() []prometheus.Collector
}

// OperationsEnv is what Operations get of their server.
type OperationsEnv struct {
	// Env is the façade's handle on the server.
	Env any
	// Shared says that other processes may have the same storage open.
	Shared bool
	// Call makes the call of an action as it was recorded, with the object as it is now. The
	// context is for the call's function. The error is ErrUnknownAction if the server has no such action.
	Call func(ctx context.Context, recorded Recorded) (context.Context, *Call, error)
}

// ErrUnknownAction is that of a call of an action that the server does not have: it had it once, or
// another replica has.
var ErrUnknownAction = errors.New("the server knows no such action")

// Recorded is a call as an operation keeps it.
type Recorded struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
	UID             types.UID
	Subresource     string
	User            user.Info
	// Request is the object that was sent, as JSON.
	Request []byte
}

// operations checks that the server has operations once if it needs them.
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
			c.errorf(where, "the server has operations already, %s: one kind is for the actions of all groups", first.GroupResource())
		case k.ClusterScoped:
			c.errorf(where, "operations are in namespaces: leave ClusterScoped out")
		case k.Source != nil || k.CustomStorage != nil:
			c.errorf(where, "the server keeps its operations itself: leave Virtual and CustomStorage out")
		case len(k.Aliases) > 0:
			c.errorf(where, "operations are in one group: leave AlsoServedAs out")
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
