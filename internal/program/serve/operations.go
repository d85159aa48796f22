package serve

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/model/define"
)

// openOperations sets up the execution of long-running operations, if a kind has any.
func (s *Server) openOperations(env any) error {
	for _, k := range s.definition.Kinds() {
		if k.Operations == nil || k.AliasOf != nil {
			continue
		}
		operations, err := k.Operations.New(define.OperationsEnv{
			Env:    env,
			Shared: s.plan.Resource(k.GroupResource()).Storage.Traits().Remote,
		})
		if err != nil {
			return fmt.Errorf("operations: %w", err)
		}
		observed, err := s.informers.For(k, k.Hub())
		if err != nil {
			return err
		}
		observed.OnChange(operations.Changed, operations.Removed)
		s.operations = operations
	}
	return nil
}

func (s *Server) recordedCall(ctx context.Context, recorded define.Recorded) (context.Context, *define.Call, error) {
	for _, k := range s.kinds {
		if k.Definition.GroupResource() == recorded.Resource.GroupResource() {
			return k.Call(ctx, recorded)
		}
	}
	return nil, nil, fmt.Errorf("%w: there are no %s", define.ErrUnknownAction, recorded.Resource.GroupResource())
}

// startOperations executes operations until the context ends, on each replica. wait blocks until the running
// operations have ended and their results are written, for ShutdownTimeout at most.
func (s *Server) startOperations(ctx context.Context) (wait func()) {
	if s.operations == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.operations.Run(ctx, s.recordedCall)
	}()
	return func() {
		timer := time.NewTimer(s.plan.Options.ShutdownTimeout)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			klog.FromContext(ctx).Error(nil, "Operations have not ended at the end of their context", "timeout", s.plan.Options.ShutdownTimeout)
		}
	}
}
