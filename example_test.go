package annex_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"k8s.io/apimachinery/pkg/util/validation/field"
	clientrest "k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/store/memory"
)

// A kind with a rule and a column.
func ExampleKindOf() {
	widgets := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		ShortNames("wd").
		Validate(func(_ context.Context, w *v1.Widget) field.ErrorList {
			if w.Spec.Size == "huge" {
				return field.ErrorList{field.Forbidden(field.NewPath("spec", "size"), "no widget is huge")}
			}
			return nil
		}).
		Columns(annex.Column[v1.Widget]{Name: "Size", Value: func(w *v1.Widget) any { return w.Spec.Size }})

	ask(widgets,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets {"metadata": {"name": "a"}, "spec": {"size": "small"}}`,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets {"metadata": {"name": "b"}, "spec": {"size": "huge"}}`,
	)
	// Output:
	// 201
	// 422 Widget.shop.example.com "b" is invalid: spec.size: Forbidden: no widget is huge
}

// v1 is the hub, in which objects are stored and hooks see them. v1beta1 is converted to
// it and back.
func ExampleVersion() {
	widgets := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub))

	ask(widgets,
		`POST /apis/shop.example.com/v1beta1/namespaces/default/widgets {"metadata": {"name": "a"}}`,
		`GET /apis/shop.example.com/v1/namespaces/default/widgets/a`,
	)
	// Output:
	// 201
	// 200
}

// Inspecting a widget needs no permission to change it.
func ExampleAction() {
	inspect := func(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Widget, error) {
		return r.UpdateStatus(ctx, func(w *v1.Widget) error {
			w.Status.Phase = r.Object.Phase
			return nil
		})
	}
	widgets := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Subresources(annex.Action("inspection", inspect))

	ask(widgets,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets {"metadata": {"name": "a"}}`,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets/a/inspection {"phase": "Passed"}`,
	)
	// Output:
	// 201
	// 201 Passed
}

// The summary is computed for each request; it is neither stored nor writable.
func ExampleView() {
	summarize := func(_ context.Context, r *annex.ViewRequest[v1.Widget, v1.LogOptions]) (*v1.Inspection, error) {
		return &v1.Inspection{Verdict: fmt.Sprintf("%s %s is %s", r.Options.Prefix, r.Name, r.Parent.Spec.Size)}, nil
	}
	widgets := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Subresources(annex.View("summary", summarize))

	ask(widgets,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets {"metadata": {"name": "a"}, "spec": {"size": "large"}}`,
		`GET /apis/shop.example.com/v1/namespaces/default/widgets/a/summary?prefix=widget`,
	)
	// Output:
	// 201
	// 200 widget a is large
}

// Each request of the subresource log gets its own handler.
func ExampleConnect() {
	log := func(_ context.Context, r *annex.ConnectRequest[v1.Widget, v1.LogOptions]) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "the log of "+r.Name) // the client may have disconnected
		}), nil
	}
	widgets := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Subresources(annex.Connect("log", log))

	ask(widgets,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets {"metadata": {"name": "a"}}`,
		`GET /apis/shop.example.com/v1/namespaces/default/widgets/a/log`,
	)
	// Output:
	// 201
	// 200 the log of a
}

// There are at most two shelves, even if several clients create shelves at the same time.
func ExampleKindBuilder_AdmitCreate() {
	shelves := annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().AdmitCreate(
		func(_ context.Context, _ annex.Request[v1.Shelf], existing []*v1.Shelf) error {
			if len(existing) >= 2 {
				return fmt.Errorf("there is room for 2 shelves")
			}
			return nil
		})

	ask(shelves,
		`POST /apis/shop.example.com/v1/shelves {"metadata": {"name": "a"}}`,
		`POST /apis/shop.example.com/v1/shelves {"metadata": {"name": "b"}}`,
		`POST /apis/shop.example.com/v1/shelves {"metadata": {"name": "c"}}`,
	)
	// Output:
	// 201
	// 201
	// 403 shelves.shop.example.com "c" is forbidden: there is room for 2 shelves
}

// All widgets together have at most three replicas, even if several clients change widgets at the same time.
func ExampleKindBuilder_AdmitUpdate() {
	within := func(_ context.Context, r annex.Request[v1.Widget], others []*v1.Widget) error {
		sum := *r.Object.Spec.Replicas
		for _, other := range others {
			sum += *other.Spec.Replicas
		}
		if sum > 3 {
			return fmt.Errorf("there is room for 3 replicas")
		}
		return nil
	}
	widgets := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).AdmitCreate(within).AdmitUpdate(within)

	ask(widgets,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets {"metadata": {"name": "a"}, "spec": {"replicas": 1}}`,
		`POST /apis/shop.example.com/v1/namespaces/default/widgets {"metadata": {"name": "b"}, "spec": {"replicas": 1}}`,
		`PATCH /apis/shop.example.com/v1/namespaces/default/widgets/a {"spec": {"replicas": 2}}`,
		`PATCH /apis/shop.example.com/v1/namespaces/default/widgets/b {"spec": {"replicas": 2}}`,
	)
	// Output:
	// 201
	// 201
	// 200
	// 403 widgets.shop.example.com "b" is forbidden: there is room for 3 replicas
}

// A server inside a program, which listens on no port.
func ExampleNew() {
	ctx, stop := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, annex.Server{
		Name: "shop",
		Groups: []annex.Group{{
			Name:  "shop.example.com",
			Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)},
		}},
	}, annex.Options{Storage: memory.Storage()})
	if err != nil {
		log.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	<-ready

	config, err := instance.ClientConfig()
	if err != nil {
		log.Fatal(err)
	}
	client, err := clientrest.HTTPClientFor(config)
	if err != nil {
		log.Fatal(err)
	}
	response, err := client.Get(config.Host + "/readyz")
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
	fmt.Println(response.Status)

	stop()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output:
	// 200 OK
}
