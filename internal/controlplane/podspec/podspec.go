// Package podspec says what kube-apiserver makes of a pod template: which defaults it fills in,
// which fields it takes out, what it refuses and in which words, and what it warns of. It is that of
// release 1.37 with the features that are on by default, of clusters that allow privileged containers.
//
// Templates are those of k8s.io/api/core/v1, in the order Fill, Drop, Validate, Warnings. What is not
// filled in is a mistake, and only a valid template is warned of. An update is treated as a new template. Where kube-apiserver
// goes on accepting
// what an older release had stored, there is nothing to go on with: here it was never accepted.
//
// The package knows no storage and no requests.
package podspec

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containers are all of them, of each kind, and where they are. What is done to one is done to the pod's.
func containers(spec *corev1.PodSpec, at *field.Path) iter.Seq2[*field.Path, *corev1.Container] {
	return func(yield func(*field.Path, *corev1.Container) bool) {
		for i := range spec.InitContainers {
			if !yield(at.Child("initContainers").Index(i), &spec.InitContainers[i]) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(at.Child("containers").Index(i), &spec.Containers[i]) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			if !yield(at.Child("ephemeralContainers").Index(i), common(&spec.EphemeralContainers[i])) {
				return
			}
		}
	}
}

// common is an ephemeral container as one of the others.
func common(c *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&c.EphemeralContainerCommon)
}

// sidecar reports whether an init container runs beside the pod's containers.
func sidecar(c *corev1.Container) bool {
	return is(c.RestartPolicy, corev1.ContainerRestartPolicyAlways)
}

func is[T comparable](p *T, value T) bool { return p != nil && *p == value }
