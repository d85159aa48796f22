package controlplane

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// Kinds that the operator disables are not served, and their controllers and plugins do not run.
func TestRuntimeConfig_omitsKinds(t *testing.T) {
	t.Parallel()
	off := annex.ControlPlaneOptions{
		RuntimeConfig: map[string]bool{"api/v1": false, "api/v1/secrets": true, "admissionregistration.k8s.io/v1": false},
	}
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), annex.Options{Storage: memory.Storage(), ControlPlane: off}))
	if _, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("config maps: %v", err)
	}
	if _, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

func TestOptions_rejections(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		of      annex.Server
		options annex.ControlPlaneOptions
	}{
		"Options.ControlPlane.EventTTL 1.5s: must be a whole number " +
			"of seconds": {cluster(), annex.ControlPlaneOptions{EventTTL: 1500 * time.Millisecond}},
		"Options.ControlPlane.RuntimeConfig: apps/v1: unknown API of the " +
			"control plane": {cluster(), annex.ControlPlaneOptions{RuntimeConfig: map[string]bool{"apps/v1": false}}},
		"unknown controller \"resourcequota-controller\"": {
			annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{Without: []string{"resourcequotas"}})},
			annex.ControlPlaneOptions{},
		},
	} {
		options := annex.Options{Storage: memory.Storage(), ControlPlane: c.options, Controllers: []string{"*", "-resourcequota-controller"}}
		if _, err := annex.New(t.Context(), c.of, options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}

// The operator's event TTL takes precedence over the developer's.
func TestOptions_eventTTL(t *testing.T) {
	t.Parallel()
	plane := controlplane.New(controlplane.Options{EventTTL: time.Hour})
	options := annex.Options{Storage: memory.Storage(), ControlPlane: annex.ControlPlaneOptions{EventTTL: time.Second}}
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, annex.Server{Name: "cluster", ControlPlane: plane}, options))
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Namespace", Name: "default", Namespace: "default"},
	}
	if _, err := client.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the event ends", func(ctx context.Context) error {
		if _, err := client.CoreV1().Events("default").Get(ctx, "e", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the event is there: %w", err)
		}
		return nil
	})
}
