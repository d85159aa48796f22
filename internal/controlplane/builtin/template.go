package builtin

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/controlplane/podspec"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/core"
)

// podTemplates are templates of pods. The server has no pods, but clients may store templates.
func podTemplates() *define.Kind {
	each := func(of func(*corev1.Container) string) func(*corev1.PodTemplate) any {
		return func(t *corev1.PodTemplate) any {
			var all []string
			for i := range t.Template.Spec.Containers {
				all = append(all, of(&t.Template.Spec.Containers[i]))
			}
			return strings.Join(all, ",")
		}
	}
	at := field.NewPath("template")
	k := kind[corev1.PodTemplate, corev1.PodTemplateList](
		"podtemplates",
		core.API,
		rules[corev1.PodTemplate]{
			fill:   func(t *corev1.PodTemplate) { podspec.Fill(&t.Template) },
			create: func(t *corev1.PodTemplate) { podspec.Drop(&t.Template) },
			update: func(t, _ *corev1.PodTemplate) { podspec.Drop(&t.Template) },
			validate: func(t *corev1.PodTemplate) field.ErrorList {
				return append(objects.ValidateFinalizers(t.Finalizers), podspec.Validate(&t.Template, at)...)
			},
			warn: func(t *corev1.PodTemplate) []string { return podspec.Warnings(&t.Template, at) },
		},
		column("Containers", "Names of each container in the template.", each(func(c *corev1.Container) string { return c.Name })),
		column("Images", "Images referenced by each container in the template.", each(func(c *corev1.Container) string { return c.Image })),
		column(
			"Pod Labels",
			"The labels for the pod template.",
			func(t *corev1.PodTemplate) any { return labels.FormatLabels(t.Template.Labels) },
		),
	)
	k.Unconditional, k.ReturnsDeleted, k.WarnsOfChanges = true, true, true
	return k
}
