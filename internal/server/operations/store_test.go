package operations_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/operations"
	"github.com/annexapi/annex/internal/testing/testwait"
	operationv1 "github.com/annexapi/annex/operation/v1"
)

// store is the storage that several replicas share.
type store struct {
	mu       sync.Mutex
	version  int
	stored   map[types.NamespacedName]*operationv1.Operation
	writes   int
	replicas []*replica
}

func newStore() *store { return &store{stored: map[types.NamespacedName]*operationv1.Operation{}} }

// replica is a runner with its connection to the store.
type replica struct {
	store  *store
	clock  *clocktesting.FakeClock
	runner *operations.Runner
	end    context.CancelFunc
	ended  chan struct{}

	mu     sync.Mutex
	cut    bool      // set while disconnected
	failed int       // number of requests that failed while disconnected
	tried  time.Time // start of the last failed write
	hangs  time.Time // its latest end, by the replica's clock at its start
	events chan func()
}

var operationsResource = schema.GroupResource{Group: "shop.example.com", Resource: "operations"}

// put stores an operation and notifies the replicas. The caller holds s.mu.
func (s *store) put(op *operationv1.Operation) *operationv1.Operation {
	s.version++
	stored := op.DeepCopy()
	stored.ResourceVersion = strconv.Itoa(s.version)
	s.stored[types.NamespacedName{Namespace: op.Namespace, Name: op.Name}] = stored
	for _, r := range s.replicas {
		r.notify(func() { r.runner.Changed(stored) })
	}
	return stored.DeepCopy()
}

func (s *store) get(name string) *operationv1.Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op := s.stored[types.NamespacedName{Namespace: "default", Name: name}]; op != nil {
		return op.DeepCopy()
	}
	return nil
}

// add stores a pending operation for an action.
func (s *store) add(name, action string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := &operationv1.Operation{}
	op.Namespace, op.Name, op.UID = "default", name, types.UID(name)
	op.Spec.Action = action
	op.Spec.Target = operationv1.OperationTarget{APIVersion: "shop.example.com/v1", Resource: "widgets", Name: "w"}
	op.Status.Phase = operationv1.OperationPending
	s.put(op)
}

func (s *store) change(name string, change func(*operationv1.Operation)) {
	op := s.get(name)
	change(op)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(op)
}

func (s *store) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func (r *replica) notify(event func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.events <- event
	}
}

var errCut = errors.New("no way to the store")

func (r *replica) connected() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut {
		r.failed++
		return errCut
	}
	return nil
}

func (r *replica) failures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// disconnect cuts the replica off. To the others this looks like its death.
func (r *replica) disconnect(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
}

// Create implements operations.Client.
func (r *replica) Create(_ context.Context, op *operationv1.Operation, _ bool) (*operationv1.Operation, error) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	op.Name = op.GenerateName
	return r.store.put(op), nil
}

// Get implements operations.Client.
func (r *replica) Get(_ context.Context, _, name string) (*operationv1.Operation, error) {
	if err := r.connected(); err != nil {
		return nil, err
	}
	if op := r.store.get(name); op != nil {
		return op, nil
	}
	return nil, apierrors.NewNotFound(operationsResource, name)
}

// UpdateStatus implements operations.Client.
func (r *replica) UpdateStatus(ctx context.Context, op *operationv1.Operation) (*operationv1.Operation, error) {
	if err := r.connected(); err != nil {
		if deadline, ok := ctx.Deadline(); ok && op.Status.RenewTime != nil {
			r.mu.Lock()
			r.tried = op.Status.RenewTime.Time
			r.hangs = r.tried.Add(time.Until(deadline))
			r.mu.Unlock()
		}
		return nil, err
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	stored := r.store.stored[types.NamespacedName{Namespace: op.Namespace, Name: op.Name}]
	switch {
	case stored == nil:
		return nil, apierrors.NewNotFound(operationsResource, op.Name)
	case stored.ResourceVersion != op.ResourceVersion:
		return nil, apierrors.NewConflict(operationsResource, op.Name, errors.New("it has changed"))
	}
	next := stored.DeepCopy()
	op.Status.DeepCopyInto(&next.Status)
	r.store.writes++
	return r.store.put(next), nil
}

// Delete implements operations.Client.
func (r *replica) Delete(_ context.Context, op *operationv1.Operation) error {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	delete(r.store.stored, types.NamespacedName{Namespace: op.Namespace, Name: op.Name})
	for _, other := range r.store.replicas {
		other.notify(func() { other.runner.Removed(op) })
	}
	return nil
}

const lease = 15 * time.Second

// action is an action of a replica.
type action struct {
	resumable bool
	run       func(ctx context.Context, attempt *operations.Attempt) (any, error)
}

// start runs a replica until the end of the test.
func (s *store) start(
	t testing.TB,
	clock *clocktesting.FakeClock,
	actions map[string]action,
	configure ...func(*operations.Config),
) *replica {
	t.Helper()
	r := &replica{store: s, clock: clock, events: make(chan func(), 10000), ended: make(chan struct{})}
	config := operations.Config{
		Client: r, Clock: clock, Identity: fmt.Sprint("replica-", len(s.replicas)), Lease: lease, Drain: 5 * time.Second, Shared: true,
	}
	for _, c := range configure {
		c(&config)
	}
	recall := func(ctx context.Context, recorded define.Recorded) (context.Context, *define.Call, error) {
		a, ok := actions[recorded.Subresource]
		if !ok {
			return nil, nil, fmt.Errorf("%w: %s", define.ErrUnknownAction, recorded.Subresource)
		}
		long := &define.Long{Resumable: a.resumable, Run: func(ctx context.Context, _ *define.Call, attempt any) (any, error) {
			return a.run(ctx, attempt.(*operations.Attempt))
		}}
		return ctx, &define.Call{Subresource: &define.Subresource{Name: recorded.Subresource, Long: long}, User: &user.DefaultInfo{}}, nil
	}
	r.runner = operations.NewRunner(config)
	ctx, cancel := context.WithCancel(context.Background())
	r.end = cancel
	s.mu.Lock()
	s.replicas = append(s.replicas, r)
	for op := range maps.Values(s.stored) {
		r.notify(func() { r.runner.Changed(op) })
	}
	s.mu.Unlock()
	go func() {
		for {
			select {
			case event := <-r.events:
				event()
			case <-r.ended:
				return
			}
		}
	}()
	go func() {
		defer close(r.ended)
		r.runner.Run(ctx, recall)
	}()
	t.Cleanup(func() {
		cancel()
		testwait.Until(t, "the runner ends", func() bool {
			select {
			case <-r.ended:
				return true
			default:
				clock.Step(time.Second)
				return false
			}
		})
	})
	return r
}

// becomes waits for a phase without advancing the clock.
func (s *store) becomes(t *testing.T, name string, phase operationv1.OperationPhase) *operationv1.Operation {
	t.Helper()
	var op *operationv1.Operation
	testwait.Until(t, name+" becomes "+string(phase), func() bool {
		op = s.get(name)
		return op.Status.Phase == phase
	})
	return op
}
