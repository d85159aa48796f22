package etcdtest_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/etcd"
)

// Servers that start at the same time over one etcd have one set of flow schemas and priority levels, and a change at
// one takes effect at the other.
func TestReplicas_sharePriorityLevels(t *testing.T) {
	members, ctx := startCluster(t, 1, nil), t.Context()
	clients, configs := make([]*kubernetes.Clientset, 2), make([]*rest.Config, 2)
	var starting sync.WaitGroup
	for i := range clients {
		starting.Go(func() {
			configs[i] = annextest.StartWith(t, shop(), annex.Options{
				Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)}), DataDir: t.TempDir(), PriorityAndFairness: new(true),
			})
			clients[i] = kubernetes.NewForConfigOrDie(configs[i])
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	uids := map[types.UID]int{}
	for _, c := range clients {
		schemas, err := c.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		levels, err := c.FlowcontrolV1().PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range schemas.Items {
			uids[o.UID]++
		}
		for _, o := range levels.Items {
			uids[o.UID]++
		}
	}
	for uid, servers := range uids {
		if servers != len(clients) || len(uids) != 19 {
			t.Fatalf("%s is on %d servers, one of %d objects", uid, servers, len(uids))
		}
	}
	// A change at one server takes effect at the other, as the header of its responses shows.
	made, err := clients[0].FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "global-default"}, MatchingPrecedence: 3,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: "testers"}}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(configs[1])
	config.Impersonate = rest.ImpersonationConfig{UserName: "tester", Groups: []string{"testers"}}
	tester, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the other server goes by the schema", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/version", nil)
		if err != nil {
			return err
		}
		answer, err := tester.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if got := answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID); got != string(made.UID) {
			return fmt.Errorf("%d, the schema is %q, not %q", answer.StatusCode, got, made.UID)
		}
		return nil
	})
}
