package podspec

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

var at = field.NewPath("template")

// sample is a template of testdata.
type sample struct {
	Name            string
	Template        corev1.PodTemplateSpec
	Refused, Warned []string
}

func samples(t *testing.T) []sample {
	t.Helper()
	text, err := os.ReadFile("testdata/templates.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []sample
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// The messages are those of a kube-apiserver: e2e/cluster/builtin compares them with one.
func TestValidate_samples(t *testing.T) {
	t.Parallel()
	for _, s := range samples(t) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			Fill(&s.Template)
			Drop(&s.Template)
			var refused, warned []string
			for _, err := range Validate(&s.Template, at) {
				refused = append(refused, err.Error())
			}
			if len(refused) == 0 {
				warned = Warnings(&s.Template, at)
			}
			compareMessages(t, "refused with", refused, s.Refused)
			compareMessages(t, "warned of", warned, s.Warned)
		})
	}
}

// Compares messages in any order and without duplicates, since clients receive each message once.
func compareMessages(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, list := range [][]string{got, want} {
		slices.Sort(list)
	}
	if got, want = slices.Compact(got), slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("it is %s\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func read(t *testing.T, text string) *corev1.PodTemplateSpec {
	t.Helper()
	var template corev1.PodTemplateSpec
	if err := yaml.UnmarshalStrict([]byte(text), &template); err != nil {
		t.Fatal(err)
	}
	return &template
}

func TestFill(t *testing.T) {
	t.Parallel()
	got := read(t, `{spec: {
		serviceAccount: robot, hostNetwork: true, overhead: {cpu: 1.0001},
		initContainers: [{name: i, image: "i:v1", livenessProbe: {grpc: {port: 1}}}],
		containers: [{name: a, image: a, ports: [{containerPort: 1}], env: [{name: A, valueFrom: {fieldRef: {fieldPath: x}}}, {name: B, valueFrom: {fileKeyRef: {key: k}}}],
			resources: {limits: {cpu: 0.0001}}, startupProbe: {httpGet: {port: 1}}, lifecycle: {preStop: {httpGet: {port: 2}}}}],
		volumes: [{name: a}, {name: b, hostPath: {path: /}}, {name: c, projected: {sources: [{serviceAccountToken: {path: x}}]}}, {name: d, image: {reference: x}},
			{name: e, ephemeral: {volumeClaimTemplate: {spec: {}}}}, {name: f, azureDisk: {}}, {name: g, iscsi: {}}, {name: h, rbd: {}}, {name: i, scaleIO: {}}, {name: j, secret: {}}, {name: k, configMap: {}},
			{name: l, downwardAPI: {items: [{fieldRef: {fieldPath: x}}]}}]
	}}`)
	want := read(t, `{spec: {
		serviceAccount: robot, serviceAccountName: robot, hostNetwork: true, overhead: {cpu: 1001m},
		restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, terminationGracePeriodSeconds: 30, securityContext: {},
		initContainers: [{name: i, image: "i:v1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File,
			livenessProbe: {grpc: {port: 1, service: ""}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}}],
		containers: [{name: a, image: a, imagePullPolicy: Always, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File,
			ports: [{containerPort: 1, protocol: TCP}], env: [{name: A, valueFrom: {fieldRef: {fieldPath: x, apiVersion: v1}}}, {name: B, valueFrom: {fileKeyRef: {key: k, optional: false}}}],
			resources: {limits: {cpu: 1m}},
			startupProbe: {httpGet: {port: 1, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3},
			lifecycle: {preStop: {httpGet: {port: 2, path: /, scheme: HTTP}}}}],
		volumes: [{name: a, emptyDir: {}}, {name: b, hostPath: {path: /, type: ""}}, {name: c, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: x, expirationSeconds: 3600}}]}},
			{name: d, image: {reference: x, pullPolicy: Always}}, {name: e, ephemeral: {volumeClaimTemplate: {spec: {volumeMode: Filesystem}}}},
			{name: f, azureDisk: {cachingMode: ReadWrite, fsType: ext4, readOnly: false, kind: Shared}}, {name: g, iscsi: {iscsiInterface: default}},
			{name: h, rbd: {pool: rbd, user: admin, keyring: /etc/ceph/keyring}}, {name: i, scaleIO: {storageMode: ThinProvisioned, fsType: xfs}},
			{name: j, secret: {defaultMode: 420}}, {name: k, configMap: {defaultMode: 420}}, {name: l, downwardAPI: {defaultMode: 420, items: [{fieldRef: {fieldPath: x, apiVersion: v1}}]}}]
	}}`)
	for range 2 {
		Fill(got)
		if !apiequality.Semantic.DeepEqual(got, want) {
			t.Fatalf("it is filled in as\n%s\nwant\n%s", text(t, got), text(t, want))
		}
	}
}

func text(t *testing.T, of any) string {
	t.Helper()
	raw, err := yaml.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// A hook may remove a default.
func TestValidate_missingDefaults(t *testing.T) {
	t.Parallel()
	template := read(
		t,
		`{spec: {serviceAccount: robot, containers: [{name: a, image: a, ports: [{containerPort: 1}], env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], livenessProbe: {httpGet: {port: 1}}}],
		volumes: [{name: a}, {name: b, hostPath: {path: /}}, {name: c, projected: {sources: [{serviceAccountToken: {path: x}}]}}, {name: d, azureDisk: {diskName: d, diskURI: d}},
			{name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}}}]}}`,
	)
	var refused []string
	for _, err := range Validate(template, at) {
		refused = append(refused, err.Error())
	}
	compareMessages(t, "refused with", refused, []string{
		`template.spec.containers[0].env[0].valueFrom.fieldRef.apiVersion: Required value`,
		`template.spec.containers[0].imagePullPolicy: Required value`,
		`template.spec.containers[0].livenessProbe.httpGet.path: Required value`,
		`template.spec.containers[0].livenessProbe.httpGet.scheme: Unsupported value: "": supported values: "HTTP", "HTTPS"`,
		`template.spec.containers[0].livenessProbe.successThreshold: Invalid value: 0: must be 1`,
		`template.spec.containers[0].ports[0].protocol: Required value`,
		`template.spec.containers[0].terminationMessagePolicy: Required value`,
		`template.spec.deprecatedServiceAccount: Invalid value: "robot": must be the same as serviceAccountName: ""`,
		`template.spec.dnsPolicy: Required value`,
		`template.spec.restartPolicy: Required value`,
		`template.spec.terminationGracePeriodSeconds: Required value`,
		`template.spec.volumes[0]: Required value: must specify a volume type`,
		`template.spec.volumes[2].projected.sources[0].serviceAccountToken.expirationSeconds: Required value`,
	})
}

func TestDrop(t *testing.T) {
	t.Parallel()
	got := read(t, `{metadata: {annotations: {pod.beta.kubernetes.io/init-containers: "[]", note: x}}, spec: {
		schedulingGroup: {podGroupName: g}, evictionResponders: [{name: a.b/c}],
		containers: [{name: a, lifecycle: {stopSignal: SIGTERM}, livenessProbe: {httpGet: {protocol: HTTP2}, grpc: {port: 1, mode: TLS}}, volumeMounts: [{name: v, bindMountOptions: [noexec]}]},
			{name: b, lifecycle: {stopSignal: SIGTERM, postStart: {httpGet: {port: 1, protocol: HTTP1}}}}],
		volumes: [{name: a, emptyDir: {mode: 1}}, {name: b, secret: {defaultUser: 1, items: [{key: a, user: 2}]}}, {name: c, configMap: {defaultUser: 1, items: [{key: a, user: 2}]}},
			{name: d, downwardAPI: {defaultUser: 1, items: [{path: a, user: 2}]}},
			{name: e, projected: {defaultUser: 1, sources: [{secret: {items: [{key: a, user: 2}]}}, {configMap: {items: [{key: a, user: 2}]}}, {downwardAPI: {items: [{path: a, user: 2}]}},
				{serviceAccountToken: {user: 2}}, {clusterTrustBundle: {user: 2}}, {podCertificate: {user: 2}}]}}]
	}}`)
	want := read(t, `{metadata: {annotations: {note: x}}, spec: {
		containers: [{name: a, livenessProbe: {httpGet: {}, grpc: {port: 1}}, volumeMounts: [{name: v}]}, {name: b, lifecycle: {postStart: {httpGet: {port: 1}}}}],
		volumes: [{name: a, emptyDir: {}}, {name: b, secret: {items: [{key: a}]}}, {name: c, configMap: {items: [{key: a}]}}, {name: d, downwardAPI: {items: [{path: a}]}},
			{name: e, projected: {sources: [{secret: {items: [{key: a}]}}, {configMap: {items: [{key: a}]}}, {downwardAPI: {items: [{path: a}]}},
				{serviceAccountToken: {}}, {clusterTrustBundle: {}}, {podCertificate: {}}]}}]
	}}`)
	if Drop(got); !apiequality.Semantic.DeepEqual(got, want) {
		t.Errorf("left is\n%s\nwant\n%s", text(t, got), text(t, want))
	}
}

func TestPullPolicy(t *testing.T) {
	t.Parallel()
	sha := "sha256:" + strings.Repeat("a", 64)
	for image, want := range map[string]bool{
		"a": true, "a:latest": true, "a/b/c": true, "localhost/a": true, "localhost:5000/a": true, "[::1]:5000/a": true,
		"index.docker.io/a": true, "EXAMPLE/a": true,
		"a@" + sha: false, "a:v1": false, "a:latest@" + sha: true, "": false, " ": false, "A": false, "a/B": false, "a b": false, "a:": false,
		"a@sha256:abc":                     false,
		"a@md5:" + strings.Repeat("a", 32): false, strings.Repeat("a", 64): false, strings.Repeat("b", 256): false, "a//b": false,
		"a__b": true, "a___b": false, "a--b": true,
	} {
		if got := latest(image); got != want {
			t.Errorf("%q is the latest: %t", image, got)
		}
	}
}
