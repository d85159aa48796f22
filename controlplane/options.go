package controlplane

import (
	"slices"

	"github.com/annexapi/annex/internal/model/define"
)

// With implements define.ControlPlane.
func (p plane) With(o define.PlaneOptions) (define.ControlPlane, error) {
	if o.EventTTL != 0 {
		p.kinds.EventTTL = o.EventTTL
	}
	p.crds = slices.Concat(p.crds, o.CRDs)
	p.kinds.RuntimeConfig = o.RuntimeConfig
	if err := p.Check(); err != nil {
		return nil, err
	}
	return p, nil
}
