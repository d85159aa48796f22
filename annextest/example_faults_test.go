package annextest_test

import (
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/annextest"
)

// The first two updates of widgets conflict. The test fails if the code under test gives up, and if it sends no update.
func ExampleFaults() {
	test := func(t *testing.T) {
		var faults annextest.Faults
		faults.On(t, "update", "widgets").First(2).Conflict()
		client, err := dynamic.NewForConfig(faults.Wrap(annextest.Start(t, exampleShop)))
		if err != nil {
			t.Fatal(err)
		}
		api := client.Resource(widgetResource).Namespace("default")
		widget := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"},
		}}
		if _, err := api.Create(t.Context(), widget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			widget, err := api.Get(t.Context(), "w", metav1.GetOptions{})
			if err != nil {
				return err
			}
			widget.SetLabels(map[string]string{"color": "red"})
			_, err = api.Update(t.Context(), widget, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	_ = test // go test calls it
}

// Some faults that controllers should survive.
func ExampleFaults_On() {
	test := func(t *testing.T) {
		var faults annextest.Faults
		faults.On(t, "create", "configmaps").EachObject().First(1).LoseAnswer() // the object is there, but the client does not know
		faults.On(t, "get", "widgets").Nth(3).Stale()
		faults.On(t, "watch", "*").First(1).ExpireWatch(5)
		faults.On(t, "*", "widgets/status").Chance(0.2).InternalError()
		faults.On(t, "list", "nodes").Optional().TooManyRequests(time.Second)
		_ = faults.Wrap(annextest.Start(t, exampleShop)) // for the manager
	}
	_ = test // go test calls it
}

// The webhook of the test is slow for the first object.
func ExampleFaults_OnWebhook() {
	test := func(t *testing.T, hook http.Handler, mux *http.ServeMux) {
		var faults annextest.Faults
		faults.OnWebhook(t, "create", "widgets").First(1).Delay(20 * time.Second)
		mux.Handle("/validate", faults.Webhook(hook))
	}
	_ = test // go test calls it
}

// If the test fails, it logs the requests of the clients, their answers, and the changes of objects.
func ExampleReportOnFailure() {
	test := func(t *testing.T) {
		config := annextest.ReportOnFailure(t, annextest.Start(t, exampleShop))
		_ = config // for the code under test
	}
	_ = test // go test calls it
}
