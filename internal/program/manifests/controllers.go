package manifests

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// controllerReplicas is two: the leader and a standby.
const controllerReplicas = 2

// controllers returns the pods that run the server's controllers, with the permissions that controllers of these
// kinds commonly need. Only their author knows which other objects of the cluster they use.
func (c *Config) controllers() []runtime.Object {
	name, lease := c.Name+"-controllers", requirements.OfControllers(c.Definition.Name, c.Namespace)
	labels := map[string]string{nameLabel: c.Name, componentLabel: "controllers"}
	meta := metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: labels}
	role := &rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: c.clusterMeta("", "controllers"), Rules: c.controllerRules()}
	container := corev1.Container{
		Name: "controllers", Image: c.Image, Args: controllerArgs(),
		Env:             []corev1.EnvVar{podNamespace()},
		Resources:       corev1.ResourceRequirements{Requests: requests, Limits: limits},
		SecurityContext: containerSecurity(),
	}
	return []runtime.Object{
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta},
		role,
		c.binding(c.clusterMeta("", "controllers"), "ClusterRole", role.Name, name),
		c.lease(lease.Name),
		&rbacv1.Role{TypeMeta: rbac("Role"), ObjectMeta: meta, Rules: rules([]requirements.Requirement{lease}, c.Namespace)},
		c.binding(meta, "Role", name, name),
		policy(meta), // no ingress
		&appsv1.Deployment{TypeMeta: apps("Deployment"), ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(controllerReplicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				ServiceAccountName: name, SecurityContext: podSecurity(), Containers: []corev1.Container{container},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{spread(corev1.LabelHostname, labels)},
			}},
		}},
	}
}

// controllerRules returns the rules for the server's own kinds.
func (c *Config) controllerRules() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, g := range c.Definition.Groups {
		objects := rbacv1.PolicyRule{APIGroups: []string{g.Name}, Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"}}
		parts := rbacv1.PolicyRule{APIGroups: []string{g.Name}, Verbs: []string{"get", "update", "patch"}}
		for _, k := range g.Kinds {
			objects.Resources = append(objects.Resources, k.Resource)
			if k.Status {
				parts.Resources = append(parts.Resources, k.Resource+"/status")
			}
			if k.Scale != nil {
				parts.Resources = append(parts.Resources, k.Resource+"/scale")
			}
		}
		rules = append(rules, objects)
		if len(parts.Resources) > 0 {
			rules = append(rules, parts)
		}
	}
	return rules
}
