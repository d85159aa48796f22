package plan

import (
	"errors"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
)

// completeFairness decides whether priority and fairness is enabled, and returns the first mistake.
func (p *Plan) completeFairness() error {
	o := &p.Options
	o.PriorityAndFairness = new(isFair(p.Definition, o))
	if s := o.Serving; *o.PriorityAndFairness && s.MaxRequestsInFlight < 0 && s.MaxMutatingRequestsInFlight < 0 {
		return errors.New("Options.Serving.MaxRequestsInFlight and Options.Serving.MaxMutatingRequestsInFlight have no limit, but " +
			"priority levels divide their sum: set one of them, or disable Options.PriorityAndFairness")
	}
	return nil
}

// InFlight returns the number of concurrent requests that the priority levels share; 0 without priority and
// fairness.
func (p *Plan) InFlight() int {
	if !isFair(p.Definition, &p.Options) {
		return 0
	}
	s := p.Options.Serving
	return max(0, s.MaxRequestsInFlight) + max(0, s.MaxMutatingRequestsInFlight)
}

// hasOwnLevels reports whether the definition serves priority levels as ordinary kinds. A server with priority and
// fairness rejects that.
func hasOwnLevels(definition *define.Server) bool {
	return slices.ContainsFunc(definition.Kinds(), func(k *define.Kind) bool { return k.Group == flowcontrolv1.GroupName && !k.BuiltIn })
}

// isFair returns the option, or its default: enabled for an aggregated server and for a control plane.
func isFair(definition *define.Server, o *config.Options) bool {
	if o.PriorityAndFairness != nil {
		return *o.PriorityAndFairness
	}
	return o.Aggregated || definition.Plane != nil
}
