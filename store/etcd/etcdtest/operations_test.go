package etcdtest_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/operation"
)

// repairShop has actions whose first attempt does not end.
func repairShop() annex.Server {
	act := func(ctx context.Context, run *operation.Run[v1.Widget, v1.Inspection]) (*int, error) {
		pid := os.Getpid()
		run.Message("process %d", pid)
		if run.Attempt == 1 {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return &pid, nil
	}
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			Subresources(operation.Action("repair", act), operation.Action("overhaul", act).Resumable()),
		operation.Kind(v1.API, operation.Options{LeaseDuration: 3 * time.Second}),
	}}}}
}

// One of two replicas is killed while it carries operations out: the other detects that, and continues the resumable
// ones.
func TestOperations_killedReplica_areTakenOver(t *testing.T) {
	members := startCluster(t, 1, nil)
	args := []string{"--storage", "etcd", "--etcd-servers", endpoints(members)[0]}
	replicas := []*server{newServerAs(t, roleRepairs, "one", args...), newServerAs(t, roleRepairs, "other", args...)}
	for _, r := range replicas {
		r.start()
	}
	clients := []dynamic.Interface{dynamic.NewForConfigOrDie(replicas[0].config()), dynamic.NewForConfigOrDie(replicas[1].config())}
	ctx := t.Context()
	if _, err := clients[0].Resource(widgets).Namespace("default").Create(ctx, newWidget("w"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := func(action string) string {
		t.Helper()
		request := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "shop.example.com/v1", "kind": "Inspection", "metadata": map[string]any{"name": "w"}},
		}
		op, err := clients[0].Resource(widgets).Namespace("default").Create(ctx, request, metav1.CreateOptions{}, action)
		if err != nil {
			t.Fatal(err)
		}
		return op.GetName()
	}
	status := func(client dynamic.Interface, name string) map[string]any {
		t.Helper()
		op, err := client.Resource(widgets.GroupVersion().WithResource("operations")).Namespace("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status, _, _ := unstructured.NestedMap(op.Object, "status")
		return status
	}
	pid := func(r *server) string { return fmt.Sprint("process ", r.cmd.Process.Pid) }

	// Either replica may be faster: begin until one holds both.
	var lost, again string
	var holder int
	testwait.Until(t, "one replica holds an operation of each sort", func() bool {
		lost, again = begin("repair"), begin("overhaul")
		said := func(name string) (message string) {
			testwait.Until(t, name+" runs", func() bool {
				message, _ = status(clients[0], name)["message"].(string)
				return message != ""
			})
			return message
		}
		one, other := said(lost), said(again)
		for i, r := range replicas {
			if pid(r) == one {
				holder = i
			}
		}
		return one == other
	})
	survivor, killed := replicas[1-holder], pid(replicas[holder])
	replicas[holder].kill()
	var now map[string]any
	testwait.Until(t, "the survivor resumes what it can", func() bool {
		now = status(clients[1-holder], again)
		return now["phase"] == "Succeeded"
	})
	if fmt.Sprint("process ", now["result"]) != pid(survivor) || now["attempts"] != int64(2) {
		t.Errorf("killed %s, survivor %s: %v", killed, pid(survivor), now)
	}
	testwait.Until(t, "the survivor tells what has failed", func() bool {
		now = status(clients[1-holder], lost)
		return now["phase"] == "Failed"
	})
	if message, _ := now["message"].(string); !strings.Contains(message, "stopped while it ran the operation; the progress of the "+
		"operation is unknown") ||
		now["attempts"] != int64(1) {
		t.Errorf("%v", now)
	}
}
