package etcdtest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/etcd"
)

// Fifty updates, at two replicas, compete for ten replicas of widgets.
func TestAdmitUpdate_replicas_isExact(t *testing.T) {
	members := startCluster(t, 1, nil)
	replica := func() dynamic.ResourceInterface {
		config := annextest.StartWith(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
			annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).AdmitUpdate(
				func(_ context.Context, r annex.Request[v1.Widget], others []*v1.Widget) error {
					sum := *r.Object.Spec.Replicas
					for _, other := range others {
						if other.Spec.Replicas != nil {
							sum += *other.Spec.Replicas
						}
					}
					if sum > most {
						return fmt.Errorf("no more than %d replicas may be", most)
					}
					return nil
				}),
		}}}}, annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)})})
		return dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
	}
	replicas := []dynamic.ResourceInterface{replica(), replica()}
	for i := range 50 {
		if _, err := replicas[0].Create(t.Context(), newWidget(fmt.Sprint("w", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var granted atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			_, err := replicas[i%2].Patch(
				t.Context(),
				fmt.Sprint("w", i),
				types.MergePatchType,
				[]byte(`{"spec":{"replicas":1}}`),
				metav1.PatchOptions{},
			)
			switch {
			case err == nil:
				granted.Add(1)
			case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no more than 10 replicas may be"):
				t.Errorf("update %d: %v", i, err)
			}
		})
	}
	all.Wait()
	list, err := replicas[1].List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have := 0
	for _, item := range list.Items {
		if spec, ok := item.Object["spec"].(map[string]any); ok && spec["replicas"] == int64(1) {
			have++
		}
	}
	if have != most || granted.Load() != most {
		t.Errorf("%d replicas, %d updates acknowledged; want %d each", have, granted.Load(), most)
	}
}
