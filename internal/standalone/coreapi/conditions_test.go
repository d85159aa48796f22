package coreapi

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSetConditions_transitionTime(t *testing.T) {
	first := metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	second := metav1.NewTime(first.Add(time.Hour))
	third := metav1.NewTime(second.Add(time.Hour))
	status := &corev1.NamespaceStatus{Conditions: []corev1.NamespaceCondition{{Type: "Foreign"}}}
	kept := func(n int) remainingContent { return remainingContent{kept: []objectCount{{count: n}}} }
	for _, step := range []struct {
		name    string
		left    remainingContent
		now     metav1.Time
		changed bool
		want    metav1.Time
	}{
		{"at first", kept(2), first, true, first},
		{"the same again", kept(2), second, false, first},
		{"another number", kept(1), second, true, first},
		{"another status", remainingContent{}, third, true, third},
	} {
		if changed := setConditions(status, step.left.conditions(), step.now); changed != step.changed {
			t.Errorf("%s: changed %v", step.name, changed)
		}
		if len(status.Conditions) != 6 || status.Conditions[0].Type != "Foreign" {
			t.Fatalf("%s: %+v", step.name, status.Conditions)
		}
		for _, c := range status.Conditions {
			if c.Type == corev1.NamespaceContentRemaining && !c.LastTransitionTime.Equal(&step.want) {
				t.Errorf("%s: transition at %s, want %s", step.name, c.LastTransitionTime, step.want)
			}
		}
	}
}
