package manifests

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// etcdProgram is the program's name, and the name of its objects in pods.
const etcdProgram = "etcd"

// etcd returns an etcd with one member, for evaluation. An etcd for production needs more members and backups.
func (c *Config) etcd() []runtime.Object {
	selector := map[string]string{nameLabel: c.Name, componentLabel: etcdProgram}
	meta := metav1.ObjectMeta{Name: c.etcdName(), Namespace: c.Namespace, Labels: selector}
	container := corev1.Container{
		Name:    etcdProgram,
		Image:   c.EtcdImage,
		Command: []string{etcdProgram},
		Args:    c.etcdArgs(),
		Ports: []corev1.ContainerPort{
			{Name: "client", ContainerPort: 2379, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", ContainerPort: 2381, Protocol: corev1.ProtocolTCP},
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("metrics"), Scheme: corev1.URISchemeHTTP},
			},
			PeriodSeconds:    5,
			FailureThreshold: 3,
			TimeoutSeconds:   5,
		},
		Resources:       corev1.ResourceRequirements{Requests: requests, Limits: limits},
		SecurityContext: containerSecurity(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "data", MountPath: "/var/lib/etcd"},
			{Name: etcdProgram, MountPath: etcdDir, ReadOnly: true},
		},
	}
	return []runtime.Object{
		&corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Selector: selector, ClusterIP: corev1.ClusterIPNone,
			Ports: []corev1.ServicePort{{Name: "client", Port: 2379, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("client")}},
		}},
		policy(meta,
			networkingv1.NetworkPolicyIngressRule{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: c.selector()}}},
				Ports: tcp(2379),
			},
			networkingv1.NetworkPolicyIngressRule{Ports: tcp(2381)}, // the kubelet's probe
		),
		&appsv1.StatefulSet{TypeMeta: apps("StatefulSet"), ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			ServiceName: c.etcdName(), Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selector}, Spec: corev1.PodSpec{
				AutomountServiceAccountToken: new(false), SecurityContext: podSecurity(),
				Containers: []corev1.Container{container}, Volumes: []corev1.Volume{secretVolume(etcdProgram, c.EtcdSecret)},
			}},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{c.volumeClaim("data")},
		}},
	}
}
