package podspec

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Each group of rules is tested alone: a test of a whole template does not show which group is at fault.
func TestValidate_groupsOfRules(t *testing.T) {
	t.Parallel()
	// The messages are those of a kube-apiserver, which names no index for a mount with an invalid subPath.
	// container holds the fields of a container besides name and image, spec the fields of a pod spec besides that container, want the
	// first error.
	for name, test := range map[string]struct{ container, spec, want string }{
		"nothing wrong":           {"", "", ""},
		"containers, name twice":  {"", "initContainers: [{name: a, image: b}]", "template.spec.initContainers[0].name: Duplicate value"},
		"containers, pull policy": {"imagePullPolicy: Sometimes", "", "template.spec.containers[0].imagePullPolicy: Unsupported value"},
		"env, name":               {"env: [{name: a=b}]", "", "template.spec.containers[0].env[0].name: Invalid value"},
		"env, two values": {"env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]", "",
			"template.spec.containers[0].env[0].valueFrom: Invalid value"},
		"env, field": {"env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.x}}}]", "",
			"template.spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value"},
		"ports, number": {"ports: [{containerPort: 70000}]", "",
			"template.spec.containers[0].ports[0].containerPort: Invalid value"},
		"ports, protocol": {"ports: [{containerPort: 80, protocol: HTTP}]", "",
			"template.spec.containers[0].ports[0].protocol: Unsupported value"},
		"ports, of the host": {"ports: [{containerPort: 80, hostPort: 81}]", "hostNetwork: true",
			"template.spec.containers[0].ports[0].hostPort: Invalid value"},
		"probes, no handler": {"livenessProbe: {}", "", "template.spec.containers[0].livenessProbe: Required value"},
		"probes, negative": {"livenessProbe: {exec: {command: [a]}, periodSeconds: -1}", "",
			"template.spec.containers[0].livenessProbe.periodSeconds: Invalid value"},
		"resources, above the limit": {"resources: {limits: {cpu: 1}, requests: {cpu: 2}}", "",
			"template.spec.containers[0].resources.requests: Invalid value"},
		"resources, negative": {"resources: {limits: {memory: -1}}", "",
			"template.spec.containers[0].resources.limits[memory]: Invalid value"},
		"mounts, no such volume": {"volumeMounts: [{name: v, mountPath: /v}]", "",
			"template.spec.containers[0].volumeMounts[0].name: Not found"},
		"mounts, path twice": {"volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /v}]",
			"volumes: [{name: v, emptyDir: {}}]", "template.spec.containers[0].volumeMounts[1].mountPath: Invalid value"},
		"mounts, step up": {"volumeMounts: [{name: v, mountPath: /v, subPath: ../a}]",
			"volumes: [{name: v, emptyDir: {}}]", "template.spec.containers[0].volumeMounts.subPath: Invalid value"},
		"volumes, two types": {"", "volumes: [{name: v, projected: {}, emptyDir: {}}]", "template.spec.volumes[0].projected: Forbidden"},
		"volumes, host path": {"", "volumes: [{name: v, hostPath: {path: ''}}]",
			"template.spec.volumes[0].hostPath.path: Required value"},
		"security, user": {"securityContext: {runAsUser: -1}", "",
			"template.spec.containers[0].securityContext.runAsUser: Invalid value"},
		"security, privileged": {"securityContext: {privileged: true, allowPrivilegeEscalation: false}", "",
			"template.spec.containers[0].securityContext: Invalid value"},
		"security, sysctl": {"", "securityContext: {sysctls: [{name: 'a b', value: x}]}",
			"template.spec.securityContext.sysctls[0].name: Invalid value"},
		"scheduling, toleration": {"", "tolerations: [{key: a, operator: Exists, value: x}]",
			"template.spec.tolerations[0].operator: Invalid value"},
		"scheduling, weight": {"", "affinity: {podAffinity: {" +
			"preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, podAffinityTerm: {topologyKey: a, labelSelector: {}}}]}}",
			"template.spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value"},
		"scheduling, spread": {"", "topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
			"template.spec.topologySpreadConstraints[0].maxSkew: Invalid value"},
		"names, of the node":          {"", "nodeName: A_", "template.spec.nodeName: Invalid value"},
		"DNS, none without its names": {"", "dnsPolicy: None", "template.spec.dnsConfig: Required value"},
		"host aliases, address":       {"", "hostAliases: [{ip: a}]", "template.spec.hostAliases[0].ip: Invalid value"},
		"operating system":            {"", "os: {name: plan9}", "template.spec.os: Unsupported value"},
		"restarts":                    {"", "restartPolicy: Sometimes", "template.spec.restartPolicy: Unsupported value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var template corev1.PodTemplateSpec
			text := fmt.Sprintf("{spec: {containers: [{name: a, image: b%s}]%s}}", behind(test.container), behind(test.spec))
			if err := yaml.UnmarshalStrict([]byte(text), &template); err != nil {
				t.Fatal(err)
			}
			Fill(&template)
			var got []string
			for _, err := range Validate(&template, at) {
				of := err.Field + ": " + err.Type.String()
				if of == test.want {
					return
				}
				got = append(got, of)
			}
			if test.want != "" || len(got) > 0 {
				t.Errorf("refused are %q, want %q", got, test.want)
			}
		})
	}
}

func behind(more string) string {
	if more == "" {
		return ""
	}
	return ", " + more
}
