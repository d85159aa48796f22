package rbac

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// read returns an object of the file as the server decodes it from a client.
func read[T any](t *testing.T, raw json.RawMessage, setDefaults func(*T)) *T {
	t.Helper()
	if raw == nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	o := new(T)
	if err := decoder.Decode(o); err != nil {
		t.Fatal(err)
	}
	if setDefaults != nil {
		setDefaults(o)
	}
	return o
}

func validated[T any, P interface {
	*T
	metav1.Object
}](t *testing.T, object, old json.RawMessage, setDefaults func(*T), create func(*T) field.ErrorList,
	update func(o, old *T) field.ErrorList) field.ErrorList {
	t.Helper()
	o, before := read(t, object, setDefaults), read(t, old, setDefaults)
	if before == nil {
		return create(o)
	}
	P(o).SetResourceVersion("1") // the server fills it in
	P(before).SetResourceVersion("1")
	return update(o, before)
}

// The expected errors are those of a kube-apiserver: go -C e2e/cluster test ./rbac compares the file with one.
func TestValidate_likeKubeAPIServer(t *testing.T) {
	text, err := os.ReadFile("testdata/invalid.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name, Kind  string
		Object, Old json.RawMessage
		Errors      []string
	}
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	valid := 0
	for _, test := range all {
		t.Run(test.Name, func(t *testing.T) {
			var errs field.ErrorList
			switch test.Kind {
			case "Role":
				errs = validated(t, test.Object, test.Old, nil, ValidateRole, ValidateRoleUpdate)
			case "ClusterRole":
				errs = validated(t, test.Object, test.Old, nil, ValidateClusterRole, ValidateClusterRoleUpdate)
			case "RoleBinding":
				errs = validated(t, test.Object, test.Old, SetDefaultsRoleBinding, ValidateRoleBinding, ValidateRoleBindingUpdate)
			case "ClusterRoleBinding":
				errs = validated(t, test.Object, test.Old, SetDefaultsClusterRoleBinding, ValidateClusterRoleBinding, ValidateClusterRoleBindingUpdate)
			default:
				t.Fatalf("there is no kind %q", test.Kind)
			}
			var got []string
			for _, cause := range apierrors.NewInvalid(schema.GroupKind{}, "", errs).Status().Details.Causes {
				got = append(got, fmt.Sprintf("%s: %s: %s", cause.Type, cause.Field, cause.Message))
			}
			slices.Sort(got)
			if !slices.Equal(got, test.Errors) {
				t.Errorf("got  %q\nwant %q", got, test.Errors)
			}
			if len(got) == 0 {
				valid++
			}
		})
	}
	if len(all) < 30 || valid == 0 {
		t.Errorf("%d objects, %d of them valid", len(all), valid)
	}
}

func TestValidateClusterRoleUpdate_invalidSelector(t *testing.T) {
	bad := &rbacv1.ClusterRole{}
	if err := yaml.Unmarshal(
		[]byte(
			`{metadata: {name: r, resourceVersion: "1"}, aggregationRule: {clusterRoleSelectors: [{matchExpressions: [{key: a, operator: In, `+
				`values: ["b c"]}]}]}}`,
		),
		bad,
	); err != nil {
		t.Fatal(err)
	}
	create, update := ValidateClusterRole(bad), ValidateClusterRoleUpdate(bad, bad)
	if len(create) != 2 || len(update) != 1 || update[0].Detail != "invalid label selector." {
		t.Errorf("as a new role: %v\nas an update: %v", create, update)
	}
}

func TestSetDefaults(t *testing.T) {
	b := rbacv1.RoleBinding{Subjects: []rbacv1.Subject{
		{Kind: "User"}, {Kind: "Group"}, {Kind: "ServiceAccount"}, {Kind: "Robot"}, {Kind: "User", APIGroup: "example.com"},
	}}
	c := rbacv1.ClusterRoleBinding{Subjects: slices.Clone(b.Subjects), RoleRef: rbacv1.RoleRef{APIGroup: "example.com"}}
	SetDefaultsRoleBinding(&b)
	SetDefaultsClusterRoleBinding(&c)
	if b.RoleRef.APIGroup != rbacv1.GroupName || c.RoleRef.APIGroup != "example.com" {
		t.Errorf("of the roles: %q, %q", b.RoleRef.APIGroup, c.RoleRef.APIGroup)
	}
	var groups []string
	for _, s := range b.Subjects {
		groups = append(groups, s.APIGroup)
	}
	if want := names(
		rbacv1.GroupName,
		rbacv1.GroupName,
		"",
		"",
		"example.com",
	); !slices.Equal(groups, want) ||
		!reflect.DeepEqual(b.Subjects, c.Subjects) {
		t.Errorf("of the subjects: %q, want %q; %+v", groups, want, c.Subjects)
	}
}
