package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Operation is an action on an object that runs on after its request has been answered. The server creates it when an
// action is requested, and deletes it some time after it has finished.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Operation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the request.
	Spec OperationSpec `json:"spec,omitempty"`
	// status holds the progress and the result. Only the server writes it.
	Status OperationStatus `json:"status,omitempty"`
}

// OperationList is a list of operations.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type OperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Operation `json:"items"`
}

// OperationSpec is the request of an operation. The server sets all fields; only cancel and ttlSecondsAfterFinished
// may change later.
type OperationSpec struct {
	// action is the requested subresource.
	Action string `json:"action,omitempty"`
	// target is the object on which the action runs.
	Target OperationTarget `json:"target,omitempty"`
	// user is the caller who requested the action.
	User OperationUser `json:"user,omitempty"`
	// request is the request body, with defaults filled in.
	// +optional
	Request *runtime.RawExtension `json:"request,omitempty"`
	// cancel asks the server to end the operation. Only a retry sets it back to false.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// ttlSecondsAfterFinished is how long the operation is kept after it has finished. 0 deletes it at once; without
	// a value, it is kept until it is deleted.
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// OperationTarget is the object on which an action runs.
type OperationTarget struct {
	// apiVersion is the group version of the request.
	APIVersion string `json:"apiVersion,omitempty"`
	// kind is the object's kind in that version.
	Kind string `json:"kind,omitempty"`
	// resource is the name of the object's resource.
	Resource string `json:"resource,omitempty"`
	// namespace is empty for objects without a namespace.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name is the object's name.
	Name string `json:"name,omitempty"`
	// uid distinguishes the object from later objects of the same name.
	UID types.UID `json:"uid,omitempty"`
}

// OperationUser is the caller who requested an operation.
type OperationUser struct {
	// username is the caller's name.
	Username string `json:"username,omitempty"`
	// uid is the caller's UID, if there is one.
	// +optional
	UID string `json:"uid,omitempty"`
	// groups are the caller's groups at the time of the request.
	// +optional
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
}

// OperationPhase is the state of an operation.
type OperationPhase string

// The phases of an operation.
const (
	// OperationPending operations wait for a server to carry them out.
	OperationPending OperationPhase = "Pending"
	// OperationRunning operations are carried out by the server in status.holder.
	OperationRunning OperationPhase = "Running"
	// OperationSucceeded operations have finished; they may have a result.
	OperationSucceeded OperationPhase = "Succeeded"
	// OperationFailed operations have finished with an error.
	OperationFailed OperationPhase = "Failed"
	// OperationCancelled operations have ended on request.
	OperationCancelled OperationPhase = "Cancelled"
)

// Finished reports whether an operation in this phase has ended, so that only a retry changes it.
func (p OperationPhase) Finished() bool {
	return p == OperationSucceeded || p == OperationFailed || p == OperationCancelled
}

// OperationStatus is the state of an operation.
type OperationStatus struct {
	// phase is Pending, Running, Succeeded, Failed or Cancelled. The last three are final, except that a failed or
	// cancelled operation may be retried.
	// +optional
	Phase OperationPhase `json:"phase,omitempty"`
	// progress is how much of the work is done, if the action reports it.
	// +optional
	Progress *OperationProgress `json:"progress,omitempty"`
	// message is the current step, or the reason for the end, for people.
	// +optional
	Message string `json:"message,omitempty"`
	// log is the end of the action's log, over all attempts: 16 KiB at most.
	// +optional
	Log string `json:"log,omitempty"`
	// result is the result of the action, if the operation succeeded.
	// +optional
	Result *runtime.RawExtension `json:"result,omitempty"`
	// error is the reason why an operation failed.
	// +optional
	Error *metav1.Status `json:"error,omitempty"`
	// checkpoint is saved by the action, and the next attempt continues from it.
	// +optional
	Checkpoint *runtime.RawExtension `json:"checkpoint,omitempty"`
	// attempts counts how often the operation has begun to run.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// interruptions counts the processes in a row that ended, or lost the operation, while they ran it, since the
	// action saved its last new checkpoint.
	// +optional
	Interruptions int32 `json:"interruptions,omitempty"`
	// startTime is when the latest attempt began.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// completionTime is when the operation finished.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// holder is the process that carries out the operation.
	// +optional
	Holder string `json:"holder,omitempty"`
	// renewTime is when the holder last confirmed that it carries out the operation, by its own clock.
	// +optional
	RenewTime *metav1.MicroTime `json:"renewTime,omitempty"`
}

// OperationProgress is how much of the work is done.
type OperationProgress struct {
	// percent is the share of the total that is done, 0 to 100; 0 if there is no total.
	Percent int32 `json:"percent"`
	// done is the number of units that are done.
	Done int64 `json:"done"`
	// total is the number of units, 0 if unknown.
	// +optional
	Total int64 `json:"total,omitempty"`
	// unit is the unit that done and total count, such as rows.
	// +optional
	Unit string `json:"unit,omitempty"`
}

// OperationCancellation asks for the end of an operation. Clients send it to the operation's subresource cancel.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type OperationCancellation struct {
	metav1.TypeMeta `json:",inline"`
}

// OperationRetry asks for another attempt of an operation that has failed or was cancelled. Clients send it to the
// operation's subresource retry.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type OperationRetry struct {
	metav1.TypeMeta `json:",inline"`
}
