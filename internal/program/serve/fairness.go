package serve

import (
	"context"

	"github.com/annexapi/annex/internal/standalone/fairness"
)

// openFairness sets up request queues by the server's own priority levels, if the plan enables them.
func (m *standalone) openFairness(s *Server) (err error) {
	inFlight := m.plan.InFlight()
	if inFlight == 0 {
		return nil
	}
	if m.fairness, err = fairness.NewKeeper(m.loopback.Config(), inFlight); err != nil {
		return err
	}
	s.onClose(func() error { m.fairness.Close(); return nil })
	return nil
}

// bootstrap creates the roles, and the priority levels if enabled, that every server has.
func (m *standalone) bootstrap(ctx context.Context) error {
	if err := m.rights.Bootstrap(ctx); err != nil || m.fairness == nil {
		return err
	}
	return m.fairness.Bootstrap(ctx)
}
