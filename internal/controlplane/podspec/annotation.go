package podspec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Annotations that preceded the corresponding fields and are still validated.
const (
	ofContainerSeccomp  = corev1.SeccompContainerAnnotationKeyPrefix
	ofContainerAppArmor = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix

	localhost      = "localhost/"
	unconfined     = "unconfined"
	runtimeDefault = "runtime/default"
	dockerDefault  = "docker/default"
)

func (c *check) annotations(at *field.Path, annotations map[string]string) {
	if value, mirror := annotations[corev1.MirrorPodAnnotationKey]; mirror && c.spec.NodeName == "" {
		c.invalid(at.Key(corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set")
	}
	if text := annotations[corev1.TolerationsAnnotationKey]; text != "" {
		c.annotatedTolerations(at, text)
	}
	if cost, ok := annotations[corev1.PodDeletionCost]; ok && !number(cost) {
		c.invalid(at.Key(corev1.PodDeletionCost), cost, "must be a 32bit integer")
	}
	if profile, ok := annotations[corev1.SeccompPodAnnotationKey]; ok {
		c.annotatedSeccomp(at.Child(corev1.SeccompPodAnnotationKey), profile)
	}
	for _, key := range sorted(annotations) {
		if strings.HasPrefix(key, ofContainerSeccomp) {
			c.annotatedSeccomp(at.Child(key), annotations[key])
		}
		if name, ok := strings.CutPrefix(key, ofContainerAppArmor); ok {
			c.annotatedAppArmor(at.Key(key), name, annotations[key])
		}
	}
}

// toleration decodes the annotation like kube-apiserver, by Go field names, which its messages contain.
type toleration struct {
	Key               string
	Operator          corev1.TolerationOperator
	Value             string
	Effect            corev1.TaintEffect
	TolerationSeconds *int64
}

func (c *check) annotatedTolerations(at *field.Path, text string) {
	var tolerations []toleration
	if err := json.Unmarshal([]byte(text), &tolerations); err != nil {
		names := strings.NewReplacer("podspec.toleration", "core.Toleration", "field toleration.", "field Toleration.")
		c.invalid(at, corev1.TolerationsAnnotationKey, names.Replace(err.Error()))
		return
	}
	for i := range tolerations {
		t := corev1.Toleration(tolerations[i])
		c.toleration(at.Child(corev1.TolerationsAnnotationKey).Index(i), &t)
	}
}

// number reports whether the text is a 32-bit integer without leading zeros, with an optional minus sign.
func number(text string) bool {
	if text == "" || text[0] == '+' || text[0] == '0' && text != "0" {
		return false
	}
	_, err := strconv.ParseInt(text, 10, 32)
	return err == nil
}

func (c *check) annotatedSeccomp(at *field.Path, profile string) {
	switch path, local := strings.CutPrefix(profile, localhost); {
	case local:
		c.descending(at, path)
	case profile != runtimeDefault && profile != dockerDefault && profile != unconfined:
		c.invalid(at, profile, "must be a valid seccomp profile")
	}
}

func (c *check) annotatedAppArmor(at *field.Path, container, profile string) {
	found := false
	for _, other := range containers(c.spec, nil) {
		found = found || other.Name == container
	}
	if !found {
		c.invalid(at, container, "container not found")
	}
	if profile != "" && profile != runtimeDefault && profile != unconfined && !strings.HasPrefix(profile, localhost) {
		c.invalid(at, profile, fmt.Sprintf("invalid AppArmor profile name: %q", profile))
	}
}

// seccompAnnotations checks that annotations equal the fields, where both are set.
func (c *check) seccompAnnotations(at *field.Path, annotations map[string]string) {
	match := func(at *field.Path, p *corev1.SeccompProfile, key string) {
		annotation, ok := annotations[key]
		if p == nil || !ok {
			return
		}
		same := true
		switch p.Type {
		case corev1.SeccompProfileTypeUnconfined:
			same = annotation == unconfined
		case corev1.SeccompProfileTypeRuntimeDefault:
			same = annotation == runtimeDefault || annotation == dockerDefault
		case corev1.SeccompProfileTypeLocalhost:
			same = c.sameProfile(at, annotation, p.LocalhostProfile, "seccomp")
		}
		if !same {
			c.forbidden(at.Child("type"), "seccomp type in annotation and field must match")
		}
	}
	match(at.Child("securityContext", "seccompProfile"), c.podContext.SeccompProfile, corev1.SeccompPodAnnotationKey)
	for at, container := range containers(c.spec, at) {
		if container.SecurityContext != nil {
			match(at.Child("securityContext", "seccompProfile"), container.SecurityContext.SeccompProfile, ofContainerSeccomp+container.Name)
		}
	}
}

// sameProfile reports whether the annotation names a profile on the host. It adds an error if the profile differs.
func (c *check) sameProfile(at *field.Path, annotation string, profile *string, of string) bool {
	name, local := strings.CutPrefix(annotation, localhost)
	if local && !is(profile, name) {
		c.forbidden(at.Child("localhostProfile"), of+" profile in annotation and field must match")
	}
	return local
}

func (c *check) appArmorAnnotations(at *field.Path, annotations map[string]string) {
	if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
		return
	}
	for at, container := range containers(c.spec, at) {
		p := c.podContext.AppArmorProfile
		if container.SecurityContext != nil && container.SecurityContext.AppArmorProfile != nil {
			p = container.SecurityContext.AppArmorProfile
		}
		annotation, ok := annotations[ofContainerAppArmor+container.Name]
		if p == nil || !ok {
			continue
		}
		at, same := at.Child("securityContext", "appArmorProfile"), true
		switch p.Type {
		case corev1.AppArmorProfileTypeUnconfined:
			same = annotation == unconfined
		case corev1.AppArmorProfileTypeRuntimeDefault:
			same = annotation == runtimeDefault
		case corev1.AppArmorProfileTypeLocalhost:
			same = c.sameProfile(at, annotation, p.LocalhostProfile, "apparmor")
		}
		if !same {
			c.forbidden(at.Child("type"), "apparmor type in annotation and field must match")
		}
	}
}
