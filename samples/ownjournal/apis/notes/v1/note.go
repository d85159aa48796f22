package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Note is a text to keep.
type Note struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NoteSpec `json:"spec,omitempty"`
}

// NoteSpec is the content of a note.
type NoteSpec struct {
	// text is the text of the note.
	Text string `json:"text"`
}

// NoteList is a list of Notes.
type NoteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Note `json:"items"`
}
