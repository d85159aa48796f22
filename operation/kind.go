package operation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/operations"
	operationv1 "github.com/annexapi/annex/operation/v1"
)

// Options set how a server carries out operations. The zero value suits most servers.
type Options struct {
	// LeaseDuration is the time after which a replica takes over the operations of a replica that writes no more. 0
	// means 15 seconds; the minimum is 3 seconds. A replica stops an operation that it could not write for two thirds
	// of this time. Servers with a storage for themselves do not wait for it.
	LeaseDuration time.Duration
	// DrainTimeout is the time that actions have to end when the server stops. 0 means 5 seconds; a negative value
	// does not wait.
	DrainTimeout time.Duration
	// MaxRunning bounds the operations that a process carries out at a time; further ones wait, or run in other
	// replicas. 0 means 100; a negative number sets no limit.
	MaxRunning int
	// Clock is for tests, which pass a clock of k8s.io/utils/clock/testing. Nil is the machine's clock.
	Clock clock.WithTicker
}

// Kind declares the kind Operation, served as operations in the group version of an API package; facts is the
// function API that annex generate wrote into that package. A server has one Kind, for the actions of all its groups.
// It must be neither virtual nor cluster-scoped.
//
// Only the server creates operations. Callers may change only the fields cancel and ttlSecondsAfterFinished of an
// existing operation. The subresources cancel and retry take an empty OperationCancellation and OperationRetry, for
// which callers need the verb create on operations/cancel and operations/retry. Callers who may read operations can
// read the requests and results of all other callers.
func Kind(facts func() api.Facts, options Options) *annex.KindBuilder[operationv1.Operation] {
	var rebased func() api.Facts
	if facts != nil {
		rebased = func() api.Facts { return factsIn(facts().GroupVersion) }
	}
	kind := annex.KindOf[operationv1.Operation, operationv1.OperationList](operations.Resource, rebased).
		PrepareForCreate(func(_ context.Context, op *operationv1.Operation) {
			op.Status = operationv1.OperationStatus{Phase: operationv1.OperationPending}
		}).
		Validate(validate).
		ValidateUpdate(validateUpdate).
		Admit(admitCreate).
		Subresources(annex.Action("cancel", cancel), annex.Action("retry", retry)).
		SelectableField("status.phase", func(op *operationv1.Operation) string { return string(op.Status.Phase) }).
		SelectableField("spec.action", func(op *operationv1.Operation) string { return op.Spec.Action }).
		SelectableField("spec.target.name", func(op *operationv1.Operation) string { return op.Spec.Target.Name }).
		Columns(
			annex.Column[operationv1.Operation]{Name: "Action", Value: func(op *operationv1.Operation) any { return op.Spec.Action }},
			annex.Column[operationv1.Operation]{Name: "Target", Value: func(op *operationv1.Operation) any {
				return op.Spec.Target.Resource + "/" + op.Spec.Target.Name
			}},
			annex.Column[operationv1.Operation]{Name: "Phase", Value: func(op *operationv1.Operation) any { return string(op.Status.Phase) }},
			annex.Column[operationv1.Operation]{Name: "Progress", Value: progressColumn},
			annex.Column[operationv1.Operation]{
				Name:  "Message",
				Wide:  true,
				Value: func(op *operationv1.Operation) any { return op.Status.Message },
			},
		)
	define.In(kind).Operations = &define.OperationsKind{
		Mistake: options.check(),
		New:     func(env define.OperationsEnv) (define.Operations, error) { return open(facts, options, env) },
	}
	return kind
}

// factsIn returns the facts about the types in another group version than their generated one.
func factsIn(gv schema.GroupVersion) api.Facts {
	facts := operationv1.API()
	generated := facts.GroupVersion
	add := facts.AddToScheme
	facts.GroupVersion = gv
	facts.AddToScheme = func(scheme *runtime.Scheme) error {
		own := runtime.NewScheme()
		if err := add(own); err != nil {
			return err
		}
		home := reflect.TypeFor[operationv1.Operation]().PkgPath()
		for kind, t := range own.KnownTypes(generated) {
			if t.PkgPath() == home {
				scheme.AddKnownTypeWithName(gv.WithKind(kind), reflect.New(t).Interface().(runtime.Object))
			}
		}
		metav1.AddToGroupVersion(scheme, gv)
		return nil
	}
	return facts
}

// minLease leaves time for three writes.
const minLease = 3 * time.Second

func (o Options) check() error {
	if o.LeaseDuration != 0 && o.LeaseDuration < minLease {
		return fmt.Errorf("Options.LeaseDuration %s is less than %s", o.LeaseDuration, minLease)
	}
	return nil
}

