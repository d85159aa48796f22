package main

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

func TestApproval_decisions(t *testing.T) {
	t.Parallel()
	a := start(t)
	ctx := t.Context()
	must(a.create(ctx, "j", small))(t)
	for _, step := range []struct {
		body, patch string
		code        int // of the error; 0 for none
		want        string
	}{
		{body: `{}`, code: 422, want: "decision: Required value"},
		{body: `{"decision":"Perhaps"}`, code: 422, want: `decision: Unsupported value: "Perhaps": supported values: "Approved", "Rejected"`},
		{body: `{"decision":"Pending"}`, code: 422, want: `decision: Unsupported value: "Pending"`},
		{body: `{"decision":7}`, code: 400, want: "decision"},
		{body: `{"decision":"Approved","kind":"JenkinsService"}`, code: 400, want: "JenkinsService"},
		{body: `{"decision":"Rejected"}`, want: "Rejected"},
		{body: `{"decision":"Approved"}`, code: 409, want: "it is Rejected, and that stands until its spec changes"},
		{patch: `{"spec":{"instanceamount":2}}`, want: "Pending"},
		{body: `{"decision":"Approved"}`, want: "Approved"},
		{body: `{"decision":"Approved"}`, want: "Approved"},
		{body: `{"apiVersion":"autobusi.group.cicd/v1alpha","kind":"JenkinsServiceApproval","decision":"Approved"}`, want: "Approved"},
		{body: `{"decision":"Rejected"}`, code: 409, want: `"j": it is Approved, and that stands`},
		{patch: `{"metadata":{"labels":{"a":"b"}}}`, want: "Approved"},
		{patch: `{"spec":{"instancecpu":2}}`, want: "Pending"},
	} {
		j, err := a.approve(ctx, "j", step.body)
		if step.patch != "" {
			j, err = a.patch(ctx, "j", step.patch)
		}
		switch {
		case step.code != 0:
			status, ok := err.(apierrors.APIStatus)
			if !ok || int(status.Status().Code) != step.code || !strings.Contains(err.Error(), step.want) {
				t.Errorf("%s%s: got %v, want %d with %s", step.body, step.patch, err, step.code, step.want)
			}
		case err != nil || string(j.Status.ApprovalStatus) != step.want:
			t.Errorf("%s%s: %s, %v; want %s", step.body, step.patch, j.Status.ApprovalStatus, err, step.want)
		}
	}
	if _, err := a.approve(ctx, "missing", `{"decision":"Approved"}`); !apierrors.IsNotFound(err) {
		t.Errorf("approval of nothing: %v", err)
	}
	must(a.patch(ctx, "j", `{"metadata":{"finalizers":["example.com/stay"]}}`))(t)
	if err := a.delete(ctx, "j"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.approve(
		ctx,
		"j",
		`{"decision":"Approved"}`,
	); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), "being deleted") {
		t.Errorf("approval while it is deleted: %v", err)
	}
}

func TestApproval_dryRun(t *testing.T) {
	t.Parallel()
	a := start(t)
	ctx := t.Context()
	must(a.create(ctx, "j", small))(t)
	request := a.namespaced(a.Post()).Name("j").SubResource("approval").Param("dryRun", "All").
		SetHeader("Content-Type", "application/json").Body([]byte(`{"decision":"Approved"}`))
	if j := must(result(ctx, request))(t); j.Status.ApprovalStatus != autobusiv1alpha.Approved {
		t.Errorf("the dry run answers %s", j.Status.ApprovalStatus)
	}
	if j := must(a.get(ctx, "j"))(t); j.Status.ApprovalStatus != autobusiv1alpha.Pending {
		t.Errorf("the dry run has made it %s", j.Status.ApprovalStatus)
	}
}

// Only the subresource can decide: neither a writer of the object nor a writer of its status can.
func TestApproval_onlyBySubresource(t *testing.T) {
	t.Parallel()
	a := start(t)
	ctx := t.Context()
	must(a.create(ctx, "j", small))(t)
	if j := must(a.patch(ctx, "j", `{"status":{"approvalstatus":"Approved"}}`))(t); j.Status.ApprovalStatus != autobusiv1alpha.Pending {
		t.Errorf("an update of the object: %s", j.Status.ApprovalStatus)
	}
	for _, verb := range []string{http.MethodPut, http.MethodPatch} {
		j := must(a.get(ctx, "j"))(t)
		j.Status.ApprovalStatus = autobusiv1alpha.Approved
		_, err := a.patch(ctx, "j", `{"status":{"approvalstatus":"Approved"}}`, "status")
		if verb == http.MethodPut {
			_, err = result(ctx, a.namespaced(a.Put()).Name("j").SubResource("status").Body(j))
		}
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "status.approvalstatus is decided at the subresource approval") {
			t.Errorf("%s of the status: %v", verb, err)
		}
	}
	if j := must(a.get(ctx, "j"))(t); j.Status.ApprovalStatus != autobusiv1alpha.Pending {
		t.Errorf("it is %s", j.Status.ApprovalStatus)
	}
}
