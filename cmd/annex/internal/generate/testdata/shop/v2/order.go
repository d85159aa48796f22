package v2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/shared"
	v1 "github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/v1"
)

// AddAll uses what is generated into another package.
func AddAll(scheme *runtime.Scheme) error {
	return v1.API().AddToScheme(scheme)
}

// Order is a kind without a list and without defaults of its own.
type Order struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Lines []v1.Item       `json:"lines,omitempty"`
	Notes v1.Notes        `json:"notes,omitempty"`
	To    *shared.Address `json:"to,omitempty"`
}