// open creates the runner of one server.
func open(facts func() api.Facts, o Options, env define.OperationsEnv) (define.Operations, error) {
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 15 * time.Second
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 5 * time.Second
	}
	if o.MaxRunning == 0 {
		o.MaxRunning = 100
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	client, err := operations.NewClient(env.Env.(*annex.Env).ClientConfig(), facts().GroupVersion)
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the name of the process: %w", err)
	}
	return operations.NewRunner(operations.Config{
		Client:     client,
		Clock:      o.Clock,
		Identity:   hostname + "_" + uuid.NewString(),
		Lease:      o.LeaseDuration,
		Drain:      max(o.DrainTimeout, 0),
		MaxRunning: max(o.MaxRunning, 0),
		Shared:     env.Shared,
	}), nil
}

func progressColumn(op *operationv1.Operation) any {
	p := op.Status.Progress
	switch {
	case p == nil:
		return nil
	case p.Total > 0:
		return fmt.Sprintf("%d%%", p.Percent)
	case p.Unit != "":
		return fmt.Sprintf("%d %s", p.Done, p.Unit)
	}
	return fmt.Sprint(p.Done)
}

func validate(_ context.Context, op *operationv1.Operation) field.ErrorList {
	if ttl := op.Spec.TTLSecondsAfterFinished; ttl != nil && *ttl < 0 {
		return field.ErrorList{
			field.Invalid(
				field.NewPath("spec", "ttlSecondsAfterFinished"),
				*ttl,
				"must be greater than or equal to 0; to keep the operation until it is deleted, omit the field",
			),
		}
	}
	return nil
}

func validateUpdate(_ context.Context, op, old *operationv1.Operation) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if old.Spec.Cancel && !op.Spec.Cancel && !old.Status.Phase.Finished() {
		errs = append(
			errs,
			field.Invalid(spec.Child("cancel"), false, "a cancellation cannot be undone; to run the operation again, retry it after its end"),
		)
	}
	was, is := old.Spec.DeepCopy(), op.Spec.DeepCopy()
	was.Cancel, was.TTLSecondsAfterFinished = is.Cancel, is.TTLSecondsAfterFinished
	if !equality.Semantic.DeepEqual(was, is) {
		errs = append(errs, field.Forbidden(spec, "only cancel and ttlSecondsAfterFinished may be changed"))
	}
	return errs
}

// admitCreate lets only the server create operations.
func admitCreate(_ context.Context, r annex.Request[operationv1.Operation]) error {
	server := r.User != nil && r.User.GetName() == user.APIServerUser && slices.Contains(r.User.GetGroups(), user.SystemPrivilegedGroup)
	if r.Operation == annex.Create && !server {
		return errors.New("operations are created by actions: send a request to the action's subresource")
	}
	return nil
}

func cancel(
	ctx context.Context,
	r *annex.ActionRequest[operationv1.Operation, operationv1.OperationCancellation],
) (*operationv1.Operation, error) {
	return r.Update(ctx, func(op *operationv1.Operation) error {
		if op.Status.Phase.Finished() {
			return conflict(r.Resource, op, "the operation has ended already: "+string(op.Status.Phase))
		}
		op.Spec.Cancel = true
		return nil
	})
}

func retry(
	ctx context.Context,
	r *annex.ActionRequest[operationv1.Operation, operationv1.OperationRetry],
) (*operationv1.Operation, error) {
	retriable := func(op *operationv1.Operation) error {
		if op.Status.Phase != operationv1.OperationFailed && op.Status.Phase != operationv1.OperationCancelled {
			return conflict(r.Resource, op, "only a failed or cancelled operation can be retried, and this one is "+string(op.Status.Phase))
		}
		return nil
	}
	// The spec changes first, so that a pending operation is never found cancelled.
	if _, err := r.Update(ctx, func(op *operationv1.Operation) error {
		op.Spec.Cancel = false
		return retriable(op)
	}); err != nil {
		return nil, err
	}
	return r.UpdateStatus(ctx, func(op *operationv1.Operation) error {
		if err := retriable(op); err != nil {
			return err
		}
		op.Status.Phase, op.Status.Message, op.Status.Interruptions = operationv1.OperationPending, "", 0
		op.Status.Error, op.Status.Result, op.Status.CompletionTime = nil, nil, nil
		return nil
	})
}

func conflict(resource schema.GroupVersionResource, op *operationv1.Operation, why string) error {
	return apierrors.NewConflict(resource.GroupResource(), op.Name, errors.New(why))
}
