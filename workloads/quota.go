package workloads

import (
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/utils/clock"
)

// QuotaEvaluators implements definition.Extension. Resource claims are charged by device class. They are not charged by the
// names of extended resources: for these, the evaluator needs informers of all pods, claims and classes.
func (extension) QuotaEvaluators() []quota.Evaluator {
	noNames := extendedresourcecache.NewExtendedResourceCache(klog.Background())
	return []quota.Evaluator{
		core.NewPodEvaluator(nil, clock.RealClock{}), core.NewServiceEvaluator(nil), core.NewPersistentVolumeClaimEvaluator(nil),
		core.NewResourceClaimEvaluator(nil, noNames, nil, nil),
	}
}
