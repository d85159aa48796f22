package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/annexapi/annex/internal/testing/testwait"
)

func serverSideApply(t *testing.T, w *wardle) {
	ns := namespace(t)
	k := newKubectl(t, host.Admin())
	apply := func(manager, reference string, more ...string) (string, error) {
		flunder := fmt.Sprintf("apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata:\n  name: a\n  labels: {%s: here}\nspec: "+
			"{reference: %s, referenceType: Flunder}\n", manager, reference)
		return k.run(flunder, append([]string{"-n", ns, "apply", "--server-side", "--field-manager", manager, "-f", "-"}, more...)...)
	}
	succeeds := func(out string, err error) {
		t.Helper()
		if err != nil || !strings.Contains(out, "serverside-applied") {
			t.Errorf("%v: %s", err, out)
		}
	}
	succeeds(apply("first", "one"))
	succeeds(apply("second", "one"))
	out, err := apply("second", "two")
	if err == nil || !strings.Contains(out, `conflict with "first": .spec.reference`) {
		t.Errorf("a conflict: %v: %s", err, out)
	}
	succeeds(apply("second", "two", "--force-conflicts"))
	k.prints(
		"two here here",
		"-n",
		ns,
		"get",
		"flunders.v1alpha1.wardle.example.com",
		"a",
		"-o",
		"jsonpath={.spec.reference} {.metadata.labels.first} {.metadata.labels.second}",
	)
	out, err = apply("first", "one")
	if err == nil || !strings.Contains(out, `conflict with "second"`) {
		t.Errorf("a conflict with the new owner: %v: %s", err, out)
	}

	// kubectl's other way of applying, which compares with the last applied configuration.
	flunder := fmt.Sprintf(alphaFlunder, "b")
	for _, want := range []string{"created", "unchanged"} {
		if out := k.given(flunder, "-n", ns, "apply", "-f", "-"); !strings.Contains(out, want) {
			t.Errorf("apply: %s", out)
		}
	}
	changed := strings.Replace(flunder, `{sample: "true"}`, "{}", 1)
	if out := k.given(changed, "-n", ns, "apply", "-f", "-"); !strings.Contains(out, "configured") {
		t.Errorf("apply of a change: %s", out)
	}
	if out := k.must("-n", ns, "get", "flunder", "b", "-o", "jsonpath={.metadata.labels}"); out != "" {
		t.Errorf("a label that is no longer applied: %s", out)
	}
}

func tables(t *testing.T, w *wardle) {
	ns := namespace(t)
	k := newKubectl(t, host.Admin())
	k.given(fmt.Sprintf(alphaFlunder, "a"), "-n", ns, "create", "-f", "-")
	out := k.must("-n", ns, "get", "flunders")
	header, row, _ := strings.Cut(out, "\n")
	if fields := strings.Fields(header); len(fields) < 2 || fields[0] != "NAME" || strings.HasPrefix(out, "{") {
		t.Errorf("get:\n%s", out)
	}
	if !strings.HasPrefix(row, "a ") {
		t.Errorf("get:\n%s", out)
	}
	k.prints("NAMESPACE", "get", "flunders", "-A")
	k.prints("sample=true", "-n", ns, "get", "flunders", "--show-labels")
}

func discovered(t *testing.T, w *wardle) {
	k := newKubectl(t, host.Admin())
	client, err := discovery.NewDiscoveryClientForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	// The aggregator collects aggregated discovery and OpenAPI at times of its own.
	testwait.NoError(t, "discovery has the group", func(context.Context) error {
		groups, resources, failed, err := client.GroupsAndMaybeResources()
		if err != nil || len(failed) > 0 {
			return fmt.Errorf("%w, %v", err, failed)
		}
		for _, g := range groups.Groups {
			for _, v := range g.Versions {
				if g.Name == group && resources[schema.GroupVersion{Group: group, Version: v.Version}] == nil {
					return fmt.Errorf("no resources of %s", v.GroupVersion)
				}
			}
			if g.Name == group && len(g.Versions) == 2 {
				if g.PreferredVersion.Version != "v1beta1" {
					return fmt.Errorf("prefers %s", g.PreferredVersion.Version)
				}
				return nil
			}
		}
		return fmt.Errorf("not all versions: %v", groups.Groups)
	})
	testwait.NoError(t, "kubectl explain knows the kind", func(context.Context) error {
		out, err := k.run("", "explain", "flunders.spec.reference", "--api-version", group+"/v1alpha1")
		if err != nil || !strings.Contains(out, "reference <string>") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	k.prints("fischerReference", "explain", "flunders.spec", "--api-version", group+"/v1beta1")
	k.prints("<[]string>", "explain", "fischers.disallowedFlunders")
	testwait.NoError(t, "the merged OpenAPI document has the kind", func(context.Context) error {
		var document struct {
			Paths map[string]json.RawMessage `json:"paths"`
		}
		if err := json.Unmarshal([]byte(k.must("get", "--raw", "/openapi/v2")), &document); err != nil {
			return err
		}
		for _, version := range []string{"v1alpha1", "v1beta1"} {
			if path := "/apis/" + group + "/" + version + "/namespaces/{namespace}/flunders/{name}"; document.Paths[path] == nil {
				return fmt.Errorf("no %s among %d paths", path, len(document.Paths))
			}
		}
		return nil
	})
}

func impersonated(t *testing.T, w *wardle) {
	k := newKubectl(t, host.Admin())
	k.refused("", `User "jane" cannot list resource "flunders"`, "get", "flunders", "-A", "--as", "jane", "--as-group", "nobodies")
	k.must("get", "flunders", "-A", "--as", "jane", "--as-group", "system:masters")
}
