// Package podspec contains kube-apiserver's defaulting, field dropping, validation and warnings for pod templates,
// with the same messages. It corresponds to release 1.37 with the features that are on by default, in clusters that
// allow privileged containers.
//
// Templates have the types of k8s.io/api/core/v1. The functions must be called in the order Fill, Drop, Validate,
// Warnings: a missing default is an error in Validate, and Warnings requires a valid template. An update is validated
// like a new template. kube-apiserver still accepts some fields that an older release has stored; here those were
// never accepted.
//
// Module workloads has upstream's own code for the same rules, and serves pods and templates by it. This package stays for
// control planes without that module: they serve PodTemplates, and do not link k8s.io/kubernetes.
//
// The package is independent of storage and requests.
package podspec

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containers yields all containers of each kind, with their paths. Modifying a container modifies the pod's.
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

// common returns an ephemeral container as a Container.
func common(c *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&c.EphemeralContainerCommon)
}

// sidecar reports whether an init container runs beside the pod's containers.
func sidecar(c *corev1.Container) bool {
	return is(c.RestartPolicy, corev1.ContainerRestartPolicyAlways)
}

func is[T comparable](p *T, value T) bool { return p != nil && *p == value }
