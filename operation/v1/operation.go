package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Operation is an action on an object that is carried out after its request has been
// answered. The server makes it when an action is requested, and deletes it some time after it
// has finished.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Operation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what was requested.
	Spec OperationSpec `json:"spec,omitempty"`
	// status is what has become of it. Only the server writes it.
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

// OperationSpec is what was requested. All of it but cancel and ttlSecondsAfterFinished is the
// server's, and does not change.
type OperationSpec struct {
	// action is the subresource that was requested.
	Action string `json:"action,omitempty"`
	// target is the object that the action is on.
	Target OperationTarget `json:"target,omitempty"`
	// user is who requested it.
	User OperationUser `json:"user,omitempty"`
	// request is the object that was sent, with defaults filled in.
	// +optional
	Request *runtime.RawExtension `json:"request,omitempty"`
	// cancel asks the server to end the operation. It does not become false again but by a
	// retry.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// ttlSecondsAfterFinished is how long the operation is kept after it has finished. 0 is not
	// at all, and without it the operation is kept until it is deleted.
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// OperationTarget is the object that an action is on.
type OperationTarget struct {
	// apiVersion is the version that was spoken in the request.
	APIVersion string `json:"apiVersion,omitempty"`
	// kind is the object's kind in that version.
	Kind string `json:"kind,omitempty"`
	// resource is the object's resource.
	Resource string `json:"resource,omitempty"`
	// namespace is empty for objects that are in none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name is the object's name.
	Name string `json:"name,omitempty"`
	// uid tells the object from later ones of the same name.
	UID types.UID `json:"uid,omitempty"`
}

// OperationUser is who requested an operation.
type OperationUser struct {
	// username is the caller's name.
	Username string `json:"username,omitempty"`
	// uid is the caller's, if there is one.
	// +optional
	UID string `json:"uid,omitempty"`
	// groups are those that the caller was in.
	// +optional
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
}

// OperationPhase is what an operation is doing.
type OperationPhase string

// The phases of an operation.
const (
	// OperationPending operations wait for a server that carries them out.
	OperationPending OperationPhase = "Pending"
	// OperationRunning operations are carried out by the server that is their holder.
	OperationRunning OperationPhase = "Running"
	// OperationSucceeded operations have finished; they may have a result.
	OperationSucceeded OperationPhase = "Succeeded"
	// OperationFailed operations have finished with an error.
	OperationFailed OperationPhase = "Failed"
	// OperationCancelled operations have ended because that was asked for.
	OperationCancelled OperationPhase = "Cancelled"
)

// Finished tells whether an operation in the phase has ended, and changes no more but by a
// retry.
func (p OperationPhase) Finished() bool {
	return p == OperationSucceeded || p == OperationFailed || p == OperationCancelled
}

// OperationStatus is what has become of an operation.
type OperationStatus struct {
	// phase is Pending, Running, Succeeded, Failed or Cancelled. The last three are final.
	// +optional
	Phase OperationPhase `json:"phase,omitempty"`
	// progress is how much of the work is done, if the action says so.
	// +optional
	Progress *OperationProgress `json:"progress,omitempty"`
	// message is what the operation is doing, or why it ended, for people.
	// +optional
	Message string `json:"message,omitempty"`
	// log is the end of what the action has logged, in all its attempts: 16 KiB at most.
	// +optional
	Log string `json:"log,omitempty"`
	// result is what the action returned, of an operation that succeeded.
	// +optional
	Result *runtime.RawExtension `json:"result,omitempty"`
	// error is why an operation failed.
	// +optional
	Error *metav1.Status `json:"error,omitempty"`
	// checkpoint is what the action has saved to continue from in another attempt.
	// +optional
	Checkpoint *runtime.RawExtension `json:"checkpoint,omitempty"`
	// attempts is how often the operation has begun to run.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// interruptions is how many processes in a row have ended, or could not hold the operation any
	// longer, while they ran it, since it saved a new checkpoint.
	// +optional
	Interruptions int32 `json:"interruptions,omitempty"`
	// startTime is when the latest attempt began.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// completionTime is when the operation finished.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// holder is the process that carries the operation out.
	// +optional
	Holder string `json:"holder,omitempty"`
	// renewTime is when the holder last said that it does, by its own clock.
	// +optional
	RenewTime *metav1.MicroTime `json:"renewTime,omitempty"`
}

// OperationProgress is how much of the work is done.
type OperationProgress struct {
	// percent is how much is done of the total, 0 to 100; 0 if there is no total.
	Percent int32 `json:"percent"`
	// done is how many units are done.
	Done int64 `json:"done"`
	// total is how many units there are, 0 if that is not known.
	// +optional
	Total int64 `json:"total,omitempty"`
	// unit is what is counted, such as rows.
	// +optional
	Unit string `json:"unit,omitempty"`
}

// OperationCancellation asks for the end of an operation. It is what clients send to the
// subresource cancel of one.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type OperationCancellation struct {
	metav1.TypeMeta `json:",inline"`
}

// OperationRetry asks for another attempt of an operation that has failed or was cancelled. It
// is what clients send to the subresource retry of one.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type OperationRetry struct {
	metav1.TypeMeta `json:",inline"`
}
