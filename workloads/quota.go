package workloads

import (
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/utils/clock"
)

// QuotaEvaluators implements definition.Extension. Devices of resource claims are not charged: their evaluator needs
// informers of all pods, claims and classes.
func (extension) QuotaEvaluators() []quota.Evaluator {
	return []quota.Evaluator{
		core.NewPodEvaluator(nil, clock.RealClock{}), core.NewServiceEvaluator(nil), core.NewPersistentVolumeClaimEvaluator(nil),
	}
}
