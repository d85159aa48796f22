package v1alpha

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JenkinsService is a user's own Jenkins: a number of instances, which run after another user has approved them.
type JenkinsService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   JenkinsServiceSpec   `json:"spec,omitempty"`
	Status JenkinsServiceStatus `json:"status,omitempty"`
}

// JenkinsServiceSpec is the desired state of a JenkinsService. Users write it.
type JenkinsServiceSpec struct {
	// instanceamount is the desired number of instances.
	// +k8s:required
	// +k8s:minimum=1
	// +k8s:maximum=10
	InstanceAmount int32 `json:"instanceamount"`

	// instancecpu is the number of processors of each instance.
	// +k8s:required
	// +k8s:minimum=1
	// +k8s:maximum=64
	InstanceCPU int32 `json:"instancecpu"`
}

// JenkinsServiceStatus is the observed state of a JenkinsService.
type JenkinsServiceStatus struct {
	// approvalstatus is the decision about the spec, made at the subresource approval. A change of the spec resets it
	// to Pending.
	// +k8s:optional
	ApprovalStatus ApprovalStatus `json:"approvalstatus,omitempty"`

	// instances are the existing instances. The controller writes them, at /status.
	// +k8s:optional
	// +listType=atomic
	Instances []JenkinsInstance `json:"instances,omitempty"`
}

// ApprovalStatus is the state of the approval of a JenkinsService.
// +k8s:enum
type ApprovalStatus string

const (
	// Pending means that the approval is not decided yet.
	Pending ApprovalStatus = "Pending"
	// Approved means that the instances may run.
	Approved ApprovalStatus = "Approved"
	// Rejected means that the instances may not run.
	Rejected ApprovalStatus = "Rejected"
)

// JenkinsInstance is one instance of a JenkinsService.
type JenkinsInstance struct {
	// cpu is the number of processors of the instance.
	CPU int32 `json:"cpu"`
	// running reports whether the instance runs.
	Running bool `json:"running"`
}

// JenkinsServiceList is a list of JenkinsService objects.
type JenkinsServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []JenkinsService `json:"items"`
}
