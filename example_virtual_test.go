package annex_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	clientrest "k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

// The shelves of a shop that knows them itself.
func ExampleKindBuilder_Virtual() {
	shop := map[string][]string{"left": {"hammer", "nails"}, "right": nil}
	shelf := func(name string) v1.Shelf {
		return v1.Shelf{ObjectMeta: metav1.ObjectMeta{Name: name}, Widgets: shop[name]}
	}
	shelves := annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().Virtual(annex.Source[v1.Shelf]{
		Get: func(_ context.Context, _, name string) (*v1.Shelf, error) {
			if _, ok := shop[name]; !ok {
				return nil, annex.ErrNotFound
			}
			s := shelf(name)
			return &s, nil
		},
		List: func(context.Context) ([]v1.Shelf, error) {
			var all []v1.Shelf
			for name := range shop {
				all = append(all, shelf(name))
			}
			return all, nil
		},
		Poll: time.Second,
	})

	ask(shelves,
		"GET /apis/shop.example.com/v1/shelves/left",
		"GET /apis/shop.example.com/v1/shelves/middle",
		"DELETE /apis/shop.example.com/v1/shelves/left",
	)
	// Output:
	// 200 [hammer nails]
	// 404 shelves.shop.example.com "middle" not found
	// 405 the server does not allow this method on the requested resource
}

// letters is a storage of its own: any shelf that a client asks for is there, and has
// the letters of its name on it.
type letters struct{ annex.RESTBase }

func (l letters) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if strings.Contains(name, "-") {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: "shop.example.com", Resource: "shelves"}, name)
	}
	return &v1.Shelf{ObjectMeta: metav1.ObjectMeta{Name: name}, Widgets: strings.Split(name, "")}, nil
}

// Shelves that are made up for each request.
func ExampleKindBuilder_CustomStorage() {
	shelves := annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().CustomStorage(
		func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) { return letters{base}, nil })

	ask(shelves,
		"GET /apis/shop.example.com/v1/shelves/abc",
		"GET /apis/shop.example.com/v1/shelves/a-c",
		"DELETE /apis/shop.example.com/v1/shelves/abc",
	)
	// Output:
	// 200 [a b c]
	// 404 shelves.shop.example.com "a-c" not found
	// 405 the server does not allow this method on the requested resource
}

// ask serves a kind, sends it requests, and prints the status code and the interesting part of each response.
func ask(kind annex.Kind, requests ...string) {
	server := annex.Server{Name: "example", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}}
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, server, annex.Options{Storage: memory.Storage()})
	must(err)
	ready, done := make(chan struct{}), make(chan error)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	<-ready
	config, err := instance.ClientConfig()
	must(err)
	client, err := clientrest.HTTPClientFor(config)
	must(err)
	for _, r := range requests {
		method, rest, _ := strings.Cut(r, " ")
		path, body, _ := strings.Cut(rest, " ")
		request, err := http.NewRequest(method, config.Host+path, strings.NewReader(body))
		must(err)
		request.Header.Set("Content-Type", "application/json")
		if method == http.MethodPatch {
			request.Header.Set("Content-Type", "application/merge-patch+json")
		}
		response, err := client.Do(request)
		must(err)
		answer, err := io.ReadAll(response.Body)
		must(err)
		must(response.Body.Close())
		fmt.Println(strings.TrimSpace(fmt.Sprint(response.StatusCode, " ", ofInterest(answer))))
	}
	cancel()
	must(<-done)
}

// ofInterest returns the message of an error, the content of a shelf, the verdict of an inspection, the
// phase of a widget, or the whole text.
func ofInterest(answer []byte) string {
	object := unstructured.Unstructured{}
	if json.Unmarshal(answer, &object.Object) != nil {
		return string(answer)
	}
	if message, ok, _ := unstructured.NestedString(object.Object, "message"); ok {
		return message
	}
	if widgets, ok, _ := unstructured.NestedStringSlice(object.Object, "widgets"); ok {
		return fmt.Sprint(widgets)
	}
	if verdict, ok, _ := unstructured.NestedString(object.Object, "verdict"); ok {
		return verdict
	}
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	return phase
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
