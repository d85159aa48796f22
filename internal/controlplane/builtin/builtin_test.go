package builtin

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
)

// find returns the kind or alias with a name of Names.
func find(t *testing.T, wanted string) *define.Kind {
	t.Helper()
	server, err := (&define.Server{Name: "test"}).With(Groups()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range server.Groups {
		for _, k := range g.Kinds {
			if name(g, k) == wanted {
				return k
			}
		}
	}
	t.Fatalf("there is no kind %s", wanted)
	return nil
}

// read decodes YAML into an object of the hub, with defaults.
func read(t *testing.T, k *define.Kind, text string) runtime.Object {
	t.Helper()
	v := k.Versions[0]
	obj := v.New()
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatal(err)
	}
	if v.Default != nil {
		v.Default(obj)
	}
	if v.ToHub == nil {
		return obj
	}
	hub := k.Hub().New()
	if err := v.ToHub(obj, hub); err != nil {
		t.Fatal(err)
	}
	objects.Meta(hub).SetNamespace(objects.Meta(obj).GetNamespace())
	return hub
}

func contextOf(group string) context.Context {
	return request.WithRequestInfo(context.Background(), &request.RequestInfo{IsResourceRequest: true, APIGroup: group})
}

func refused(t *testing.T, errs field.ErrorList, want []string) {
	t.Helper()
	var said []string
	for _, e := range errs {
		said = append(said, e.Error())
	}
	slices.Sort(said)
	slices.Sort(want)
	if !slices.Equal(said, want) {
		t.Errorf("it is refused with\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
}

// The expected errors are those of a kube-apiserver: e2e/cluster/builtin compares many more.
func TestValidate_create(t *testing.T) {
	t.Parallel()
	rule := `{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [foos]}`
	for name, test := range map[string]struct {
		kind, object string
		want         []string
	}{
		"a config map": {"configmaps", `{data: {a: b}, binaryData: {c: AA==}}`, nil},
		"keys of config maps": {"configmaps", `{data: {a: b, "c/d": x}, binaryData: {a: AA==}}`, []string{
			`data[a]: Invalid value: "a": duplicate of key present in binaryData`,
			`data[c/d]: Invalid value: "c/d": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or ` +
				`'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`,
		}},
		"bare finalizers": {"configmaps", `{metadata: {finalizers: [short, orphan, example.com/hold]}}`, []string{
			`metadata.finalizers[0]: Invalid value: "short": name is neither a standard finalizer name nor is it fully qualified`,
		}},
		"a bare finalizer of a secret": {"secrets", `{metadata: {finalizers: [short]}}`, []string{
			`metadata.finalizers[0]: Invalid value: "short": name is neither a standard finalizer name nor is it fully qualified`,
		}},
		"a pod template": {"podtemplates", `{template: {spec: {containers: [{name: a, image: a}]}}}`, nil},
		"an empty pod template": {"podtemplates", `{metadata: {finalizers: [short]}, template: {}}`, []string{
			`metadata.finalizers[0]: Invalid value: "short": name is neither a standard finalizer name nor is it fully qualified`,
			`template.spec.containers: Required value`,
		}},
		"a remote API service": {"apiservices.apiregistration.k8s.io", `{metadata: {name: v1.a.b}, spec: {group: a.b, version: v1, ` +
			`groupPriorityMinimum: 20000, versionPriority: 1000, service: {namespace: a, name: b}, caBundle: YWJj}}`, nil},
		"an API service to nowhere": {"apiservices.apiregistration.k8s.io", `{metadata: {name: shop}, spec: {group: a.b, version: v1, ` +
			`groupPriorityMinimum: 1, versionPriority: 1, service: {port: 0}, caBundle: YWJj, insecureSkipTLSVerify: true}}`, []string{
			"metadata.name: Invalid value: \"shop\": must be `spec.version+\".\"+spec.group`: \"v1.a.b\"",
			`spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present`,
			`spec.service.name: Required value`, `spec.service.namespace: Required value`,
			`spec.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive`,
		}},
		"a local API service that is verified": {"apiservices.apiregistration.k8s.io", `{metadata: {name: v1.a.b}, spec: {group: a.b, ` +
			`version: v1, caBundle: YWJj}}`, []string{
			`spec.caBundle: Invalid value: "3 bytes": local APIServices may not have a caBundle`,
			`spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000`,
			`spec.versionPriority: Invalid value: 0: must be positive and less than 1000`,
		}},
		"a service outside":         {"services", `{spec: {type: ExternalName, externalName: 127.0.0.1, ports: [{port: 443}]}}`, nil},
		"a service with a last dot": {"services", `{spec: {type: ExternalName, externalName: shop.example.com.}}`, nil},
		"a service in a network":    {"services", `{spec: {ports: [{port: 443}]}}`, []string{`spec.type: Invalid value: "ClusterIP": this server has no cluster network: must be ExternalName, with the host of the server in spec.externalName`}},
		"a service of no type": {"services", `{spec: {type: Odd}}`, []string{`spec.type: Unsupported value: "Odd": supported values: ` +
			`"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`}},
		"a service that is nowhere": {"services", `{spec: {type: ExternalName, clusterIP: None, ipFamilies: [IPv4], sessionAffinity: Odd, ` +
			`ports: [{port: 1}, {name: a, port: 1, protocol: X, targetPort: 70000}]}}`, []string{
			`spec.clusterIPs: Forbidden: may not be set for ExternalName services`, `spec.ipFamilies: Forbidden: may not be set for ` +
				`ExternalName services`,
			`spec.externalName: Required value`, `spec.ports[0].name: Required value`,
			`spec.ports[1].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"`,
			`spec.ports[1].targetPort: Invalid value: 70000: must be between 1 and 65535, inclusive`,
			`spec.sessionAffinity: Unsupported value: "Odd": supported values: "ClientIP", "None"`,
		}},
		"too large a config map": {"configmaps", `{data: {a: ` + strings.Repeat("x", 1<<20+1) + `}}`, []string{`[]: Too long: may not be ` +
			`more than 1048576 bytes`}},
		"a secret in plain text": {"secrets", `{stringData: {a: b}}`, nil},
		"an account without a name": {"secrets", `{type: kubernetes.io/service-account-token}`,
			[]string{`metadata.annotations[kubernetes.io/service-account.name]: Required value`}},
		"a docker config that is none": {"secrets", `{type: kubernetes.io/dockercfg, stringData: {.dockercfg: x}}`, []string{
			`data[.dockercfg]: Invalid value: "<secret contents redacted>": invalid character 'x' looking for beginning of value`,
		}},
		"no password": {"secrets", `{type: kubernetes.io/basic-auth}`, []string{`data[password]: Required value`, `data[username]: ` +
			`Required value`}},
		"no private key": {"secrets", `{type: kubernetes.io/tls, stringData: {tls.crt: x}}`, []string{`data[tls.key]: Required value`}},
		"an event of another namespace": {"events", `{metadata: {namespace: a}, involvedObject: {namespace: b}}`, []string{
			`involvedObject.namespace: Invalid value: "b": does not match event.namespace`,
		}},
		"an event of the old style": {"events", `{metadata: {namespace: a}, involvedObject: {namespace: a}, type: Odd}`, nil},
		"an event of the new style": {"events.events.k8s.io", `{metadata: {namespace: a}, regarding: {namespace: a}, type: Odd, ` +
			`deprecatedCount: 1, series: {count: 1}}`, []string{
			`count: Invalid value: "": needs to be unset`, `eventTime: Required value`, `series.count: Invalid value: "": should be at least 2`,
			`series.lastObservedTime: Required value`, `type: Invalid value: "": has invalid value: Odd`,
		}},
		"an event that says nothing": {"events", `{metadata: {namespace: default}, eventTime: "2020-01-01T00:00:00.000001Z", ` +
			`reportingComponent: a, message: ` + strings.Repeat("x", 1025) + `}`, []string{
			`action: Required value`, `message: Invalid value: "": can have at most 1024 characters`, `reason: Required value`,
			`reportingInstance: Required value`,
		}},
		"a quota": {"resourcequotas", `{spec: {hard: {pods: "3", cpu: 1.5, count/things.example.com: "2"}, scopes: [NotBestEffort]}}`, nil},
		"what a quota cannot count": {"resourcequotas", `{spec: {hard: {pods: "1.5", things: "1", configmaps: "-1"}, scopes: [BestEffort, ` +
			`NotBestEffort, Odd]}}`, []string{
			`spec.hard[configmaps]: Invalid value: "-1": must be greater than or equal to 0`,
			`spec.hard[pods]: Invalid value: "1500m": must be an integer`,
			`spec.hard[things]: Invalid value: "things": must be a standard resource for quota`,
			`spec.hard[things]: Invalid value: "things": must be a standard resource type or fully qualified`,
			`spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Odd"]: conflicting scopes`,
			`spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Odd"]: unsupported scope`,
			`spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Odd"]: unsupported scope applied to resource`,
			`spec.scopes: Invalid value: ["BestEffort","NotBestEffort","Odd"]: unsupported scope applied to resource`,
		}},
		"limits": {"limitranges", `{spec: {limits: [{type: Container, max: {cpu: 2}, min: {cpu: 1}}]}}`, nil},
		"limits that cannot be kept": {"limitranges", `{spec: {limits: [{type: Pod, max: {cpu: 1}, min: {cpu: 2}, default: {cpu: 1}}, {type: ` +
			`Pod}, {type: PersistentVolumeClaim}, {type: Odd}]}}`, []string{
			`spec.limits[0].default: Forbidden: may not be specified when ` + "`type`" + ` is 'Pod'`,
			`spec.limits[0].default[cpu]: Invalid value: "2": min value 2 is greater than default value 1`,
			`spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1`,
			`spec.limits[1].type: Duplicate value: "Pod"`,
			`spec.limits[2].limits: Required value: either minimum or maximum storage value is required, but neither was provided`,
			`spec.limits[3].type: Invalid value: "Odd": must be a standard limit type or fully qualified`,
		}},
		"a candidate for nothing": {"leasecandidates.coordination.k8s.io", `{}`, []string{
			`spec.leaseName: Required value`, `spec.binaryVersion: Required value`, `spec.strategy: Required value`}},
		"a candidate of an unknown version": {"leasecandidates.coordination.k8s.io", `{spec: {leaseName: l, binaryVersion: v1.2.3, ` +
			`emulationVersion: "1.2", strategy: OldestEmulationVersion}}`, []string{
			`spec.emulationVersion: Invalid value: "1.2": must be a valid semantic version`, `spec.binaryVersion: Invalid value: "v1.2.3": must ` +
				`be a valid semantic version`,
			"spec.emulationVersion: Required value: must be specified when `strategy` is 'OldestEmulationVersion'"}},
		"a candidate that emulates the future": {"leasecandidates.coordination.k8s.io", `{spec: {leaseName: l, binaryVersion: 1.2.3, ` +
			`emulationVersion: 1.3.0, strategy: Newest}}`, []string{
			"spec.binaryVersion: Invalid value: \"1.2.3\": must be greater than or equal to `emulationVersion`", `spec.strategy.strategy: ` +
				`Unsupported value: "Newest": supported values: "OldestEmulationVersion"`}},
		"a candidate with an odd strategy": {"leasecandidates.coordination.k8s.io", `{spec: {leaseName: l, binaryVersion: 1.2.3, strategy: ` +
			`example.com/}}`, []string{
			`spec.strategy.strategy: Invalid value: "example.com/": name part must be non-empty`,
			`spec.strategy.strategy: Invalid value: "example.com/": name part must consist of alphanumeric characters, '-', '_' or '.', and ` +
				`must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is ` +
				`'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`}},
		"a lease that never ends": {"leases.coordination.k8s.io", `{spec: {leaseDurationSeconds: 0, leaseTransitions: -1}}`, []string{
			`spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0`, `spec.leaseTransitions: Invalid value: -1: must be greater ` +
				`than or equal to 0`,
		}},
		"a migration of nothing": {"storageversionmigrations.storagemigration.k8s.io", `{}`, []string{`spec.resource.resource: Required ` +
			`value: resource is required to be set`}},
		"a migration of a name with two faults": {"storageversionmigrations.storagemigration.k8s.io", `{spec: {resource: {resource: ` +
			strings.Repeat("A", 64) + `}}}`, []string{
			`spec.resource.resource: Invalid value: "` + strings.Repeat("A", 64) + `": must be no more than 63 characters,a DNS-1035 label must ` +
				`consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character ` +
				`(e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')`,
		}},
		"a webhook": {"validatingwebhookconfigurations.admissionregistration.k8s.io", `{webhooks: [{name: a.example.com, clientConfig: {url: ` +
			`"https://x/"}, sideEffects: None, admissionReviewVersions: [v1], rules: [` + rule + `]}]}`, nil},
		"an empty webhook": {"mutatingwebhookconfigurations.admissionregistration.k8s.io", `{webhooks: [{name: a}]}`, []string{
			`webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1`,
			`webhooks[0].clientConfig: Required value: exactly one of url or service is required`,
			`webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots`,
			`webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun`,
		}},
		"a webhook that says an odd version twice": {"mutatingwebhookconfigurations.admissionregistration.k8s.io", `{webhooks: [{name: ` +
			`a.example.com, clientConfig: {url: "https://x/"}, sideEffects: None, admissionReviewVersions: [v1, "1", "1"], rules: [` + rule +
			`]}]}`, []string{
			`webhooks[0].admissionReviewVersions[1]: Invalid value: "1": a DNS-1035 label must consist of lower case alphanumeric characters or ` +
				`'-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for ` +
				`validation is '[a-z]([-a-z0-9]*[a-z0-9])?')`,
			`webhooks[0].admissionReviewVersions[2]: Invalid value: "1": duplicate version`,
		}},
		"a variable without a name": {"validatingadmissionpolicies.admissionregistration.k8s.io",
			`{spec: {matchConstraints: {resourceRules: [` + rule +
				`]}, variables: [{name: " ", expression: "1"}], validations: [{expression: "true"}]}}`, []string{
				`spec.variables[0].name: Required value: name is not specified`,
			}},
		"a condition that does not compile": {"validatingwebhookconfigurations.admissionregistration.k8s.io", `{webhooks: [{name: ` +
			`a.example.com, clientConfig: {url: "https://x/"}, sideEffects: None, admissionReviewVersions: [v1], matchConditions: [{name: a, ` +
			`expression: "1"}]}]}`, []string{
			`webhooks[0].matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int`,
		}},
		"a policy": {"validatingadmissionpolicies.admissionregistration.k8s.io", `{spec: {matchConstraints: {resourceRules: [` + rule +
			`]}, variables: [{name: a, expression: "1"}], validations: [{expression: "variables.a < 2"}]}}`, nil},
		"an empty policy": {"validatingadmissionpolicies.admissionregistration.k8s.io", `{}`, []string{`spec.auditAnnotations: Required ` +
			`value: validations or auditAnnotations must contain at least one item`, `spec.matchConstraints: Required value`,
			`spec.validations: Required value: validations or auditAnnotations must contain at least one item`}},
		"a binding that says the same twice": {"validatingadmissionpolicybindings.admissionregistration.k8s.io", `{spec: {policyName: a, ` +
			`validationActions: [Deny, Warn, Deny], paramRef: {}}}`, []string{
			`spec.paramRef.parameterNotFoundAction: Required value`,
			`spec.paramRef: Required value: one of name or selector must be specified`,
			`spec.validationActions: Invalid value: ["Deny","Warn","Deny"]: must not contain both Deny and Warn (repeating the same validation ` +
				`failure information in the API response and headers serves no purpose)`,
			`spec.validationActions[2]: Duplicate value: "Deny"`,
		}},
		"a mutation of deletions": {"mutatingadmissionpolicies.admissionregistration.k8s.io", `{spec: {reinvocationPolicy: Never, ` +
			`matchConstraints: {resourceRules: [` + strings.Replace(rule, "CREATE", "DELETE", 1) + `]}, mutations: [{patchType: JSONPatch, ` +
			`applyConfiguration: {expression: x}}]}}`, []string{
			`spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE"`,
			`spec.mutations[0].applyConfiguration: Invalid value: "{applyConfiguration}": must not be specified when patchType is JSONPatch`,
			`spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch`,
		}},
		"a binding to nothing": {"mutatingadmissionpolicybindings.admissionregistration.k8s.io", `{}`,
			[]string{`spec.policyName: Required value`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := find(t, test.kind)
			refused(t, k.Validate(contextOf(k.Group), read(t, k, test.object)), test.want)
		})
	}
}

func TestValidate_update(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind, old, object string
		want              []string
	}{
		"a config map": {"configmaps", `{data: {a: b}}`, `{data: {a: c}, immutable: true}`, nil},
		"a fixed config map": {"configmaps", `{data: {a: b}, immutable: true}`, `{data: {a: c}, binaryData: {c: AA==}}`,
			[]string{"binaryData: Forbidden: field is immutable when `immutable` is set",
				"data: Forbidden: field is immutable when `immutable` is set", "immutable: Forbidden: field is immutable when `immutable` is set"}},
		"a secret's type": {"secrets", `{}`, `{type: example.com/other}`, []string{`type: Invalid value: "example.com/other": field is ` +
			`immutable`}},
		"a fixed secret": {"secrets", `{data: {a: AA==}, immutable: true}`, `{immutable: true}`, []string{"data: Forbidden: field is " +
			"immutable when `immutable` is set"}},
		"an event": {"events", `{reason: A}`, `{reason: B}`, nil},
		"a new event": {"events.events.k8s.io", `{reason: A, regarding: {name: x}}`, `{reason: B, series: {count: 3}}`,
			[]string{`involvedObject: Invalid value: {"Kind":"","Namespace":"","Name":"","UID":"","APIVersion":"","ResourceVersion":"","FieldPath":""}: field is immutable`, `reason: Invalid value: "B": field is immutable`}},
		"a quota's scopes": {"resourcequotas", `{spec: {scopes: [BestEffort]}}`, `{}`, []string{`spec.scopes: Invalid value: null: field is ` +
			`immutable`}},
		"a migration": {"storageversionmigrations.storagemigration.k8s.io", `{spec: {resource: {resource: a}}}`, `{spec: {resource: ` +
			`{resource: b}}}`, []string{`spec: Invalid value: {"Resource":{"group":"","resource":"b"}}: field is immutable`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := find(t, test.kind)
			refused(t, k.ValidateUpdate(contextOf(k.Group), read(t, k, test.object), read(t, k, test.old)), test.want)
		})
	}
}

func TestValidate_policyStatus(t *testing.T) {
	t.Parallel()
	k := find(t, "validatingadmissionpolicies.admissionregistration.k8s.io")
	policy := read(
		t,
		k,
		`{status: {typeChecking: {expressionWarnings: [{fieldRef: " spec.validations[0].expression ", warning: a}, {fieldRef: " ", warning: `+
			`a}, {fieldRef: "spec[", warning: ""}]}}}`,
	)
	refused(t, k.ValidateStatus(contextOf(k.Group), policy, policy), []string{
		`status.typeChecking.expressionWarnings[1].fieldRef: Required value`,
		`status.typeChecking.expressionWarnings[2].fieldRef: Invalid value: "spec[": invalid JSONPath: unterminated array`,
		`status.typeChecking.expressionWarnings[2].warning: Required value`,
	})
}

func TestValidate_migrationStatus(t *testing.T) {
	t.Parallel()
	k := find(t, "storageversionmigrations.storagemigration.k8s.io")
	condition := func(kind, status string) string {
		return `{type: ` + kind + `, status: "` + status + `", reason: a, lastTransitionTime: "2020-01-01T00:00:00Z"}`
	}
	of := func(version string, conditions ...string) runtime.Object {
		return read(t, k, `{status: {resourceVersion: "`+version+`", conditions: [`+strings.Join(conditions, ", ")+`]}}`)
	}
	for name, test := range map[string]struct {
		old, updated runtime.Object
		want         []string
	}{
		"a version": {of(""), of("5"), nil},
		"a version that is none": {of(""), of("a"), []string{
			"status.resourceVersion: Invalid value: \"a\": resource version is not well formed: a",
		}},
		"another version": {of("5"), of("6"), []string{"status.resourceVersion: Invalid value: \"6\": field is immutable"}},
		"success":         {of("5", condition("Running", "True")), of("5", condition("Succeeded", "True")), nil},
		"success and failure": {of("5"), of("5", condition("Succeeded", "True"), condition("Failed", "True")),
			[]string{"Both success and failed conditions cannot be true at the same time"}},
		"success taken back": {of("5", condition("Succeeded", "True")), of("5", condition("Succeeded", "False")),
			[]string{"Success condition cannot be set to false once it is true"}},
		"failure taken back": {of("5", condition("Failed", "True")), of("5"),
			[]string{"Failed condition cannot be set to false once it is true"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := k.ValidateStatus(contextOf(k.Group), test.updated, test.old)
			if len(errs) != len(test.want) {
				t.Fatalf("%v, want %q", errs, test.want)
			}
			for i, err := range errs {
				if !strings.HasSuffix(err.Error(), test.want[i]) {
					t.Errorf("%v, want %q", err, test.want[i])
				}
			}
		})
	}
}

func TestWarn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind, object string
		want         []string
	}{
		"requests above limits": {"resourcequotas", `{spec: {hard: {cpu: 3, limits.cpu: 2, memory: 3, requests.memory: 1, limits.memory: 2, ` +
			`requests.ephemeral-storage: 2, limits.ephemeral-storage: 1}}}`, []string{
			"ResourceQuota cpu (3) should be less than limits.cpu (2)", "ResourceQuota requests.ephemeral-storage (2) should be less than " +
				"limits.ephemeral-storage (1)",
		}},
		"a pod template": {"podtemplates", `{template: {spec: {containers: [{name: a, image: a}], hostAliases: [{ip: 10.0.0.1}, {ip: ` +
			`10.0.0.1}]}}}`, []string{
			`template.spec.hostAliases[1].ip: duplicate ip "10.0.0.1"`,
		}},
		"requests within limits": {"resourcequotas", `{spec: {hard: {cpu: 2, limits.cpu: 2}}}`, nil},
		"a certificate that is none": {"secrets", `{type: kubernetes.io/tls, stringData: {tls.crt: x, tls.key: x}}`, []string{"tls: failed " +
			"to find any PEM data in certificate input"}},
		"a secret that is of no type": {"secrets", `{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := find(t, test.kind)
			if got := k.Warn(t.Context(), read(t, k, test.object)); !slices.Equal(got, test.want) {
				t.Errorf("warned of %q, want %q", got, test.want)
			}
		})
	}
}

func TestOptions_without(t *testing.T) {
	t.Parallel()
	if names := strings.Join(
		Names(),
		" ",
	); !strings.HasPrefix(names, "configmaps secrets events ") || !strings.Contains(names, " leases.coordination.k8s.io ") ||
		strings.Contains(names, "events.k8s.io") {
		t.Errorf("the names are %s", names)
	}
	groups, err := Options{Without: []string{"events", "admissionregistration.k8s.io", "leases.coordination.k8s.io"}}.Groups()
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, g := range groups {
		for _, k := range g.Kinds {
			left = append(left, name(g, k))
		}
	}
	if got := strings.Join(left, " "); got != "configmaps secrets resourcequotas limitranges podtemplates services "+
		"storageversionmigrations.storagemigration.k8s.io apiservices.apiregistration.k8s.io" {
		t.Errorf("left are %s", got)
	}
	if _, err := (&define.Server{Name: "test"}).With(groups...); err != nil {
		t.Error(err)
	}
	if _, err := (Options{Without: []string{"pods"}}).Groups(); err == nil ||
		!strings.HasPrefix(err.Error(), `unknown kind "pods"; kinds that can be disabled: configmaps, secrets, `) {
		t.Errorf("a kind that is not there: %v", err)
	}
}

func TestOptions_eventTTL(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]time.Duration{0: EventTTL, -1: 0, time.Minute: time.Minute} {
		groups, err := Options{EventTTL: ttl}.Groups()
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(groups[0].Kinds, func(k *define.Kind) bool { return k.Resource == "events" }); groups[0].Kinds[i].TTL != want {
			t.Errorf("with %s, they end after %s", ttl, groups[0].Kinds[i].TTL)
		}
	}
	if _, err := (Options{EventTTL: time.Millisecond}).Groups(); err == nil || err.Error() != "EventTTL 1ms: must be a whole number "+
		"of seconds" {
		t.Errorf("a part of a second: %v", err)
	}
}

func TestOptions_runtimeConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  map[string]bool
		without []string
		want    []string // kinds that are left of these three groups
	}{
		{nil, nil, []string{"configmaps", "events", "leases.coordination.k8s.io", "events.events.k8s.io"}},
		{map[string]bool{"api/all": false}, nil, nil},
		{map[string]bool{"api/ga": false, "coordination.k8s.io/v1": true}, nil, []string{"leases.coordination.k8s.io"}},
		{map[string]bool{"api/all": false, "api/ga": true, "api/beta": false, "api/alpha": true}, nil,
			[]string{"configmaps", "events", "leases.coordination.k8s.io", "events.events.k8s.io"}},
		{map[string]bool{"api/v1": false, "api/v1/configmaps": true}, nil, []string{"configmaps", "leases.coordination.k8s.io"}},
		{map[string]bool{"v1": false}, nil, []string{"leases.coordination.k8s.io"}},
		{map[string]bool{"api/v1/events": false}, nil, []string{"configmaps", "leases.coordination.k8s.io"}},
		{map[string]bool{"events.k8s.io/v1": false}, nil, []string{"configmaps", "events", "leases.coordination.k8s.io"}},
		{map[string]bool{"coordination.k8s.io/v1/leases": false}, []string{"configmaps"}, []string{"events", "events.events.k8s.io"}},
		{map[string]bool{"api/ga": false, "api/beta": true}, nil, []string{"leasecandidates.coordination.k8s.io"}},
		{map[string]bool{"coordination.k8s.io/v1": false, "coordination.k8s.io/v1beta1": true}, nil,
			[]string{"configmaps", "events", "events.events.k8s.io", "leasecandidates.coordination.k8s.io"}},
		{map[string]bool{"api/all": true, "api/beta": false, "coordination.k8s.io/v1beta1/leasecandidates": true}, nil,
			[]string{"configmaps", "events", "leases.coordination.k8s.io", "events.events.k8s.io", "leasecandidates.coordination.k8s.io"}},
		{map[string]bool{"api/beta": true}, []string{"coordination.k8s.io"}, []string{"configmaps", "events", "events.events.k8s.io"}},
	} {
		groups, err := Options{RuntimeConfig: c.config, Without: c.without}.Groups()
		if err != nil {
			t.Errorf("%v: %v", c.config, err)
		}
		left := map[string]bool{}
		for _, g := range groups {
			for _, k := range g.Kinds {
				left[name(g, k)] = true
			}
		}
		for _, kind := range []string{"configmaps", "events", "leases.coordination.k8s.io", "events.events.k8s.io",
			"leasecandidates.coordination.k8s.io"} {
			if left[kind] != slices.Contains(c.want, kind) {
				t.Errorf("%v without %v: %s is there: %t", c.config, c.without, kind, left[kind])
			}
		}
	}
}

func TestOptions_runtimeConfig_unknownKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		without []string
	}{{"api/v2", nil}, {"apps/v1", nil}, {"coordination.k8s.io/v1alpha2", nil}, {"coordination.k8s.io/v1/pods", nil}, {"configmaps", nil},
		{"api/v1/configmaps", []string{"configmaps"}}, {"rbac.authorization.k8s.io/v1", nil}} {
		_, err := Options{RuntimeConfig: map[string]bool{c.name: false}, Without: c.without}.Groups()
		if want := c.name + ": unknown API of the control plane; APIs are api/all, api/ga, " +
			"admissionregistration.k8s.io/v1, api/v1, "; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s without %v: %v", c.name, c.without, err)
		}
	}
}
