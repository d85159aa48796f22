package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/memory"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// asProgram makes the test binary run as the program itself, so that tests can kill it.
const asProgram = "CICD_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// api is a client of a server, in one namespace.
type api struct {
	*rest.RESTClient
	namespace string
}

func newAPI(t *testing.T, config *rest.Config) *api {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := autobusiv1alpha.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	version := autobusiv1alpha.API().GroupVersion
	config.GroupVersion = &version
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &api{client, "default"}
}

// start runs a server without its controller, which would change objects under test.
func start(t *testing.T) *api {
	t.Helper()
	return newAPI(t, annextest.StartWith(t, server(), annex.Options{Storage: memory.Storage(), Controllers: []string{}}))
}

func (a *api) namespaced(request *rest.Request) *rest.Request {
	return request.Namespace(a.namespace).Resource("jenkinsservices")
}

func (a *api) create(
	ctx context.Context,
	name string,
	spec autobusiv1alpha.JenkinsServiceSpec,
	options ...string,
) (*autobusiv1alpha.JenkinsService, error) {
	j := &autobusiv1alpha.JenkinsService{Spec: spec}
	j.Name = name
	request := a.namespaced(a.Post()).Body(j)
	for _, option := range options {
		request.Param(option, metav1.DryRunAll)
	}
	return result(ctx, request)
}

func (a *api) get(ctx context.Context, name string) (*autobusiv1alpha.JenkinsService, error) {
	return result(ctx, a.namespaced(a.Get()).Name(name))
}

// patch changes an object, or one of its subresources, by a merge patch.
func (a *api) patch(ctx context.Context, name, patch string, subresource ...string) (*autobusiv1alpha.JenkinsService, error) {
	return result(ctx, a.namespaced(a.Patch(types.MergePatchType)).Name(name).SubResource(subresource...).Body([]byte(patch)))
}

// approve posts a body to the subresource approval.
func (a *api) approve(ctx context.Context, name, body string) (*autobusiv1alpha.JenkinsService, error) {
	return result(
		ctx,
		a.namespaced(a.Post()).Name(name).SubResource("approval").SetHeader("Content-Type", "application/json").Body([]byte(body)),
	)
}

func (a *api) delete(ctx context.Context, name string) error {
	return a.namespaced(a.Delete()).Name(name).Do(ctx).Error()
}

func (a *api) list(ctx context.Context) (*autobusiv1alpha.JenkinsServiceList, error) {
	list := &autobusiv1alpha.JenkinsServiceList{}
	return list, a.Get().Resource("jenkinsservices").Do(ctx).Into(list)
}

func (a *api) watch(t *testing.T) watch.Interface {
	t.Helper()
	w, err := a.namespaced(a.Get()).Param("watch", "true").Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func result(ctx context.Context, request *rest.Request) (*autobusiv1alpha.JenkinsService, error) {
	j := &autobusiv1alpha.JenkinsService{}
	return j, request.Do(ctx).Into(j)
}

// must returns the result of a request, and fails the test on an error.
func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// small is a valid spec.
var small = autobusiv1alpha.JenkinsServiceSpec{InstanceAmount: 1, InstanceCPU: 1}

func TestSpec_outOfBounds_isInvalid(t *testing.T) {
	t.Parallel()
	a := start(t)
	ctx := t.Context()
	must(a.create(ctx, "good", autobusiv1alpha.JenkinsServiceSpec{InstanceAmount: 10, InstanceCPU: 64}))(t)
	for _, test := range []struct{ spec, want string }{
		{`{"instanceamount":0,"instancecpu":1}`, "spec.instanceamount: Required value"},
		{`{"instanceamount":11,"instancecpu":1}`, "spec.instanceamount: Invalid value: 11: must be less than or equal to 10"},
		{`{"instanceamount":-1,"instancecpu":1}`, "spec.instanceamount: Invalid value: -1: must be greater than or equal to 1"},
		{`{"instanceamount":1,"instancecpu":65}`, "spec.instancecpu: Invalid value: 65: must be less than or equal to 64"},
		{`{"instanceamount":1,"instancecpu":0}`, "spec.instancecpu: Required value"},
	} {
		body := fmt.Sprintf(
			`{"apiVersion":"autobusi.group.cicd/v1alpha","kind":"JenkinsService","metadata":{"name":"bad"},"spec":%s}`,
			test.spec,
		)
		_, err := result(ctx, a.namespaced(a.Post()).SetHeader("Content-Type", "application/json").Body([]byte(body)))
		wantInvalid(t, "create "+test.spec, err, test.want)
		_, err = a.patch(ctx, "good", `{"spec":`+test.spec+`}`)
		wantInvalid(t, "update "+test.spec, err, test.want)
	}
}

func wantInvalid(t *testing.T, what string, err error, want string) {
	t.Helper()
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want 422 with %s", what, err, want)
	}
}

