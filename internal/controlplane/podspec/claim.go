package podspec

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// initiators are the formats of iSCSI names, by prefix.
var initiators = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

// claimTemplate validates the template of the claim of an ephemeral volume.
func (c *check) claimTemplate(at *field.Path, t *corev1.PersistentVolumeClaimTemplate) {
	if t == nil {
		c.required(at, "")
		return
	}
	metadata := at.Child("metadata")
	c.add(apivalidation.ValidateAnnotations(t.Annotations, metadata.Child("annotations"))...)
	c.add(metav1validation.ValidateLabels(t.Labels, metadata.Child("labels"))...)
	c.only(metadata, t.ObjectMeta, "cannot be set", "Annotations", "Labels")
	c.claim(at.Child("spec"), &t.Spec)
}

func (c *check) claim(at *field.Path, s *corev1.PersistentVolumeClaimSpec) {
	c.accessModes(at.Child("accessModes"), s.AccessModes)
	c.selector(at.Child("selector"), s.Selector)
	storage := at.Child("resources").Key("storage")
	switch amount, ok := s.Resources.Requests[corev1.ResourceStorage]; {
	case !ok:
		c.required(storage, "")
	case amount.Sign() <= 0:
		c.invalid(storage, amount.String(), "must be greater than zero")
	}
	for _, class := range []struct {
		field string
		name  *string
	}{{"storageClassName", s.StorageClassName}, {"volumeAttributesClassName", s.VolumeAttributesClassName}} {
		if class.name != nil && *class.name != "" {
			c.each(at.Child(class.field), *class.name, subdomain(*class.name))
		}
	}
	if s.VolumeMode != nil {
		oneOf(c, at.Child("volumeMode"), *s.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	}
	source, ref := s.DataSource, s.DataSourceRef
	if source != nil {
		c.dataSource(at.Child("dataSource"), source.APIGroup, source.Kind, source.Name)
	}
	foreign := false
	if ref != nil {
		c.dataSource(at.Child("dataSourceRef"), ref.APIGroup, ref.Kind, ref.Name)
		if foreign = ref.Namespace != nil && *ref.Namespace != ""; foreign {
			c.each(at.Child("dataSourceRef", "namespace"), *ref.Namespace, validation.IsDNS1123Label(*ref.Namespace))
		}
	}
	switch {
	case source == nil || ref == nil:
	case foreign:
		c.invalid(at, at.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified")
	case !sameText(source.APIGroup, ref.APIGroup) || source.Kind != ref.Kind || source.Name != ref.Name:
		c.invalid(at, at.Child("dataSource"), "must match dataSourceRef")
	}
}

func sameText(a, b *string) bool {
	return a == b || a != nil && b != nil && *a == *b
}

func (c *check) accessModes(at *field.Path, modes []corev1.PersistentVolumeAccessMode) {
	if len(modes) == 0 {
		c.required(at, "at least 1 access mode is required")
	}
	var alone, shared bool
	for _, mode := range modes {
		switch mode {
		case corev1.ReadWriteOncePod:
			alone = true
		case corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce:
			shared = true
		default:
			c.add(
				field.NotSupported(
					at,
					mode,
					[]corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod},
				),
			)
		}
	}
	if alone && shared {
		c.forbidden(at, "may not use ReadWriteOncePod with other access modes")
	}
}

func (c *check) dataSource(at *field.Path, group *string, kind, name string) {
	c.filled(at.Child("name"), name)
	c.filled(at.Child("kind"), kind)
	switch {
	case group != nil && *group != "":
		c.each(at.Child("apiGroup"), *group, validation.IsDNS1123Subdomain(*group))
	case kind != "PersistentVolumeClaim":
		c.invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
	}
}
