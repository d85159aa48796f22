package serve

import (
	"context"

	"github.com/annexapi/annex/internal/resources"
)

// open of a control plane lets namespaces take with them what discovery shows: custom resources,
// and those of other servers behind this one, are not in the definition.
func (m *controlPlane) open(ctx context.Context, s *Server) error {
	if err := m.standalone.open(ctx, s); err != nil {
		return err
	}
	discovery, err := resources.NewClient(m.loopback.Config())
	if err != nil {
		return err
	}
	m.content = discovery.Content
	return nil
}
