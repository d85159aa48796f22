package v1alpha

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// JenkinsServiceApproval is a request to the subresource approval of a JenkinsService.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type JenkinsServiceApproval struct {
	metav1.TypeMeta `json:",inline"`

	// decision approves or rejects the JenkinsService.
	// +k8s:required
	Decision Decision `json:"decision"`
}

// Decision is a decision about a JenkinsService.
// +k8s:enum
type Decision string

const (
	// Approve lets the instances run.
	Approve Decision = "Approved"
	// Reject does not let them run.
	Reject Decision = "Rejected"
)
