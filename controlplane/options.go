package controlplane

import (
	"slices"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
)

// With implements definition.ControlPlane.
func (p plane) With(o define.PlaneOptions) (definition.ControlPlane, error) {
	if o.EventTTL != 0 {
		p.kinds.EventTTL = o.EventTTL
	}
	p.crds = slices.Concat(p.crds, o.CRDs)
	if o.Workloads != nil {
		if *o.Workloads && p.extension == nil {
			return nil, define.ErrNoExtension
		}
		p.extends = *o.Workloads && p.extension != nil
	}
	p.kinds.RuntimeConfig = o.RuntimeConfig
	if p.extends {
		extension, err := p.extension.With(o.RuntimeConfig)
		if err != nil {
			return nil, err
		}
		p.extension, p.kinds.Elsewhere = extension, extension.Serves
	}
	if _, err := p.kinds.Groups(); err != nil {
		return nil, err
	}
	return p, nil
}
