package rbac

import (
	"reflect"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// parse returns an object from YAML; nil if text is empty.
func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	if text == "" {
		return nil
	}
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func reconciled[T any](
	t *testing.T,
	existing, wanted, write string,
	operation Operation,
	reconcile func(existing, wanted *T) (*T, Operation),
) {
	t.Helper()
	before, want := parse[T](t, existing), parse[T](t, wanted)
	got, op := reconcile(before, want)
	if op != operation || !reflect.DeepEqual(got, parse[T](t, write)) {
		t.Errorf("operation %v, want %v; to write %+v", op, operation, got)
	}
	if !reflect.DeepEqual(before, parse[T](t, existing)) || !reflect.DeepEqual(want, parse[T](t, wanted)) {
		t.Error("what was given is changed")
	}
	if got != nil && op != Keep {
		if again, op := reconcile(got, want); op != Keep {
			t.Errorf("a second time: %v, %+v", op, again)
		}
	}
}

func TestReconcileClusterRole(t *testing.T) {
	const (
		role = `{metadata: {name: r, labels: {a: b}, annotations: {rbac.authorization.kubernetes.io/autoupdate: "true"}}, rules: [{verbs: ` +
			`[get, list], apiGroups: [""], resources: [pods]}]}`
		selects = `{metadata: {name: r}, aggregationRule: {clusterRoleSelectors: [{matchLabels: {x: "1"}}, {matchLabels: {x: "2"}}]}}`
	)
	for _, test := range []struct {
		name, existing, wanted, write string
		operation                     Operation
	}{
		{"missing", "", role, role, Create},
		{"the same", role, role, "", Keep},
		{"the same in another way and more",
			`{metadata: {name: r, uid: u, resourceVersion: "7", labels: {a: b, c: d}, annotations: {rbac.authorization.kubernetes.io/autoupdate: "true", e: f}},
			  rules: [{verbs: ["*"], apiGroups: [""], resources: [pods]}, {verbs: [get], apiGroups: [x], resources: [y]}]}`, role, "", Keep},
		{"protected", `{metadata: {name: r, annotations: {rbac.authorization.kubernetes.io/autoupdate: "false"}}}`, role, "", Keep},
		{"rules and labels are missing", `{metadata: {name: r, uid: u, resourceVersion: "7"}, rules: [{verbs: [get], apiGroups: [""], ` +
			`resources: [pods]}]}`, role,
			`{metadata: {name: r, uid: u, resourceVersion: "7", labels: {a: b}, annotations: {rbac.authorization.kubernetes.io/autoupdate: "true"}},
			  rules: [{verbs: [get], apiGroups: [""], resources: [pods]}, {verbs: [list], apiGroups: [""], resources: [pods]}]}`, Update},
		{"a label has another value", `{metadata: {name: r, labels: {a: other}, annotations: {rbac.authorization.kubernetes.io/autoupdate: ` +
			`"yes"}}, rules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}]}`, role, "", Keep},
		{"a selector is missing", `{metadata: {name: r}, aggregationRule: {clusterRoleSelectors: [{matchLabels: {x: "0"}}, {matchLabels: {x: ` +
			`"2"}}]}, rules: [{verbs: [get], apiGroups: [""], resources: [pods]}]}`, selects,
			`{metadata: {name: r}, aggregationRule: {clusterRoleSelectors: [{matchLabels: {x: "0"}}, {matchLabels: {x: "2"}}, {matchLabels: {x: ` +
				`"1"}}]}, rules: [{verbs: [get], apiGroups: [""], resources: [pods]}]}`, Update},
		{"aggregation is missing", `{metadata: {name: r}}`, selects, selects, Update},
		{"aggregation is not wanted", selects, `{metadata: {name: r}}`, `{metadata: {name: r}}`, Update},
	} {
		t.Run(test.name, func(t *testing.T) {
			reconciled(t, test.existing, test.wanted, test.write, test.operation, ReconcileClusterRole)
		})
	}
}

func TestReconcileClusterRoleBinding(t *testing.T) {
	const binding = `{metadata: {name: b, labels: {a: b}}, roleRef: {kind: ClusterRole, name: r}, subjects: [{kind: User, name: ann}, ` +
		`{kind: Group, name: dev}]}`
	for _, test := range []struct {
		name, existing, wanted, write string
		operation                     Operation
	}{
		{"missing", "", binding, binding, Create},
		{"the same", binding, binding, "", Keep},
		{"more subjects", `{metadata: {name: b, labels: {a: c}}, roleRef: {kind: ClusterRole, name: r}, subjects: [{kind: Group, name: dev}, ` +
			`{kind: User, name: eve}, {kind: User, name: ann}]}`, binding, "", Keep},
		{"protected", `{metadata: {name: b, annotations: {rbac.authorization.kubernetes.io/autoupdate: "false"}}, roleRef: {kind: ` +
			`ClusterRole, name: other}}`, binding, "", Keep},
		{"subjects are missing", `{metadata: {name: b, uid: u}, roleRef: {kind: ClusterRole, name: r}, subjects: [{kind: User, name: eve}, ` +
			`{kind: Group, name: dev}]}`, binding,
			`{metadata: {name: b, uid: u, labels: {a: b}}, roleRef: {kind: ClusterRole, name: r}, subjects: [{kind: User, name: eve}, {kind: ` +
				`Group, name: dev}, {kind: User, name: ann}]}`, Update},
		{"another role", `{metadata: {name: b, uid: u}, roleRef: {kind: ClusterRole, name: s}, subjects: [{kind: User, name: eve}]}`, binding,
			binding, Recreate},
	} {
		t.Run(test.name, func(t *testing.T) {
			reconciled(t, test.existing, test.wanted, test.write, test.operation, ReconcileClusterRoleBinding)
		})
	}
}

func TestReconcileRoleBinding(t *testing.T) {
	const binding = `{metadata: {namespace: n, name: b, labels: {a: b}}, roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: ann}]}`
	for _, test := range []struct {
		name, existing, wanted, write string
		operation                     Operation
	}{
		{"missing", "", binding, binding, Create},
		{"the same", binding, binding, "", Keep},
		{"protected", `{metadata: {namespace: n, name: b, annotations: {rbac.authorization.kubernetes.io/autoupdate: "false"}}}`, binding, "",
			Keep},
		{"subjects are missing",
			`{metadata: {namespace: n, name: b, uid: u}, roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: eve}]}`, binding,
			`{metadata: {namespace: n, name: b, uid: u, labels: {a: b}}, roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: eve}, ` +
				`{kind: User, name: ann}]}`, Update},
		{"another role", `{metadata: {namespace: n, name: b, uid: u}, roleRef: {kind: Role, name: s}}`, binding, binding, Recreate},
	} {
		t.Run(test.name, func(t *testing.T) {
			reconciled(t, test.existing, test.wanted, test.write, test.operation, ReconcileRoleBinding)
		})
	}
}

func TestBootstrap(t *testing.T) {
	objects := Bootstrap()
	if n := []int{
		len(objects.ClusterRoles),
		len(objects.ClusterRoleBindings),
		len(objects.Roles),
		len(objects.RoleBindings),
	}; n[0] < 60 || n[1] < 50 || n[2] < 7 ||
		n[3] < 7 {
		t.Errorf("%v objects", n)
	}
	roles := map[string]bool{}
	check := func(kind string, m metav1.ObjectMeta, errs error) {
		t.Helper()
		if errs != nil || m.Labels["kubernetes.io/bootstrapping"] != "rbac-defaults" || m.Annotations[rbacv1.AutoUpdateAnnotationKey] != "true" {
			t.Errorf("%s %s/%s: %v, labels %v, annotations %v", kind, m.Namespace, m.Name, errs, m.Labels, m.Annotations)
		}
	}
	var clusterRoles []*rbacv1.ClusterRole
	for i := range objects.ClusterRoles {
		o := &objects.ClusterRoles[i]
		check("ClusterRole", o.ObjectMeta, ValidateClusterRole(o).ToAggregate())
		roles["/"+o.Name] = true
		clusterRoles = append(clusterRoles, o)
		if aggregated := o.AggregationRule != nil; aggregated != (len(o.Rules) == 0) {
			t.Errorf("ClusterRole %s is aggregated: %v, and has %d rules", o.Name, aggregated, len(o.Rules))
		}
	}
	for i := range objects.Roles {
		o := &objects.Roles[i]
		check("Role", o.ObjectMeta, ValidateRole(o).ToAggregate())
		roles[o.Namespace+"/"+o.Name] = true
	}
	known := func(kind string, m metav1.ObjectMeta, ref rbacv1.RoleRef) {
		t.Helper()
		if namespace := map[string]string{"Role": m.Namespace}[ref.Kind]; !roles[namespace+"/"+ref.Name] {
			t.Errorf("%s %s/%s refers to the %s %s, which is not there", kind, m.Namespace, m.Name, ref.Kind, ref.Name)
		}
	}
	for i := range objects.ClusterRoleBindings {
		o := &objects.ClusterRoleBindings[i]
		check("ClusterRoleBinding", o.ObjectMeta, ValidateClusterRoleBinding(o).ToAggregate())
		known("ClusterRoleBinding", o.ObjectMeta, o.RoleRef)
	}
	for i := range objects.RoleBindings {
		o := &objects.RoleBindings[i]
		check("RoleBinding", o.ObjectMeta, ValidateRoleBinding(o).ToAggregate())
		known("RoleBinding", o.ObjectMeta, o.RoleRef)
	}
	rules, err := AggregateAll(clusterRoles)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(rules["view"]); n == 0 || len(rules["edit"]) <= n || len(rules["admin"]) <= len(rules["edit"]) {
		t.Errorf("admin, edit and view have %d, %d and %d rules", len(rules["admin"]), len(rules["edit"]), len(rules["view"]))
	}
}
