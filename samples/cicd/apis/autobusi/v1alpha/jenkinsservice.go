package v1alpha

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JenkinsService is a Jenkins of a user's own: a number of instances, which run once
// another user has approved of them.
type JenkinsService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   JenkinsServiceSpec   `json:"spec,omitempty"`
	Status JenkinsServiceStatus `json:"status,omitempty"`
}

// JenkinsServiceSpec is the desired state of a JenkinsService. Users write it.
type JenkinsServiceSpec struct {
	// instanceamount is how many instances there shall be.
	// +k8s:required
	// +k8s:minimum=1
	// +k8s:maximum=10
	InstanceAmount int32 `json:"instanceamount"`

	// instancecpu is how many processors each instance shall have.
	// +k8s:required
	// +k8s:minimum=1
	// +k8s:maximum=64
	InstanceCPU int32 `json:"instancecpu"`
}

// JenkinsServiceStatus is what a JenkinsService is.
type JenkinsServiceStatus struct {
	// approvalstatus is what was decided about the spec, at the subresource approval. It
	// is Pending again when the spec changes.
	// +k8s:optional
	ApprovalStatus ApprovalStatus `json:"approvalstatus,omitempty"`

	// instances are those that there are. The controller writes them, at /status.
	// +k8s:optional
	// +listType=atomic
	Instances []JenkinsInstance `json:"instances,omitempty"`
}

// ApprovalStatus is how far the approval of a JenkinsService has come.
// +k8s:enum
type ApprovalStatus string

const (
	// Pending says that the approval is not decided yet.
	Pending ApprovalStatus = "Pending"
	// Approved says that the instances may run.
	Approved ApprovalStatus = "Approved"
	// Rejected says that they may not.
	Rejected ApprovalStatus = "Rejected"
)

// JenkinsInstance is one instance of a JenkinsService.
type JenkinsInstance struct {
	// cpu is how many processors the instance has.
	CPU int32 `json:"cpu"`
	// running says whether it runs.
	Running bool `json:"running"`
}

// JenkinsServiceList is a list of JenkinsService objects.
type JenkinsServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []JenkinsService `json:"items"`
}
