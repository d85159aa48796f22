package manifests

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// securePort is the port of the server in its pod.
	securePort = 8443
	// nonRoot is the user and group of distroless images.
	nonRoot = 65532

	dataDir    = "/var/lib/annex"
	servingDir = "/etc/annex/serving"
	etcdDir    = "/etc/annex/etcd"
)

// The resources of a server's container.
var (
	requests    = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	limits      = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	goMemory    = "900MiB"
	gracePeriod = int64(45)
)

func (c *Config) service() runtime.Object {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: c.meta(c.Name),
		Spec: corev1.ServiceSpec{
			Selector: c.selector(),
			Ports:    []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("https")}},
		},
	}
}

// networkPolicy permits ingress to the HTTPS port only. Labels cannot select the cluster's control plane as a peer,
// and every request is authenticated. Egress is not restricted: webhooks may be anywhere.
func (c *Config) networkPolicy() runtime.Object {
	return policy(c.meta(c.Name), networkingv1.NetworkPolicyIngressRule{Ports: tcp(securePort)})
}

// policy restricts the ingress of the pods that have the labels of its metadata.
func policy(meta metav1.ObjectMeta, ingress ...networkingv1.NetworkPolicyIngressRule) runtime.Object {
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"}, ObjectMeta: meta,
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: meta.Labels},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     ingress,
		},
	}
}

func tcp(port int32) []networkingv1.NetworkPolicyPort {
	return []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(port))}}
}

// workloadResource returns the resource of the workload: statefulsets for a server with a volume.
func (c *Config) workloadResource() string {
	if c.plan.KeepsObjects() {
		return "statefulsets"
	}
	return "deployments"
}

// workload returns a Deployment of replicas that share an etcd, or a StatefulSet of one replica with a volume.
func (c *Config) workload() []runtime.Object {
	replicas := int32(c.Replicas)
	selector := &metav1.LabelSelector{MatchLabels: c.selector()}
	pod := c.pod()
	if c.workloadResource() == "statefulsets" {
		return []runtime.Object{&appsv1.StatefulSet{
			TypeMeta: apps("StatefulSet"), ObjectMeta: c.meta(c.Name),
			Spec: appsv1.StatefulSetSpec{ServiceName: c.Name, Replicas: &replicas, Selector: selector, Template: pod,
				VolumeClaimTemplates: []corev1.PersistentVolumeClaim{c.volumeClaim("data")}},
		}}
	}
	deployment := &appsv1.Deployment{
		TypeMeta: apps("Deployment"), ObjectMeta: c.meta(c.Name),
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: pod, Strategy: appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType,
			// Keep the number of ready pods during an update.
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1))},
		}},
	}
	if !c.shared() {
		// Two pods at a time would have different objects.
		deployment.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	if c.Replicas < 2 {
		return []runtime.Object{deployment}
	}
	return []runtime.Object{deployment, &policyv1.PodDisruptionBudget{
		TypeMeta: metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"}, ObjectMeta: c.meta(c.Name),
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector, MaxUnavailable: new(intstr.FromInt32(1))},
	}}
}

func (c *Config) volumeClaim(name string) corev1.PersistentVolumeClaim {
	claim := corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: c.StorageSize}},
		},
	}
	if c.StorageClass != "" {
		claim.Spec.StorageClassName = &c.StorageClass
	}
	return claim
}

func (c *Config) pod() corev1.PodTemplateSpec {
	container := corev1.Container{
		Name: "server", Image: c.Image, Args: c.args(),
		Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: securePort, Protocol: corev1.ProtocolTCP}},
		Env: []corev1.EnvVar{
			podNamespace(),
			{Name: "GOMEMLIMIT", Value: goMemory},
		},
		Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits},
		// A server that cannot reach its storage or its cluster stays alive but unready: a restart would not help.
		StartupProbe:    probe("/livez", 2, 150),
		LivenessProbe:   probe("/livez", 10, 6),
		ReadinessProbe:  probe("/readyz", 5, 2),
		SecurityContext: containerSecurity(),
		VolumeMounts:    []corev1.VolumeMount{{Name: "data", MountPath: dataDir}},
	}
	spec := corev1.PodSpec{
		ServiceAccountName:            c.Name,
		SecurityContext:               podSecurity(),
		TerminationGracePeriodSeconds: &gracePeriod,
	}
	if c.shared() { // otherwise there is only one replica
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			spread(corev1.LabelTopologyZone, c.selector()), spread(corev1.LabelHostname, c.selector()),
		}
	}
	if c.workloadResource() == "deployments" { // a StatefulSet has a volume claim
		spec.Volumes = append(
			spec.Volumes,
			corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		)
	}
	mount := func(name, secret, path string) {
		spec.Volumes = append(spec.Volumes, secretVolume(name, secret))
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
	}
	if c.Certificates != SelfCertified {
		mount("serving", c.servingSecret(), servingDir)
	}
	if c.EtcdSecret != "" {
		mount(etcdProgram, c.EtcdSecret, etcdDir)
	}
	spec.Containers = []corev1.Container{container}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: c.selector()}, Spec: spec}
}

// podNamespace is the environment variable from which arguments take the pod's namespace.
func podNamespace() corev1.EnvVar {
	return corev1.EnvVar{
		Name:      "POD_NAMESPACE",
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
	}
}

func secretVolume(name, secret string) corev1.Volume {
	// Only root and the group of fsGroup may read the key.
	return corev1.Volume{
		Name:         name,
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: new(int32(0o440))}},
	}
}

func probe(path string, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("https"), Scheme: corev1.URISchemeHTTPS},
		},
		PeriodSeconds:    period,
		FailureThreshold: failures,
		TimeoutSeconds:   5,
	}
}

func spread(key string, labels map[string]string) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
	}
}

func podSecurity() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(nonRoot)), RunAsGroup: new(int64(nonRoot)), FSGroup: new(int64(nonRoot)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func containerSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func apps(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: kind}
}

// serviceMonitor returns a ServiceMonitor for /metrics. The cluster must grant the scraper access to it.
func (c *Config) serviceMonitor() []runtime.Object {
	tls := map[string]any{"serverName": c.serviceDNS()}
	switch {
	case c.Certificates == SelfCertified, c.Certificates == CertManager, len(c.CABundle) > 0:
		tls["ca"] = map[string]any{"secret": map[string]any{"name": c.servingSecret(), "key": "ca.crt"}}
	}
	return []runtime.Object{&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
		"metadata": map[string]any{"name": c.Name, "namespace": c.Namespace, "labels": labels(c.selector())},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": labels(c.selector())},
			"endpoints": []any{map[string]any{
				"port": "https", "scheme": "https", "tlsConfig": tls,
				"bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
			}},
		},
	}}}
}
