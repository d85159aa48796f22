package controlplane

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/annextest"
)

// A warning handler that collects the warnings of a server.
type told []string

func (t *told) HandleWarningHeader(code int, _, text string) {
	if code == 299 {
		*t = append(*t, text)
	}
}

func TestPodTemplates_defaultsAndWarnings(t *testing.T) {
	t.Parallel()
	config := rest.CopyConfig(annextest.Start(t, cluster()))
	var warnings told
	config.WarningHandler = &warnings
	config.ContentType = "application/vnd.kubernetes.protobuf"
	templates := kubernetes.NewForConfigOrDie(config).CoreV1().PodTemplates(metav1.NamespaceDefault)
	twice := []corev1.LocalObjectReference{{Name: "registry"}, {Name: "registry"}}
	template, err := templates.Create(
		t.Context(),
		&corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:v1"}}, ImagePullSecrets: twice},
		}},
		metav1.CreateOptions{},
	)
	if err != nil {
		t.Fatal(err)
	}
	if spec := template.Template.Spec; spec.RestartPolicy != corev1.RestartPolicyAlways ||
		spec.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("it is filled in as %+v", spec)
	}
	expect := func(what string, generation int64, want ...string) {
		t.Helper()
		if template.Generation != generation || !slices.Equal(warnings, want) {
			t.Errorf("%s: generation %d, warnings %q", what, template.Generation, warnings)
		}
		warnings = nil
	}
	const duplicate = `template.spec.imagePullSecrets[1].name: duplicate name "registry"`
	expect("created", 1, duplicate)
	update := func() {
		t.Helper()
		if template, err = templates.Update(t.Context(), template, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	template.Labels = map[string]string{"a": "b"}
	update()
	expect("labeled", 1)
	template.Template.Spec.Containers[0].Image = "web:v2"
	update()
	expect("changed", 2, duplicate)
	template.Template.Spec.Containers = nil
	if _, err := templates.Update(
		t.Context(),
		template,
		metav1.UpdateOptions{},
	); err == nil ||
		!strings.Contains(err.Error(), `template.spec.containers: Required value`) {
		t.Errorf("without containers: %v", err)
	}
}
