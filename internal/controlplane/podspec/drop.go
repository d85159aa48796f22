package podspec

import (
	corev1 "k8s.io/api/core/v1"
)

// Drop removes the fields of features that are off by default, and obsolete annotations.
func Drop(t *corev1.PodTemplateSpec) {
	spec := &t.Spec
	spec.SchedulingGroup = nil
	spec.EvictionResponders = nil
	for i := range spec.Volumes {
		dropFromVolume(&spec.Volumes[i].VolumeSource)
	}
	for _, c := range containers(spec, nil) {
		dropFromContainer(c)
	}
	for _, stage := range []string{"beta", "alpha"} {
		delete(t.Annotations, "pod."+stage+".kubernetes.io/init-containers")
		delete(t.Annotations, "pod."+stage+".kubernetes.io/init-container-statuses")
	}
}

func dropFromContainer(c *corev1.Container) {
	for i := range c.VolumeMounts {
		c.VolumeMounts[i].BindMountOptions = nil
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil && probe.HTTPGet != nil {
			probe.HTTPGet.Protocol = nil
		}
		if probe != nil && probe.GRPC != nil {
			probe.GRPC.Mode = nil
		}
	}
	if c.Lifecycle == nil {
		return
	}
	for _, handler := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if handler != nil && handler.HTTPGet != nil {
			handler.HTTPGet.Protocol = nil
		}
	}
	if c.Lifecycle.StopSignal != nil {
		c.Lifecycle.StopSignal = nil
		if *c.Lifecycle == (corev1.Lifecycle{}) {
			c.Lifecycle = nil
		}
	}
}

// dropFromVolume removes the owners of files. Of a volume with several types, which is rejected later, it changes
// only the first one.
func dropFromVolume(v *corev1.VolumeSource) {
	if v.EmptyDir != nil {
		v.EmptyDir.Mode = nil
	}
	switch {
	case v.Secret != nil:
		v.Secret.DefaultUser = nil
		dropUsers(v.Secret.Items)
	case v.ConfigMap != nil:
		v.ConfigMap.DefaultUser = nil
		dropUsers(v.ConfigMap.Items)
	case v.DownwardAPI != nil:
		v.DownwardAPI.DefaultUser = nil
		dropDownwardUsers(v.DownwardAPI.Items)
	case v.Projected != nil:
		v.Projected.DefaultUser = nil
		for _, source := range v.Projected.Sources {
			dropFromProjection(source)
		}
	}
}

func dropFromProjection(p corev1.VolumeProjection) {
	switch {
	case p.Secret != nil:
		dropUsers(p.Secret.Items)
	case p.DownwardAPI != nil:
		dropDownwardUsers(p.DownwardAPI.Items)
	case p.ConfigMap != nil:
		dropUsers(p.ConfigMap.Items)
	case p.ServiceAccountToken != nil:
		p.ServiceAccountToken.User = nil
	case p.ClusterTrustBundle != nil:
		p.ClusterTrustBundle.User = nil
	case p.PodCertificate != nil:
		p.PodCertificate.User = nil
	}
}

func dropUsers(items []corev1.KeyToPath) {
	for i := range items {
		items[i].User = nil
	}
}

func dropDownwardUsers(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		items[i].User = nil
	}
}
