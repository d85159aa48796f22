package apitest_test

import (
	"context"
	"net/http"
	"slices"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// The audit records a query as the list or watch that it performs, with its parameters, and with the reason why the
// caller was allowed.
func TestAudit_queries(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	c := startWith(t, shop(), annex.Options{
		Storage: memory.Storage(), TokenAuthFile: tokenFile(t),
		Audit: annex.AuditOptions{PolicyFile: policyFile(t, "rules: [{level: RequestResponse}]"), Log: annex.AuditLogOptions{Path: log.path}},
	})
	const decision, reason = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
	const all, inDefault = "/query/shop.example.com/v1/widgets", "/query/shop.example.com/v1/namespaces/default/widgets"
	c.create("w")
	jane := c.stranger("secret")
	is := func(e auditv1.Event, user, verb, namespace, uri, decided string, code int32) {
		t.Helper()
		if e.User.Username != user || e.Verb != verb || e.RequestURI != uri || e.Annotations[decision] != decided ||
			e.ResponseStatus.Code != code ||
			e.ObjectRef == nil || e.ObjectRef.Resource != "widgets" ||
			e.ObjectRef.APIGroup != "shop.example.com" ||
			e.ObjectRef.APIVersion != "v1" ||
			e.ObjectRef.Namespace != namespace {
			t.Errorf("the audit of %s: %+v", uri, e)
		}
	}
	admin := log.of(c.get(all + "?sortBy=name&limit=1").want(200))
	is(admin, admin.User.Username, "list", "", all+"?sortBy=name&limit=1", "allow", 200)
	is(log.of(jane.get(all).want(403)), "jane", "list", "", all, "forbid", 403)
	is(log.of(jane.get(inDefault).want(403)), "jane", "list", "default", inDefault, "forbid", 403)
	is(log.of(c.get(all+"?sortBy=nothing").want(400)), admin.User.Username, "list", "", all+"?sortBy=nothing", "allow", 400)

	role := map[string]any{
		"metadata": map[string]any{"name": "reader"},
		"rules": []any{
			map[string]any{"apiGroups": []string{"shop.example.com"}, "resources": []string{"widgets"}, "verbs": []string{"list", "watch"}},
		},
	}
	c.post(rolesPath, role).want(201)
	c.post(bindingsPath, bind("RoleBinding", "jane", "Role/reader", "jane")).want(201)
	c.until(200, func() *answer { return jane.get(inDefault) })
	union := log.of(jane.get(all).want(200))
	is(union, "jane", "list", "", all, "allow", 200)
	if union.Annotations[reason] != "in 1 namespaces" {
		t.Errorf("why jane may: %v", union.Annotations)
	}

	ctx, end := context.WithCancel(t.Context())
	defer end()
	tail := jane.send(ctx, http.MethodGet, all+"?watch=true", nil, "Accept", "text/event-stream")
	defer tail.Body.Close()
	if _, err := tail.Body.Read(make([]byte, 10)); err != nil || tail.StatusCode != http.StatusOK {
		t.Fatalf("a tail: %d, %v", tail.StatusCode, err)
	}
	end()
	testwait.Until(t, "the end of the tail is in the audit", func() bool {
		stages := []auditv1.Stage{}
		for _, e := range log.events() {
			if e.RequestURI == all+"?watch=true" && e.ResponseStatus != nil {
				stages = append(stages, e.Stage)
				is(e, "jane", "watch", "", all+"?watch=true", "allow", 200)
			}
		}
		return slices.Contains(stages, auditv1.StageResponseStarted) && slices.Contains(stages, auditv1.StageResponseComplete)
	})
	// The list of queryable resources is no resource.
	e := log.of(jane.get("/query").want(200))
	if e.ObjectRef != nil || e.Verb != "get" || e.Annotations[decision] != "allow" {
		t.Errorf("the audit of /query: %+v", e)
	}
	e = log.of(c.do(http.MethodPost, all, "{}").want(405))
	if e.ObjectRef != nil || e.ResponseStatus.Code != 405 {
		t.Errorf("the audit of a POST: %+v", e)
	}
}
