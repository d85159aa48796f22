package cluster

import (
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// FlowControl returns the flow control by the cluster's flow schemas and priority levels; nil if it is off.
func (h *Cluster) FlowControl() utilflowcontrol.Interface { return h.flowControl }

// FlowControlled reports whether the cluster's flow schemas and priority levels are known. Until then, requests are
// only counted.
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

// flowTroubled reports whether the cluster forbids reading flow schemas or priority levels.
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
