package cluster

import (
	"context"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

// TestRestaurant joins the sample to the cluster, with the permissions of its manifests: versions, admission and
// prices are those of a server that stands alone.
func TestRestaurant(t *testing.T) {
	const sample, group = "../../samples/restaurant/", "restaurant.wukong.com"
	admin := newKubectl(t, host.Admin())
	admin.given(permissions(t, "restaurant"), "apply", "-f", "-")
	account, err := host.ServiceAccount(ending(t), "restaurant", "restaurant")
	if err != nil {
		t.Fatal(err)
	}
	server := startJoined(t, "restaurant", "restaurant", account, "--storage", "memory")
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		server.register(t, schema.GroupVersion{Group: group, Version: version})
	}
	// The sample pizza is in the namespace default.
	admin.refused("", `there is no topping "mozzarella"`, "create", "-f", sample+"config/samples/restaurant_v1beta1_pizza.yaml")
	admin.must("apply", "-f", sample+"config/samples/restaurant_v1beta1_topping.yaml")
	admin.must("apply", "-f", sample+"config/samples/restaurant_v1beta1_pizza.yaml")
	admin.must("wait", "pizza/margherita", "--for=condition=Priced", "--timeout=90s")
	admin.prints("2x mozzarella, tomato   3 ", "get", "pz")
	admin.prints(`["mozzarella","mozzarella","tomato"]`, "get", "pizzas.v1alpha1."+group, "margherita", "-o", "jsonpath={.spec.toppings}")
	admin.must("patch", "topping", "tomato", "--type=merge", "-p", `{"spec":{"cost":0.75}}`)
	admin.must("wait", "pizza/margherita", "--for=jsonpath={.status.cost}=3.25", "--timeout=90s")
	admin.refused("", `there is no topping "pineapple"`, "create", "-f", sample+"pineapple.yaml")
}

// TestDevops lets the cluster serve the sample's definitions, with its controller beside it.
func TestDevops(t *testing.T) {
	const sample = "../../samples/devops/"
	admin := newKubectl(t, host.Admin())
	admin.must("apply", "-k", sample+"config/cluster")
	t.Cleanup(func() {
		out, err := admin.command(context.Background(), "", "delete", "-k", sample+"config/cluster", "--wait=false").CombinedOutput()
		if err != nil {
			t.Errorf("delete the definitions: %v\n%s", err, out)
		}
	})
	admin.must("wait", "crd/pipelines.devops.devops.io", "crd/pipelineruns.devops.devops.io", "--for=condition=Established", "--timeout=90s")
	kubeconfig := filepath.Join(run, "devops.kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, host.Admin()); err != nil {
		t.Fatal(err)
	}
	controllers, err := kube.Run(ending(t), run, kube.Program{
		Name: "devops", Path: filepath.Join(bin, "devops"), Env: []string{"DEVOPS_RUNS=" + filepath.Join(run, "devops-runs")},
		Args: func([]int) []string { return []string{"controllers", "--kubeconfig", kubeconfig} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := controllers.Stop(); err != nil {
			t.Error(err)
		}
	})
	ns := namespace(t)
	admin.must("-n", ns, "apply", "-f", sample+"config/samples/pipeline.yaml")
	admin.must("-n", ns, "apply", "-f", sample+"config/samples/pipelinerun.yaml")
	admin.must("-n", ns, "wait", "pr/greeter-first", "--for=condition=Succeeded", "--timeout=90s")
	admin.prints(
		"build 0 test 0 ship 0 ",
		"-n",
		ns,
		"get",
		"pr",
		"greeter-first",
		"-o",
		`jsonpath={range .status.steps[*]}{.name} {.exitCode} {end}`,
	)
	admin.given(
		`{apiVersion: devops.devops.io/v1alpha3, kind: PipelineRun, metadata: {name: long}, spec: {pipelineRef: {name: greeter}, parameters: `+
			`[{name: PAUSE, value: "1000"}]}}`,
		"-n",
		ns,
		"create",
		"-f",
		"-",
	)
	admin.must("-n", ns, "wait", "pr/long", "--for=jsonpath={.status.steps[1].phase}=Running", "--timeout=90s")
	admin.must("-n", ns, "patch", "pr", "long", "--type=merge", "-p", `{"spec":{"action":"Stop"}}`)
	admin.must("-n", ns, "wait", "pr/long", "--for=jsonpath={.status.phase}=Cancelled", "--timeout=90s")
	admin.must("-n", ns, "delete", "pip", "greeter")
	admin.must("-n", ns, "wait", "pr/greeter-first", "pr/long", "--for=delete", "--timeout=90s")
}
