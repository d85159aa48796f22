package etcdtest_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
)

// rawValue returns the value in etcd at a key.
func rawValue(t *testing.T, etcd *clientv3.Client, key string) []byte {
	t.Helper()
	got, err := etcd.Get(t.Context(), key)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%s: %v, %v", key, got, err)
	}
	return got.Kvs[0].Value
}

func TestStoredForms_inEtcd(t *testing.T) {
	members := startCluster(t, 1, nil)
	raw, options := client(t, members), onEtcd(members)
	before := annex.Server{Name: "shop", Groups: []annex.Group{{
		Name: "shop.example.com",
		Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub)).
			StoredAs("v1beta1")},
	}}}
	t.Run("as JSON unless told otherwise", func(t *testing.T) {
		c := dynamic.NewForConfigOrDie(annextest.StartWith(t, before, options))
		for i := range 2 {
			if _, err := c.Resource(widgets).
				Namespace("default").
				Create(t.Context(), newWidget(fmt.Sprint("w", i)), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for key, want := range map[string]string{
			"/registry/shop.example.com/widgets/default/w0": `{"kind":"Widget","apiVersion":"shop.example.com/v1beta1"`,
			"/registry/namespaces/default":                  `{"kind":"Namespace","apiVersion":"v1"`,
		} {
			if value := rawValue(t, raw, key); !strings.HasPrefix(string(value), want) {
				t.Errorf("%s holds %q", key, value)
			}
		}
	})
	t.Run("as protobuf", func(t *testing.T) {
		other := options
		other.StorageMediaTypeOf = map[schema.GroupResource]string{{Resource: "namespaces"}: "application/vnd.kubernetes.protobuf"}
		c := dynamic.NewForConfigOrDie(annextest.StartWith(t, before, other))
		namespace := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "binary"}},
		}
		if _, err := c.Resource(namespaces).Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if value := rawValue(t, raw, "/registry/namespaces/binary"); !bytes.HasPrefix(value, []byte("k8s\x00")) {
			t.Errorf("it holds %q", value)
		}
	})
	flags := []string{"--storage=etcd", "--etcd-servers=" + strings.Join(endpoints(members), ",")}
	stats := strings.Join(strings.Fields(mustVerb(t, append([]string{"stats"}, flags...)...)), " ")
	for _, want := range []string{
		"namespaces v1, application/json 1",
		"namespaces v1, application/vnd.kubernetes.protobuf (until storage rewrite) 1",
		"widgets.shop.example.com v1beta1, application/json (this server does not have it) 2",
	} {
		if !strings.Contains(stats, want) {
			t.Errorf("stats say %s, not %s", stats, want)
		}
	}
	instance, err := annex.New(t.Context(), shop(), options)
	if err == nil { // it has not reached etcd yet
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err = instance.Run(ctx, func() { t.Error("it is ready"); cancel() })
	}
	if err == nil || !strings.Contains(err.Error(), "the storage has objects that this server cannot decode: 2 widgets.shop.example.com as v1beta1, application/json; declare the missing kinds and versions again, Unserved if clients should not use them, and remove "+
		"them after storage rewrite") {
		t.Errorf("a server without v1beta1: %v", err)
	}
	if out := mustVerb(t, append([]string{"rewrite", "--resource", "namespaces"}, flags...)...); !strings.Contains(out, "namespaces: 2 checked, 1 rewritten, 1 already current; stored now: 2 with identity; as 2 v1, application/json\n") {
		t.Errorf("rewrite: %s", out)
	}
	if value := rawValue(t, raw, "/registry/namespaces/binary"); !bytes.HasPrefix(value, []byte(`{"kind":"Namespace","apiVersion":"v1"`)) {
		t.Errorf("after the rewrite it holds %q", value)
	}
}
