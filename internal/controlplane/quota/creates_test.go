package quota

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

func secretNamed(name string) admission.Attributes {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab"}}
	return admission.NewAttributesRecord(secret, nil, corev1.SchemeGroupVersion.WithKind("Secret"), "lab", name,
		corev1.SchemeGroupVersion.WithResource("secrets"), "", admission.Create, nil, false, nil)
}

// If a count included an object that admission counts a moment later, this object or another one would be refused.
func TestCreates_pending_waitsForDecisions(t *testing.T) {
	for name, test := range map[string]struct {
		decide func(decide func(bool))
		after  time.Duration
		want   int
	}{
		"admitted":    {func(decide func(bool)) { decide(true) }, settled / 2, 1},
		"refused":     {func(decide func(bool)) { decide(false) }, settled / 2, 0},
		"not decided": {func(func(bool)) {}, settled, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c Creates
				c.begin(t.Context(), secretNamed("before"), false)(true)
				decide := c.begin(t.Context(), secretNamed("a"), false)
				time.AfterFunc(settled/2, func() { test.decide(decide) })
				begin := time.Now()
				pending := c.pending(t.Context(), corev1.Resource("secrets"), "lab")
				if took := time.Since(begin); took != test.after {
					t.Errorf("pending waits for %v, want %v", took, test.after)
				}
				if len(pending) != test.want+1 {
					t.Errorf("%d objects may be stored yet, want %d", len(pending), test.want+1)
				}
			})
		})
	}
}
