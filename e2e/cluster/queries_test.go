package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Queries go to the server itself, because the cluster only forwards paths below /apis. The cluster authenticates the
// caller and decides its rights: a caller who may list in two of three namespaces sees these two, in pages, totals
// and facets.
func TestQueries_rightsOfCluster(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	admin.given(permissions(t, "theatre"), "apply", "-f", "-")
	account, err := host.ServiceAccount(ending(t), "theatre", "theatre")
	if err != nil {
		t.Fatal(err)
	}
	server := startJoined(t, "theatre", "theatre-queries", account)
	server.register(t, plays.GroupVersion())
	if err := host.AwaitAvailable(ending(t), "v1.theatre.example.com", "True"); err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	var namespaces []string
	for i := range 3 {
		namespaces = append(namespaces, namespace(t))
		play := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "theatre.example.com/v1",
			"kind":       "Play",
			"metadata":   map[string]any{"name": fmt.Sprint("p", i)},
			"spec":       map[string]any{"title": "A play"},
		}}
		if _, err := objects.Resource(plays).Namespace(namespaces[i]).Create(t.Context(), play, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"reader", "stranger"} {
		if _, err := client.CoreV1().
			ServiceAccounts(namespaces[2]).
			Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := host.ServiceAccount(ending(t), namespaces[2], "reader")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := host.ServiceAccount(ending(t), namespaces[2], "stranger")
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range namespaces[:2] {
		role := &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{plays.Group}, Resources: []string{"plays"}, Verbs: []string{"list"}}},
		}
		if _, err := client.RbacV1().Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespaces[2], Name: "reader"}},
		}
		if _, err := client.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	path := "/query/theatre.example.com/v1/plays?sortBy=name&ascending=false&facets=namespace"
	for _, ns := range namespaces { // there may be plays of other tests
		path += "&namespace=" + ns
	}
	if code, page := server.query(t, host.Admin(), path); code != http.StatusOK || !slices.Equal(page.names(), []string{"p2", "p1", "p0"}) {
		t.Errorf("an administrator: %d %v", code, page.names())
	}
	code, page := server.query(t, reader, path)
	if code != http.StatusOK || !slices.Equal(page.names(), []string{"p1", "p0"}) || page.TotalItems != 2 ||
		len(page.Facets["namespace"]) != 2 {
		t.Errorf("one who may list in two namespaces: %d %v, %d in all, facets %v", code, page.names(), page.TotalItems, page.Facets)
	}
	if code, _ := server.query(t, reader, "/query/theatre.example.com/v1/namespaces/"+namespaces[2]+"/plays"); code != http.StatusForbidden {
		t.Errorf("the third namespace: %d", code)
	}
	if code, _ := server.query(t, stranger, path); code != http.StatusForbidden {
		t.Errorf("one who may list in none: %d", code)
	}
	if code, _ := server.query(t, &rest.Config{}, path); code != http.StatusUnauthorized && code != http.StatusForbidden {
		t.Errorf("no credentials: %d", code)
	}
}

type queried struct {
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	} `json:"items"`
	TotalItems int `json:"totalItems"`
	Facets     map[string][]struct {
		Value string `json:"value"`
	} `json:"facets"`
}

func (q queried) names() (names []string) {
	for _, item := range q.Items {
		names = append(names, item.Metadata.Name)
	}
	return names
}

// query sends a query to the server at its own address, as the caller of a configuration of the cluster.
func (c *joined) query(t *testing.T, caller *rest.Config, path string) (int, queried) {
	t.Helper()
	config := rest.CopyConfig(caller)
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", c.Port(0))
	config.TLSClientConfig.CAFile, config.TLSClientConfig.CAData = "", c.serving.PEM()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Get(config.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var page queried
	if response.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, &page); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
	} else {
		t.Logf("%s: %s", response.Status, body)
	}
	return response.StatusCode, page
}
