package operation_test

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/operation"
	operationv1 "github.com/annexapi/annex/operation/v1"
	"github.com/annexapi/annex/store/memory"
)

// Report is the result of the example's action.
type Report struct {
	Parts int `json:"parts"`
}

// The client waits for the end of the operation. Without wait, or when the waiting time is over, it gets the
// operation in its current state, and follows it with a watch.
func ExampleAction() {
	inspect := func(ctx context.Context, run *operation.Run[v1.Widget, v1.Inspection]) (*Report, error) {
		const parts = 3
		run.Unit("parts")
		for part := range parts {
			if err := ctx.Err(); err != nil {
				return nil, err // cancelled, or the server stops
			}
			run.Logf("part %d is fine", part)
			run.Progress(int64(part+1), parts)
		}
		return &Report{Parts: parts}, nil
	}
	server := annex.Server{Name: "example", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			Subresources(operation.Action("inspection", inspect)),
		operation.Kind(v1.API, operation.Options{}),
	}}}}

	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, server, annex.Options{Storage: memory.Storage()})
	must(err)
	ready, done := make(chan struct{}), make(chan error)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	<-ready
	config, err := instance.ClientConfig()
	must(err)
	client := discovery.NewDiscoveryClientForConfigOrDie(config).RESTClient()
	const widgets = "/apis/shop.example.com/v1/namespaces/default/widgets"
	widget, err := json.Marshal(v1.Widget{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	must(err)
	must(client.Post().AbsPath(widgets).Body(widget).Do(ctx).Error())
	raw, err := client.Post().AbsPath(widgets, "a", "inspection").Param("wait", "30s").Body([]byte(`{}`)).DoRaw(ctx)
	must(err)
	var op operationv1.Operation
	must(json.Unmarshal(raw, &op))
	fmt.Println(op.Status.Phase, op.Status.Progress.Percent, string(op.Status.Result.Raw))
	cancel()
	must(<-done)
	// Output: Succeeded 100 {"parts":3}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
