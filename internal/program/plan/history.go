package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/store"
)

// Retention returns how long the revisions of a resource's objects are kept for clients.
func (p *Plan) Retention(resource schema.GroupResource) store.Retention {
	if h, ok := p.Options.HistoryOf[resource]; ok {
		return store.Retention{Age: h.Age, Revisions: h.Revisions, Bytes: h.Bytes}
	}
	for _, k := range p.Definition.Kinds() {
		if k.GroupResource() != resource {
			continue
		}
		if h := k.Primary().History; h != nil {
			return store.Retention{Age: h.Age, Revisions: h.Revisions, Bytes: h.Bytes}
		}
	}
	return store.Retention{}
}

// checkHistory checks the options for the history.
func (p *Plan) checkHistory() error {
	for _, resource := range sorted(p.Options.HistoryOf) {
		if err := p.Options.HistoryOf[resource].Check(); err != nil {
			return fmt.Errorf("Options.HistoryOf %s: %w", resource, err)
		}
	}
	return nil
}
