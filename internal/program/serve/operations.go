package serve

import (
	"fmt"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/plan"
)

// newOperations sets up the execution of long-running operations; nil if no kind has any.
func newOperations(p *plan.Plan, informers *informer.Set, env any) (define.Operations, error) {
	var all define.Operations
	for _, k := range p.Definition.Kinds() {
		if k.Operations == nil || k.AliasOf != nil {
			continue
		}
		operations, err := k.Operations.New(define.OperationsEnv{
			Env:    env,
			Shared: p.Resource(k.GroupResource()).Storage.Traits().Remote,
		})
		if err != nil {
			return nil, fmt.Errorf("operations: %w", err)
		}
		observed, err := informers.For(k, k.Hub())
		if err != nil {
			return nil, err
		}
		observed.OnChange(operations.Changed, operations.Removed)
		all = operations
	}
	return all, nil
}
