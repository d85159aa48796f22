package podspec

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Fill sets the defaults of fields that the template omits. It is idempotent.
func Fill(t *corev1.PodTemplateSpec) {
	spec := &t.Spec
	orElse(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	orElse(&spec.DNSPolicy, corev1.DNSClusterFirst)
	orElse(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	orElse(&spec.SchedulerName, corev1.DefaultSchedulerName)
	pointTo(&spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	pointTo(&spec.SecurityContext, corev1.PodSecurityContext{})
	for i := range spec.Volumes {
		fillVolume(&spec.Volumes[i].VolumeSource)
	}
	for _, c := range containers(spec, nil) {
		fillContainer(c)
	}
	roundUp(spec.Overhead)
	if spec.Resources != nil {
		roundUp(spec.Resources.Limits)
		roundUp(spec.Resources.Requests)
	}
}

func orElse[T comparable](value *T, usual T) {
	var zero T
	if *value == zero {
		*value = usual
	}
}

func pointTo[T any](p **T, usual T) {
	if *p == nil {
		*p = &usual
	}
}

// roundUp rounds amounts up to multiples of a thousandth, the finest resolution that is stored.
func roundUp(list corev1.ResourceList) {
	for name, quantity := range list {
		quantity.RoundUp(-3)
		list[name] = quantity
	}
}

func fillContainer(c *corev1.Container) {
	orElse(&c.ImagePullPolicy, pullPolicy(c.Image))
	orElse(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	orElse(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		orElse(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for _, env := range c.Env {
		if env.ValueFrom == nil {
			continue
		}
		fillFieldRef(env.ValueFrom.FieldRef)
		if env.ValueFrom.FileKeyRef != nil {
			pointTo(&env.ValueFrom.FileKeyRef.Optional, false)
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		fillProbe(probe)
	}
	if c.Lifecycle != nil {
		for _, handler := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if handler != nil {
				fillHTTPGet(handler.HTTPGet)
			}
		}
	}
}

func fillFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		orElse(&ref.APIVersion, "v1")
	}
}

func fillProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	orElse(&p.TimeoutSeconds, 1)
	orElse(&p.PeriodSeconds, 10)
	orElse(&p.SuccessThreshold, 1)
	orElse(&p.FailureThreshold, 3)
	fillHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		pointTo(&p.GRPC.Service, "")
	}
}

func fillHTTPGet(get *corev1.HTTPGetAction) {
	if get != nil {
		orElse(&get.Path, "/")
		orElse(&get.Scheme, corev1.URISchemeHTTP)
	}
}

func fillVolume(v *corev1.VolumeSource) {
	if *v == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.Image != nil {
		orElse(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if v.HostPath != nil {
		pointTo(&v.HostPath.Type, corev1.HostPathUnset)
	}
	if v.Secret != nil {
		pointTo(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if v.ConfigMap != nil {
		pointTo(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if v.DownwardAPI != nil {
		pointTo(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		fillDownward(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		pointTo(&v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for _, source := range v.Projected.Sources {
			if source.DownwardAPI != nil {
				fillDownward(source.DownwardAPI.Items)
			}
			if source.ServiceAccountToken != nil {
				pointTo(&source.ServiceAccountToken.ExpirationSeconds, int64(time.Hour/time.Second))
			}
		}
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		claim := &v.Ephemeral.VolumeClaimTemplate.Spec
		pointTo(&claim.VolumeMode, corev1.PersistentVolumeFilesystem)
		roundUp(claim.Resources.Limits)
		roundUp(claim.Resources.Requests)
	}
	fillForeignVolume(v)
}

// fillForeignVolume sets the defaults of volumes of particular storage systems.
func fillForeignVolume(v *corev1.VolumeSource) {
	if v.ISCSI != nil {
		orElse(&v.ISCSI.ISCSIInterface, "default")
	}
	if v.RBD != nil {
		orElse(&v.RBD.RBDPool, "rbd")
		orElse(&v.RBD.RadosUser, "admin")
		orElse(&v.RBD.Keyring, "/etc/ceph/keyring")
	}
	if v.AzureDisk != nil {
		pointTo(&v.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		pointTo(&v.AzureDisk.FSType, "ext4")
		pointTo(&v.AzureDisk.ReadOnly, false)
		pointTo(&v.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
	}
	if v.ScaleIO != nil {
		orElse(&v.ScaleIO.StorageMode, "ThinProvisioned")
		orElse(&v.ScaleIO.FSType, "xfs")
	}
}

func fillDownward(items []corev1.DownwardAPIVolumeFile) {
	for _, item := range items {
		fillFieldRef(item.FieldRef)
	}
}