func TestStatus_onlyAtItsEndpoint(t *testing.T) {
	t.Parallel()
	a := start(t)
	ctx := t.Context()
	j := &autobusiv1alpha.JenkinsService{Spec: small}
	j.Name = "j"
	j.Status = autobusiv1alpha.JenkinsServiceStatus{
		ApprovalStatus: autobusiv1alpha.Approved,
		Instances:      []autobusiv1alpha.JenkinsInstance{{CPU: 9, Running: true}},
	}
	made := must(result(ctx, a.namespaced(a.Post()).Body(j)))(t)
	if made.Status.ApprovalStatus != autobusiv1alpha.Pending || made.Status.Instances != nil || made.Generation != 1 {
		t.Errorf("created: generation %d, %+v", made.Generation, made.Status)
	}
	made = must(
		a.patch(ctx, "j", `{"metadata":{"labels":{"a":"b"}},"status":{"approvalstatus":"Approved","instances":[{"cpu":9,"running":true}]}}`),
	)(
		t,
	)
	if made.Status.ApprovalStatus != autobusiv1alpha.Pending || made.Status.Instances != nil || made.Generation != 1 ||
		made.Labels["a"] != "b" {
		t.Errorf("updated: generation %d, %v, %+v", made.Generation, made.Labels, made.Status)
	}
	made = must(
		a.patch(
			ctx,
			"j",
			`{"metadata":{"labels":{"a":"c"}},"spec":{"instanceamount":5},"status":{"instances":[{"cpu":1,"running":true}]}}`,
			"status",
		),
	)(
		t,
	)
	if made.Generation != 1 || made.Spec != small || len(made.Status.Instances) != 1 {
		t.Errorf("status updated: generation %d, %+v, %+v", made.Generation, made.Spec, made.Status)
	}
	made = must(a.patch(ctx, "j", `{"spec":{"instanceamount":5}}`))(t)
	if made.Generation != 2 || made.Spec.InstanceAmount != 5 || len(made.Status.Instances) != 1 {
		t.Errorf("spec updated: generation %d, %+v, %+v", made.Generation, made.Spec, made.Status)
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	a := start(t)
	ctx := t.Context()
	must(a.create(ctx, "j", autobusiv1alpha.JenkinsServiceSpec{InstanceAmount: 3, InstanceCPU: 2}))(t)
	must(a.approve(ctx, "j", `{"decision":"Approved"}`))(t)
	must(a.patch(ctx, "j", `{"status":{"instances":[{"cpu":2,"running":true},{"cpu":2,"running":false}]}}`, "status"))(t)
	raw, err := a.namespaced(a.Get()).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	if err != nil || !strings.Contains(string(raw), `"cells":["j","Approved","1/3",2,`) {
		t.Errorf("%v: %s", err, raw)
	}
	raw, err = a.Get().AbsPath("/apis/autobusi.group.cicd/v1alpha").DoRaw(ctx)
	for _, part := range []string{`"shortNames":["js"]`, `"name":"jenkinsservices/status"`, `"name":"jenkinsservices/approval"`} {
		if err != nil || !strings.Contains(string(raw), part) {
			t.Errorf("no %s: %v: %s", part, err, raw)
		}
	}
}
