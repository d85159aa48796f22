package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig starts a world and writes a kubeconfig for it.
func kubeconfig(t *testing.T, w *world) Options {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: w.start().Host}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	file.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return Options{Kubeconfig: path, All: true}
}

func TestRepairs_missingBindings(t *testing.T) {
	w := newWorld(t)
	w.lacks["get configmaps"], w.lacks["create tokenreviews"], w.lacks["list flowschemas"] = true, true, true
	w.spec["caBundle"] = newAuthority(t, "stranger", w.signs.certificate.NotAfter).pem()
	options := kubeconfig(t, w)
	found, err := Examine(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	repairs := Repairs(append(found, found...)) // two versions of one server lack the same binding
	if len(repairs) != 2 {
		t.Fatalf("%+v", repairs)
	}
	for _, r := range repairs {
		if err := r.Apply(t.Context(), options, true); err != nil {
			t.Error(err)
		}
	}
	if len(w.created) != 0 {
		t.Errorf("a dry run has created %v", w.created)
	}
	for _, r := range repairs {
		if err := r.Apply(t.Context(), options, false); err != nil {
			t.Error(err)
		}
	}
	for i, want := range []string{
		"kind: RoleBinding\nmetadata:\n  name: api.shop:extension-apiserver-authentication-reader\n  namespace: kube-system\nroleRef:\n  " +
			"apiGroup: rbac.authorization.k8s.io\n  kind: Role\n  name: extension-apiserver-authentication-reader\nsubjects:\n- kind: " +
			"ServiceAccount\n  name: api\n  namespace: shop\n",
		"kind: ClusterRoleBinding\nmetadata:\n  name: api.shop:system:auth-delegator\nroleRef:\n  apiGroup: rbac.authorization.k8s.io\n  " +
			"kind: ClusterRole\n  name: system:auth-delegator\nsubjects:\n- kind: ServiceAccount\n  name: api\n  namespace: shop\n",
	} {
		if got := repairs[i].YAML(); got != "apiVersion: rbac.authorization.k8s.io/v1\n"+want {
			t.Error(got)
		}
		if w.created[i]["kind"] != strings.TrimPrefix(strings.Split(want, "\n")[0], "kind: ") {
			t.Errorf("created %v", w.created[i])
		}
	}
	again, err := ExamineRepaired(t.Context(), options, repairs)
	if err != nil || len(again) != 1 {
		t.Fatal(again, err)
	}
	if first := again[0].First(); first == nil || first.Reason != ReasonUnknownAuthority {
		t.Errorf("the certificate is left to its owner: %s", again[0].text(true))
	}
}

func TestApply_existingBinding_isKept(t *testing.T) {
	w := newWorld(t)
	w.lacks["get configmaps"] = true
	options := kubeconfig(t, w)
	found, err := Examine(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	w.taken = true
	err = Repairs(found)[0].Apply(t.Context(), options, false)
	if err == nil || !strings.Contains(err.Error(), "another binding has the same name") {
		t.Error(err)
	}
}

func TestExamine_unauthenticated(t *testing.T) {
	w := newWorld(t)
	options := kubeconfig(t, w)
	w.stranger = true
	if _, err := Examine(
		t.Context(),
		options,
	); err == nil ||
		!strings.Contains(err.Error(), "does not accept the credentials of the kubeconfig (401)") {
		t.Error(err)
	}
	w.stranger, w.refused["/apis/apiregistration.k8s.io/v1/apiservices"] = false, true
	if _, err := Examine(t.Context(), options); err == nil || !strings.Contains(err.Error(), "list APIServices: forbidden") {
		t.Error(err)
	}
	w.refused = map[string]bool{}
	w.standalone = true
	if _, err := Examine(
		t.Context(),
		options,
	); err == nil ||
		!strings.Contains(err.Error(), "does not serve APIServices: it is not the kube-apiserver of a cluster") {
		t.Error(err)
	}
	if err := os.WriteFile(options.Kubeconfig, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Examine(
		t.Context(),
		options,
	); err == nil ||
		!strings.Contains(err.Error(), "kubeconfig "+options.Kubeconfig) && !strings.Contains(err.Error(), options.Kubeconfig) {
		t.Error(err)
	}
}
