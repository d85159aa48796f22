package annextest_test

import (
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

// A test moves the clock of its server, and waits for nothing.
func ExampleStartWith_clock() {
	test := func(t *testing.T, server annex.Server) {
		clock := clocktesting.NewFakeClock(time.Now())
		config := annextest.StartWith(t, server, annex.Options{Storage: memory.Storage(), Clock: clock})
		_ = config // create an object of a kind with a TTL of an hour
		clock.Step(time.Hour + time.Second)
		// the server deletes it
	}
	_ = test // go test calls it
}

func TestStartWith_clock_expiresObjectsAndTokens(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).TTL(time.Hour),
	}}}}
	config := annextest.StartWith(t, server, annex.Options{Storage: memory.Storage(), Clock: clock})
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	api := objects.Resource(widgetResource).Namespace("default")
	w, err := api.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"},
	}}
	if _, err := api.Create(ctx, widget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	accounts := client.CoreV1().ServiceAccounts("default")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "cook"}}
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	who := map[int64]kubernetes.Interface{}
	for _, seconds := range []int64{20 * 60, 2 * 60 * 60} {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
		token, err := accounts.CreateToken(ctx, "cook", request, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		own := rest.AnonymousClientConfig(config)
		own.BearerToken = token.Status.Token
		if who[seconds], err = kubernetes.NewForConfig(own); err != nil {
			t.Fatal(err)
		}
	}

	clock.Step(time.Hour + time.Minute)
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			break
		}
		if e.Type != watch.Added {
			t.Fatalf("the watch has %s %v", e.Type, e.Object)
		}
	}
	for seconds, expired := range map[int64]bool{20 * 60: true, 2 * 60 * 60: false} {
		reviews := who[seconds].AuthenticationV1().SelfSubjectReviews()
		_, err := reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if apierrors.IsUnauthorized(err) != expired || err != nil && !expired {
			t.Errorf("a token of %d seconds after an hour: %v", seconds, err)
		}
	}
}
