package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const automanaged = "kube-aggregator.kubernetes.io/automanaged"

// listed waits until the APIServices have the given names and availability.
func listed(
	t *testing.T,
	services v1.APIServiceInterface,
	done func(all []apiregistrationv1.APIService) error,
) []apiregistrationv1.APIService {
	t.Helper()
	var all []apiregistrationv1.APIService
	testwait.NoError(t, "APIServices", func(ctx context.Context) error {
		list, err := services.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		all = list.Items
		return done(all)
	})
	return all
}

func has(names ...string) func([]apiregistrationv1.APIService) error {
	return func(all []apiregistrationv1.APIService) error {
		for _, n := range names {
			if !slices.ContainsFunc(all, func(s apiregistrationv1.APIService) bool { return s.Name == n }) {
				return fmt.Errorf("%s is not in %d APIServices", n, len(all))
			}
		}
		return nil
	}
}

func TestAPIServices_ownVersions_areLocal(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	services := v1.NewForConfigOrDie(config).APIServices()
	want := map[string][2]int32{
		"v1.": {18000, 1}, "v1.events.k8s.io": {17750, 15}, "v1.authentication.k8s.io": {17700, 15}, "v1.authorization.k8s.io": {17600, 15},
		"v1.rbac.authorization.k8s.io": {17000, 15}, "v1.apiextensions.k8s.io": {16700, 15}, "v1.admissionregistration.k8s.io": {16700, 15},
		"v1.coordination.k8s.io": {16500, 15}, "v1.flowcontrol.apiserver.k8s.io": {16100, 21}, "v1.storagemigration.k8s.io": {15800, 15},
	}
	all, err := services.List(t.Context(), metav1.ListOptions{}) // a server is ready when they are complete
	if err != nil || len(all.Items) != len(want) {
		t.Fatalf("%d APIServices, want %d; %v", len(all.Items), len(want), err)
	}
	for _, s := range all.Items {
		priorities, ok := want[s.Name]
		if !ok || priorities != [2]int32{s.Spec.GroupPriorityMinimum, s.Spec.VersionPriority} || s.Spec.Service != nil ||
			s.Labels[automanaged] != "onstart" {
			t.Errorf("%s: %v, labels %v", s.Name, s.Spec, s.Labels)
		}
		if len(s.Status.Conditions) != 1 || s.Status.Conditions[0].Reason != "Local" ||
			s.Status.Conditions[0].Status != apiregistrationv1.ConditionTrue {
			t.Errorf("%s: %v", s.Name, s.Status)
		}
	}
}

func TestAPIServices_customResource_followsDefinition(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	services, c := v1.NewForConfigOrDie(config).APIServices(), clientsOf(config)
	definition := widgets(sizeAndColor)
	c.define(t, definition)
	const name = "v1.stable.example.com"
	listed(t, services, has(name))
	s, err := services.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || s.Spec.GroupPriorityMinimum != 1000 || s.Spec.VersionPriority != 100 || s.Labels[automanaged] != "true" {
		t.Errorf("%v, %v", s, err)
	}
	if err := services.Delete(t.Context(), name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))}); err != nil {
		t.Fatal(err)
	}
	listed(t, services, func(all []apiregistrationv1.APIService) error {
		if i := slices.IndexFunc(all, func(o apiregistrationv1.APIService) bool { return o.Name == name }); i < 0 || all[i].UID == s.UID {
			return fmt.Errorf("%s is not made anew", name)
		}
		return nil
	})
	if err := c.definitions.ApiextensionsV1().
		CustomResourceDefinitions().
		Delete(t.Context(), definition.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	listed(t, services, func(all []apiregistrationv1.APIService) error {
		if has(name)(all) == nil {
			return fmt.Errorf("%s is there", name)
		}
		return nil
	})
}

func TestAPIServices_ofOtherClients_stay(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	services := v1.NewForConfigOrDie(config).APIServices()
	remote := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.shop.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "shop.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 10,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "shop"},
		},
	}
	made, err := services.Create(t.Context(), remote, metav1.CreateOptions{})
	if err != nil || *made.Spec.Service.Port != 443 || len(made.Status.Conditions) != 0 {
		t.Fatalf("%v, %v", made, err)
	}
	condition(t, config, remote.Name, apiregistrationv1.ConditionFalse, "ServiceNotFound", `service/shop in "default" is not present`)
	// A local APIService becomes available.
	if _, err := services.Patch(
		t.Context(),
		remote.Name,
		types.MergePatchType,
		[]byte(`{"spec":{"service":null}}`),
		metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	listed(t, services, func(all []apiregistrationv1.APIService) error {
		i := slices.IndexFunc(all, func(s apiregistrationv1.APIService) bool { return s.Name == remote.Name })
		if i < 0 || len(all[i].Status.Conditions) != 1 || all[i].Status.Conditions[0].Reason != "Local" {
			return fmt.Errorf("%v", all)
		}
		return nil
	})
	remote.Name = "shop"
	if _, err := services.Create(
		t.Context(),
		remote,
		metav1.CreateOptions{},
	); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "must be `spec.version+\".\"+spec.group`: \"v1.shop.example.com\"") {
		t.Errorf("of another name: %v", err)
	}
}

func TestAPIServices_priorities_orderGroups(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	services := v1.NewForConfigOrDie(config).APIServices()
	clientsOf(config).define(t, widgets(sizeAndColor))
	listed(t, services, has("v1.events.k8s.io", "v1.storagemigration.k8s.io", "v1.stable.example.com"))
	remote := remoteService(schema.GroupVersion{Group: "first.example.com", Version: "v1"}, 1)
	remote.Spec.GroupPriorityMinimum = 20000
	if _, err := services.Create(t.Context(), remote, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"apiregistration.k8s.io",
		"first.example.com",
		"events.k8s.io",
		"authentication.k8s.io",
		"authorization.k8s.io",
		"rbac.authorization.k8s.io",
		"admissionregistration.k8s.io",
		"apiextensions.k8s.io",
		"coordination.k8s.io",
		"flowcontrol.apiserver.k8s.io",
		"storagemigration.k8s.io",
		"stable.example.com",
	}
	client := kubernetes.NewForConfigOrDie(config).Discovery().RESTClient()
	testwait.NoError(t, "the list", func(ctx context.Context) error {
		body, err := client.Get().AbsPath("/apis").SetHeader("Accept", "application/json").DoRaw(ctx)
		if err != nil {
			return err
		}
		var list metav1.APIGroupList
		if err := json.Unmarshal(body, &list); err != nil {
			return err
		}
		var got []string
		for _, g := range list.Groups {
			got = append(got, g.Name)
		}
		if list.Kind != "APIGroupList" || strings.Contains(string(body), "CIDR") || !slices.Equal(got, want) {
			return fmt.Errorf("got %v in %s", got, body)
		}
		return nil
	})
}

func TestAPIServices_turnedOff(t *testing.T) {
	t.Parallel()
	config := annextest.Start(
		t,
		annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{Without: []string{"apiregistration.k8s.io"}})},
	)
	if _, err := v1.NewForConfigOrDie(config).APIServices().List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	clientsOf(config).define(t, widgets(sizeAndColor))
}
