package server_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/memory"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"example.com/sqltable/server"
	"example.com/sqltable/table"
)

const patience = 30 * time.Second

var (
	ordersResource    = schema.GroupVersionResource{Group: "orders.example.com", Version: "v1", Resource: "orders"}
	customersResource = schema.GroupVersionResource{Group: "orders.example.com", Version: "v1", Resource: "customers"}
)

// database returns a new database in a file.
func database(t *testing.T) *sql.DB {
	t.Helper()
	db, err := table.Open(filepath.Join(t.TempDir(), "orders.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func exec(t *testing.T, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.Exec(statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func start(t *testing.T) (*sql.DB, dynamic.Interface) {
	t.Helper()
	db := database(t)
	return db, dynamic.NewForConfigOrDie(annextest.Start(t, server.New(db)))
}

func order(name, customer string, quantity int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "orders.example.com/v1", "kind": "Order",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"customer": customer, "quantity": quantity},
	}}
}

func field(obj *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedFieldNoCopy(obj.Object, path...)
	return fmt.Sprint(value)
}

func names(list *unstructured.UnstructuredList) string {
	all := []string{}
	for _, item := range list.Items {
		all = append(all, item.GetName())
	}
	return strings.Join(all, " ")
}

func TestOrders_rowsAreObjects(t *testing.T) {
	db, client := start(t)
	orders := client.Resource(ordersResource).Namespace("default")
	exec(t, db, "INSERT INTO orders (name, customer, quantity, created) VALUES ('by-sql', 'ada', 3, '2020-02-02T02:02:02Z')")
	got, err := orders.Get(t.Context(), "by-sql", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if field(got, "spec", "quantity") != "3" || field(got, "status", "state") != "New" || got.GetUID() == "" ||
		got.GetCreationTimestamp().Year() != 2020 {
		t.Errorf("got %v", got)
	}

	made := order("by-api", "bob", 2)
	made.SetLabels(map[string]string{"urgent": "yes"})
	if _, err := orders.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := orders.Patch(
		t.Context(),
		"by-api",
		types.MergePatchType,
		[]byte(`{"status":{"state":"Sent"}}`),
		metav1.PatchOptions{},
		"status",
	); err != nil {
		t.Fatal(err)
	}
	var customer, state string
	if err := db.QueryRow("SELECT customer, state FROM orders WHERE name = 'by-api'").
		Scan(&customer, &state); err != nil || customer != "bob" ||
		state != "Sent" {
		t.Errorf("row: %s, %s, %v", customer, state, err)
	}
	if err := orders.Delete(t.Context(), "by-sql", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	var left int
	if err := db.QueryRow("SELECT count(*) FROM orders WHERE name = 'by-sql'").Scan(&left); err != nil || left != 0 {
		t.Errorf("left %d, %v", left, err)
	}
	if _, err := orders.Create(t.Context(), order("by-api", "eve", 1), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("got %v", err)
	}
	if _, err := orders.Create(
		t.Context(),
		order("none", "eve", 0),
		metav1.CreateOptions{},
	); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.quantity: Invalid value: 0: must be at least 1") {
		t.Errorf("got %v", err)
	}
}

func TestOrders_selectorsAndPages(t *testing.T) {
	db, client := start(t)
	for i := range 7 {
		exec(t, db, "INSERT INTO orders (name, customer, quantity, metadata) VALUES (?, ?, 1, ?)",
			fmt.Sprintf("o%d", i), []string{"ada", "bob"}[i%2], fmt.Sprintf(`{"labels":{"third":"%d"}}`, i%3))
	}
	exec(t, db, "INSERT INTO orders (namespace, name, customer, quantity) VALUES ('elsewhere', 'o9', 'ada', 1)")
	orders := client.Resource(ordersResource).Namespace("default")
	for options, want := range map[metav1.ListOptions]string{
		{FieldSelector: "spec.customer=ada"}:                             "o0 o2 o4 o6",
		{LabelSelector: "third=1"}:                                       "o1 o4",
		{LabelSelector: "third!=1", FieldSelector: "spec.customer!=ada"}: "o3 o5",
		{FieldSelector: "metadata.name=o5"}:                              "o5",
	} {
		if list, err := orders.List(t.Context(), options); err != nil || names(list) != want {
			t.Errorf("%v: got %v, %v, want %s", options, list, err, want)
		}
	}
	page, err := orders.List(t.Context(), metav1.ListOptions{Limit: 3})
	if err != nil || names(page) != "o0 o1 o2" {
		t.Fatalf("got %v, %v", page, err)
	}
	exec(t, db, "DELETE FROM orders WHERE name = 'o3'")
	if _, err := orders.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	rest, err := orders.List(t.Context(), metav1.ListOptions{Limit: 9, Continue: page.GetContinue()})
	if err != nil || names(rest) != "o3 o4 o5 o6" || rest.GetResourceVersion() != page.GetResourceVersion() {
		t.Errorf("the second page shows another revision: %v, %v", rest, err)
	}
	if list, err := client.Resource(ordersResource).
		List(t.Context(), metav1.ListOptions{FieldSelector: "spec.customer=ada"}); err != nil ||
		names(list) != "o0 o2 o4 o6 o9" {
		t.Errorf("all namespaces: %v, %v", list, err)
	}
}

func TestOrders_concurrentWriters_loseNothing(t *testing.T) {
	db, client := start(t)
	orders := client.Resource(ordersResource).Namespace("default")
	exec(t, db, "INSERT INTO orders (name, customer, quantity) VALUES ('o', 'ada', 1)")
	before, err := orders.Get(t.Context(), "o", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, db, "UPDATE orders SET quantity = 2 WHERE name = 'o'")
	if _, err := orders.Update(t.Context(), before, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update on an old row: %v", err)
	}

	const each = 40
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range each {
				if _, err := db.Exec("UPDATE orders SET quantity = quantity + 1 WHERE name = 'o'"); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range each {
				often := retry.DefaultRetry
				often.Steps = 1000
				if err := retry.RetryOnConflict(often, func() error {
					o, err := orders.Get(t.Context(), "o", metav1.GetOptions{})
					if err != nil {
						return err
					}
					quantity, _, _ := unstructured.NestedInt64(o.Object, "spec", "quantity")
					_ = unstructured.SetNestedField(o.Object, quantity+1, "spec", "quantity")
					_, err = orders.Update(t.Context(), o, metav1.UpdateOptions{})
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var quantity int
	if err := db.QueryRow("SELECT quantity FROM orders WHERE name = 'o'").Scan(&quantity); err != nil || quantity != 2+4*each {
		t.Errorf("quantity %d, want %d: %v", quantity, 2+4*each, err)
	}
}

func TestOrders_applyAndFinalizers(t *testing.T) {
	db, client := start(t)
	orders := client.Resource(ordersResource).Namespace("default")
	mine := metav1.ApplyOptions{FieldManager: "me"}
	applied := order("o", "ada", 1)
	applied.SetLabels(map[string]string{"a": "b"})
	applied.SetFinalizers([]string{"example.com/wait"})
	if _, err := orders.Apply(t.Context(), "o", applied, mine); err != nil {
		t.Fatal(err)
	}
	if _, err := orders.Apply(
		t.Context(),
		"o",
		order("o", "eve", 1),
		metav1.ApplyOptions{FieldManager: "you"},
	); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), `conflict with "me"`) {
		t.Errorf("got %v", err)
	}
	again := order("o", "ada", 5)
	again.SetFinalizers([]string{"example.com/wait"})
	got, err := orders.Apply(t.Context(), "o", again, mine)
	if err != nil || len(got.GetLabels()) > 0 || field(got, "spec", "quantity") != "5" {
		t.Errorf("got %v, %v", got, err)
	}
	if err := orders.Delete(t.Context(), "o", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := orders.Get(t.Context(), "o", metav1.GetOptions{}); err != nil || got.GetDeletionTimestamp() == nil {
		t.Errorf("got %v, %v", got, err)
	}
	exec(t, db, `UPDATE orders SET metadata = json_remove(metadata, '$.finalizers') WHERE name = 'o'`)
	if err := orders.Delete(t.Context(), "o", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := orders.Get(t.Context(), "o", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func TestCustomers_areReadOnly(t *testing.T) {
	db, client := start(t)
	exec(t, db, "INSERT INTO orders (name, customer, quantity) VALUES ('a', 'ada', 3), ('b', 'ada', 4), ('c', 'bob', 1)")
	customers := client.Resource(customersResource)
	w, err := customers.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=ada"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ada := (<-w.ResultChan()).Object.(*unstructured.Unstructured)
	if field(ada, "orders") != "2" || field(ada, "quantity") != "7" {
		t.Errorf("got %v", ada)
	}
	exec(t, db, "DELETE FROM orders WHERE name = 'b'")
	if ada = (<-w.ResultChan()).Object.(*unstructured.Unstructured); field(ada, "orders") != "1" {
		t.Errorf("got %v", ada)
	}
	for verb, write := range map[string]func() error{
		"create": func() error { _, err := customers.Create(t.Context(), ada, metav1.CreateOptions{}); return err },
		"update": func() error { _, err := customers.Update(t.Context(), ada, metav1.UpdateOptions{}); return err },
		"patch": func() error {
			_, err := customers.Patch(t.Context(), "ada", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
			return err
		},
		"delete": func() error { return customers.Delete(t.Context(), "ada", metav1.DeleteOptions{}) },
		"deletecollection": func() error {
			return customers.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		},
	} {
		if err := write(); !apierrors.IsMethodNotSupported(err) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

func TestDiscovery_verbs(t *testing.T) {
	client := discovery.NewDiscoveryClientForConfigOrDie(annextest.Start(t, server.New(database(t))))
	resources, err := client.ServerResourcesForGroupVersion("orders.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range resources.APIResources {
		got = append(got, r.Name+": "+strings.Join(r.Verbs, " "))
	}
	slices.Sort(got)
	want := []string{
		"customers: get list watch",
		"orders/status: get patch update",
		"orders: create delete deletecollection get list patch update watch",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestOrders_brokenRow_isNamed(t *testing.T) {
	db, client := start(t)
	orders := client.Resource(ordersResource).Namespace("default")
	exec(t, db, "INSERT INTO orders (name, customer, quantity) VALUES ('fine', 'ada', 1)")
	for statement, want := range map[string]string{
		"INSERT INTO orders (name, customer, quantity, metadata) VALUES ('bad', 'ada', 1, 'no json')":  "order default/bad: column metadata",
		"INSERT INTO orders (name, customer, quantity, created) VALUES ('bad', 'ada', 1, 'yesterday')": "order default/bad: column created",
		"INSERT INTO orders (name, customer, quantity) VALUES ('a/b', 'ada', 1)":                       `"a/b" cannot be a name`,
	} {
		exec(t, db, statement)
		if _, err := orders.List(t.Context(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", statement, err, want)
		}
		if _, err := orders.Get(t.Context(), "fine", metav1.GetOptions{}); err != nil {
			t.Errorf("the others are not served: %v", err)
		}
		exec(t, db, "DELETE FROM orders WHERE name <> 'fine'")
	}
}

// way is a transport to the server that currently runs.
type way struct {
	to atomic.Pointer[target]
}

type target struct {
	host      *url.URL
	transport http.RoundTripper
}

func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	to := w.to.Load()
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = to.host.Scheme, to.host.Host
	return to.transport.RoundTrip(r)
}

// serve runs a server until it is stopped, and directs the transport to it.
func (w *way) serve(t *testing.T, db *sql.DB) (stop func()) {
	t.Helper()
	instance, err := annex.New(t.Context(), server.New(db), annex.Options{Storage: memory.Storage()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	host, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	w.to.Store(&target{host, transport})
	return stop
}

// An informer with client-go's defaults follows the table across a restart of the server, during which known rows
// change and are deleted.
func TestOrders_informer_followsTable(t *testing.T) {
	db := database(t)
	exec(t, db, "INSERT INTO orders (name, customer, quantity) VALUES ('kept', 'ada', 1), ('changed', 'ada', 1), ('gone', 'ada', 1)")
	w := &way{}
	stop := w.serve(t, db)
	client := dynamic.NewForConfigOrDie(&rest.Config{Host: "http://server", Transport: w})
	informer := dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(ordersResource).Informer()
	events := make(chan string, 100)
	tell := func(kind string, obj any) {
		if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = unknown.Obj
		}
		o := obj.(*unstructured.Unstructured)
		events <- kind + " " + o.GetName() + " " + field(o, "spec", "quantity")
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { tell("add", obj) },
		UpdateFunc: func(old, obj any) {
			if old.(*unstructured.Unstructured).GetResourceVersion() != obj.(*unstructured.Unstructured).GetResourceVersion() {
				tell("update", obj)
			}
		},
		DeleteFunc: func(obj any) { tell("delete", obj) },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			select {
			case e := <-events:
				got = append(got, e)
			case <-time.After(patience):
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	expect("add changed 1", "add gone 1", "add kept 1")
	exec(t, db, "INSERT INTO orders (name, customer, quantity) VALUES ('new', 'bob', 1)")
	expect("add new 1")
	exec(t, db, "UPDATE orders SET quantity = 2 WHERE name = 'new'")
	expect("update new 2")
	exec(t, db, "DELETE FROM orders WHERE name = 'new'")
	expect("delete new 2")

	stop()
	exec(t, db, "UPDATE orders SET quantity = 9 WHERE name = 'changed'")
	exec(t, db, "DELETE FROM orders WHERE name = 'gone'")
	exec(t, db, "INSERT INTO orders (name, customer, quantity) VALUES ('later', 'bob', 1)")
	w.serve(t, db)
	seen := map[string]bool{}
	for !seen["update changed 9"] || !seen["delete gone 1"] || !seen["add later 1"] {
		select {
		case e := <-events:
			seen[e] = true
		case <-time.After(patience):
			t.Fatalf("got %v", seen)
		}
	}
	exec(t, db, "DELETE FROM orders WHERE name = 'kept'")
	for e := ""; e != "delete kept 1"; {
		select {
		case e = <-events:
		case <-time.After(patience):
			t.Fatal("no event of kept")
		}
	}
	if keys := informer.GetStore().ListKeys(); len(keys) != 2 {
		t.Errorf("the informer ends with %v", keys)
	}
}
