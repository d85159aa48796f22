package cluster

import (
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// FlowControl queues requests by the cluster's flow schemas and priority levels, nil if that
// is off.
func (h *Cluster) FlowControl() utilflowcontrol.Interface { return h.flowControl }

// FlowControlled says whether the cluster's flow schemas and priority levels are known. As
// long as they are not, requests are only counted.
func (h *Cluster) FlowControlled() bool {
	if h.flowControl == nil {
		return false
	}
	for _, c := range h.contacts {
		if (c.need.GroupVersionResource == requirements.FlowSchemas || c.need.GroupVersionResource == requirements.PriorityLevels) &&
			c.err() != nil {
			return false
		}
	}
	return true
}

// flowTroubled says whether the cluster refuses them.
func (h *Cluster) flowTroubled() bool {
	for _, c := range h.contacts {
		if c.need.GroupVersionResource != requirements.FlowSchemas && c.need.GroupVersionResource != requirements.PriorityLevels {
			continue
		}
		if _, ok := c.err().(*forbiddenError); ok {
			return true
		}
	}
	return false
}
