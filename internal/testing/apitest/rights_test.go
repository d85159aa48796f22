package apitest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

const (
	rbacPath         = "/apis/rbac.authorization.k8s.io/v1"
	clusterRolesPath = rbacPath + "/clusterroles"
	clusterBindings  = rbacPath + "/clusterrolebindings"
	rolesPath        = rbacPath + "/namespaces/default/roles"
	bindingsPath     = rbacPath + "/namespaces/default/rolebindings"
	selfAccessPath   = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	accessPath       = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	selfRulesPath    = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
	localAccessPath  = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews"
	selfReviewPath   = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	tokenReviewsPath = "/apis/authentication.k8s.io/v1/tokenreviews"
	otherWidgets     = "/apis/shop.example.com/v1/namespaces/other/widgets"
	statusOfWidget   = "/apis/shop.example.com/v1/namespaces/default/widgets/w/status"
)

func rbacObject(kind, name string, f ...map[string]any) map[string]any {
	obj := object("v1", kind, name, f...)
	obj["apiVersion"] = "rbac.authorization.k8s.io/v1"
	return obj
}

func rule(verbs, resource string) fields {
	return fields{"verbs": strings.Fields(verbs), "apiGroups": []string{"shop.example.com"}, "resources": []string{resource}}
}

func rules(rules ...fields) fields { return fields{"rules": rules} }

// bind returns a binding of a role, such as Role/reader, to users, and to groups with an @.
func bind(kind, name, role string, subjects ...string) map[string]any {
	roleKind, roleName, _ := strings.Cut(role, "/")
	var all []fields
	for _, s := range subjects {
		kind := "User"
		if strings.HasPrefix(s, "@") {
			kind = "Group"
		}
		all = append(all, fields{"kind": kind, "name": strings.TrimPrefix(s, "@")})
	}
	return rbacObject(kind, name, fields{"roleRef": fields{"kind": roleKind, "name": roleName}, "subjects": all})
}

// until waits until a request is answered with a code: roles take effect when the server has noticed them.
func (c *client) until(code int, ask func() *answer) {
	c.t.Helper()
	testwait.NoError(c.t, fmt.Sprintf("an answer %d", code), func(context.Context) error {
		if a := ask(); a.code != code {
			return fmt.Errorf("%s: %d %s", a.asked, a.code, a.raw)
		}
		return nil
	})
}

func TestRoles_grantRights(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	c.create("w")
	c.namespace("other")
	jane := c.stranger("secret")
	jane.get("/apis").want(200)
	jane.get("/openapi/v2").want(200)
	jane.get(widgetsPath).refused(403, metav1.StatusReasonForbidden)

	c.post(rolesPath, rbacObject("Role", "reader", rules(rule("get list", "widgets")))).want(201)
	binding := c.post(bindingsPath, bind("RoleBinding", "staff", "Role/reader", "@staff")).want(201)
	if got := binding.str("roleRef", "apiGroup"); got != rbacv1.GroupName {
		t.Errorf("the reference's group is %q", got)
	}
	c.until(200, func() *answer { return jane.get(widgetsPath) })
	jane.get(widgetsPath + "/w").want(200)
	jane.get(otherWidgets).refused(403, metav1.StatusReasonForbidden, `in the namespace "other"`)
	jane.get("/apis/shop.example.com/v1/widgets").refused(403, metav1.StatusReasonForbidden, "at the cluster scope")
	jane.post(widgetsPath, widget("new")).refused(403, metav1.StatusReasonForbidden, `User "jane" cannot create resource "widgets"`)
	jane.get(widgetsPath+"?watch=1").refused(403, metav1.StatusReasonForbidden, "cannot watch")
	jane.get(statusOfWidget).refused(403, metav1.StatusReasonForbidden, `"widgets/status"`)

	c.patch(mergePatch, rolesPath+"/reader", rules(rule("get", "widgets"), rule("get", "widgets/status"))).want(200)
	c.until(403, func() *answer { return jane.get(widgetsPath) })
	jane.get(statusOfWidget).want(200)
	c.delete(bindingsPath+"/staff", nil).want(200)
	c.until(403, func() *answer { return jane.get(widgetsPath + "/w") })

	// A binding may come before its role.
	c.post(clusterBindings, bind("ClusterRoleBinding", "jane", "ClusterRole/everywhere", "jane")).want(201)
	c.until(403, func() *answer {
		a := jane.get(otherWidgets)
		if !strings.Contains(string(a.raw), `clusterrole.rbac.authorization.k8s.io \"everywhere\" not found`) {
			a.code = 0
		}
		return a
	})
	c.post(clusterRolesPath, rbacObject("ClusterRole", "everywhere", rules(rule("*", "*")))).want(201)
	c.until(200, func() *answer { return jane.get(otherWidgets) })
	jane.post(shelvesPath, shelf("s")).want(201)
}

func TestReviews_access(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	jane := c.stranger("secret")
	c.post(rolesPath, rbacObject("Role", "reader", rules(rule("get list", "widgets")))).want(201)
	c.post(bindingsPath, bind("RoleBinding", "staff", "Role/reader", "@staff")).want(201)
	c.until(200, func() *answer { return jane.get(widgetsPath) })

	ask := func(verb, namespace string) fields {
		return spec(
			fields{"resourceAttributes": fields{"verb": verb, "group": "shop.example.com", "resource": "widgets", "namespace": namespace}},
		)
	}
	var self authorizationv1.SelfSubjectAccessReview
	decode(t, jane.post(selfAccessPath, review("SelfSubjectAccessReview", ask("list", "default"))).want(201).raw, &self)
	if want := `RBAC: allowed by RoleBinding "staff/default" of Role "reader" to Group "staff"`; !self.Status.Allowed ||
		self.Status.Reason != want {
		t.Errorf("status: %+v, want the reason %s", self.Status, want)
	}
	decode(t, jane.post(selfAccessPath, review("SelfSubjectAccessReview", ask("list", "other"))).want(201).raw, &self)
	if self.Status.Allowed || self.Status.Denied {
		t.Errorf("status: %+v", self.Status)
	}

	var all authorizationv1.SelfSubjectRulesReview
	decode(t, jane.post(selfRulesPath, review("SelfSubjectRulesReview", spec(fields{"namespace": "default"}))).want(201).raw, &all)
	if all.Status.Incomplete || !slices.ContainsFunc(all.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool {
		return slices.Equal(r.Verbs, []string{"get", "list"}) && slices.Equal(r.Resources, []string{"widgets"})
	}) || !slices.ContainsFunc(all.Status.NonResourceRules,
		func(r authorizationv1.NonResourceRule) bool { return slices.Contains(r.NonResourceURLs, "/version") }) {
		t.Errorf("rules: %+v", all.Status)
	}
	jane.post(selfRulesPath, review("SelfSubjectRulesReview", fields{})).
		refused(400, metav1.StatusReasonBadRequest, "no namespace on request")

	about := func(who fields, verb string) fields {
		question := ask(verb, "default")
		for key, value := range who {
			question["spec"].(fields)[key] = value
		}
		return question
	}
	var other authorizationv1.SubjectAccessReview
	decode(
		t,
		c.post(accessPath, review("SubjectAccessReview", about(fields{"user": "jim", "groups": []string{"staff"}}, "get"))).want(201).raw,
		&other,
	)
	if !other.Status.Allowed {
		t.Errorf("status: %+v", other.Status)
	}
	decode(
		t,
		c.post(localAccessPath, review("LocalSubjectAccessReview", metadata(fields{"namespace": "default"}),
			about(fields{"user": "jim"}, "get"))).
			want(201).
			raw,
		&other,
	)
	if other.Status.Allowed {
		t.Errorf("status: %+v", other.Status)
	}
	jane.post(accessPath, review("SubjectAccessReview", about(fields{"user": "jim"}, "get"))).refused(403, metav1.StatusReasonForbidden)
	for name, test := range map[string]struct {
		path, kind string
		question   fields
		want       []string
	}{
		"no attributes": {accessPath, "SubjectAccessReview", spec(fields{"user": "jim"}), []string{"exactly one of " +
			"nonResourceAttributes or resourceAttributes must be specified"}},
		"no subject": {accessPath, "SubjectAccessReview", ask("get", ""), []string{"spec.user", "at least one of user or group must " +
			"be specified"}},
		"another namespace": {localAccessPath, "LocalSubjectAccessReview",
			spec(fields{"user": "jim", "resourceAttributes": fields{"verb": "get", "namespace": "other"}}),
			[]string{"spec.resourceAttributes.namespace", "must match metadata.namespace"}},
		"a path, locally": {localAccessPath, "LocalSubjectAccessReview",
			spec(fields{"user": "jim", "nonResourceAttributes": fields{"path": "/x", "verb": "get"}}),
			[]string{"spec.nonResourceAttributes", "disallowed on this kind of request"}},
		"metadata": {selfAccessPath, "SelfSubjectAccessReview",
			fields{"metadata": fields{"name": "x"}, "spec": ask("get", "")["spec"]}, []string{"metadata", "must be empty"}},
		"an empty selector": {selfAccessPath, "SelfSubjectAccessReview",
			spec(fields{"resourceAttributes": fields{"verb": "list", "fieldSelector": fields{}}}),
			[]string{"spec.resourceAttributes.fieldSelector.requirements", "requirements or rawSelector is required"}},
		"selectors of twice": {selfAccessPath, "SelfSubjectAccessReview",
			spec(fields{"resourceAttributes": fields{"labelSelector": fields{"rawSelector": "a=b",
				"requirements": []fields{{"key": "a", "operator": "Exists"}}}}}), []string{"spec.resourceAttributes.labelSelector.rawSelector"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.post(test.path, review(test.kind, test.question)).refused(422, metav1.StatusReasonInvalid, test.want...)
		})
	}
}

// review returns a review; its group follows from its kind.
func review(kind string, f ...map[string]any) map[string]any {
	obj := object("v1", kind, "", f...)
	obj["apiVersion"] = "authorization.k8s.io/v1"
	if kind == "TokenReview" || kind == "SelfSubjectReview" {
		obj["apiVersion"] = "authentication.k8s.io/v1"
	}
	return obj
}

func TestReviews_self(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	jane := c.stranger("secret")
	var self authenticationv1.SelfSubjectReview
	decode(t, jane.post(selfReviewPath, review("SelfSubjectReview")).want(201).raw, &self)
	if got := self.Status.UserInfo; got.Username != "jane" || got.UID != "42" ||
		!slices.Equal(got.Groups, []string{"staff", "guests", "system:authenticated"}) {
		t.Errorf("jane is %+v", got)
	}
	decode(t, c.post(selfReviewPath, review("SelfSubjectReview"), "Impersonate-User", "jim").want(201).raw, &self)
	if got := self.Status.UserInfo; got.Username != "jim" {
		t.Errorf("impersonated: %+v", got)
	}
	var token authenticationv1.TokenReview
	decode(t, c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": "secret"}))).want(201).raw, &token)
	if !token.Status.Authenticated || token.Status.User.Username != "jane" {
		t.Errorf("status: %+v", token.Status)
	}
	token = authenticationv1.TokenReview{}
	decode(t, c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": "wrong"}))).want(201).raw, &token)
	if token.Status.Authenticated || token.Status.User.Username != "" || !strings.Contains(token.Status.Error, "invalid bearer token") {
		t.Errorf("status: %+v", token.Status)
	}
	c.post(tokenReviewsPath, review("TokenReview")).refused(400, metav1.StatusReasonBadRequest, "token is required")
	jane.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": "root"}))).refused(403, metav1.StatusReasonForbidden)
}

func TestRoles_escalation_isRejected(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	jane := c.stranger("secret")
	manage := fields{"verbs": []string{"*"}, "apiGroups": []string{rbacv1.GroupName}, "resources": []string{"roles", "rolebindings"}}
	unbind := fields{
		"verbs":     []string{"create", "get", "list", "update", "patch", "delete"},
		"apiGroups": []string{rbacv1.GroupName},
		"resources": []string{"roles", "rolebindings"},
	}
	c.post(rolesPath, rbacObject("Role", "manager", rules(unbind, rule("get list", "widgets")))).want(201)
	c.post(bindingsPath, bind("RoleBinding", "jane", "Role/manager", "jane")).want(201)
	c.until(200, func() *answer { return jane.get(rolesPath) })

	jane.post(rolesPath, rbacObject("Role", "own", rules(rule("get", "widgets")))).want(201)
	jane.post(rolesPath, rbacObject("Role", "more", rules(rule("get delete", "widgets")))).refused(403, metav1.StatusReasonForbidden,
		`roles.rbac.authorization.k8s.io "more" is forbidden: user "jane" (groups=["staff" "guests" "system:authenticated"]) is attempting `+
			`to grant RBAC permissions not currently held:`,
		`{APIGroups:["shop.example.com"], Resources:["widgets"], Verbs:["delete"]}`)
	jane.patch(mergePatch, rolesPath+"/own", rules(rule("*", "widgets"))).refused(403, metav1.StatusReasonForbidden, "not currently held")
	jane.patch(mergePatch, rolesPath+"/own", metadata(fields{"labels": fields{"a": "b"}})).want(200)
	jane.post(bindingsPath, bind("RoleBinding", "own", "Role/own", "jim")).want(201)
	jane.post(bindingsPath, bind("RoleBinding", "admin", "ClusterRole/cluster-admin", "jane")).
		refused(403, metav1.StatusReasonForbidden, `rolebindings.rbac.authorization.k8s.io "admin" is forbidden`, `Verbs:["*"]`)
	jane.post(bindingsPath, bind("RoleBinding", "none", "Role/none", "jane")).
		refused(404, metav1.StatusReasonNotFound, `roles.rbac.authorization.k8s.io "none" not found`)
	jane.post(clusterRolesPath, rbacObject("ClusterRole", "own")).refused(403, metav1.StatusReasonForbidden, "cannot create")

	// Callers with the verbs escalate and bind are not restricted.
	c.patch(mergePatch, rolesPath+"/manager", rules(manage)).want(200)
	c.until(201, func() *answer {
		return jane.post(bindingsPath, bind("RoleBinding", "admin", "Role/more", "jane"))
	})
	jane.post(rolesPath, rbacObject("Role", "more", rules(rule("*", "*")))).want(201)
	c.until(200, func() *answer { return jane.get(widgetsPath) })
}

func TestRoles_aggregation(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	jane := c.stranger("secret")
	c.post(clusterBindings, bind("ClusterRoleBinding", "jane", "ClusterRole/view", "jane")).want(201)
	part := rbacObject(
		"ClusterRole",
		"widgets-view",
		metadata(fields{"labels": fields{"rbac.authorization.k8s.io/aggregate-to-view": "true"}}),
		rules(rule("get list", "widgets")),
	)
	c.post(clusterRolesPath, part).want(201)
	c.until(200, func() *answer { return jane.get(widgetsPath) })
	c.delete(clusterRolesPath+"/widgets-view", nil).want(200)
	c.until(403, func() *answer { return jane.get(widgetsPath) })
	if view := c.get(clusterRolesPath + "/view").want(200); strings.Contains(string(view.raw), "shop.example.com") {
		t.Errorf("view still has a rule of the role that is gone: %s", view.raw)
	}
}

func TestRoles_declaredByKinds(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: memory.Storage()}
	c := startWith(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().DefaultRoles().Role("auditor", "status", "get"),
	}}}}, options)
	as := func(user string) []string { return []string{"Impersonate-User", user} }
	for user, role := range map[string]string{"viewer": "view", "editor": "edit", "administrator": "admin",
		"auditor": "shop.example.com:auditor"} {
		c.post(bindingsPath, bind("RoleBinding", user, "ClusterRole/"+role, user)).want(201)
	}
	c.create("w")
	c.until(200, func() *answer { return c.get(widgetsPath, as("viewer")...) })
	c.until(200, func() *answer { return c.get(statusOfWidget, as("auditor")...) })
	c.get(statusOfWidget, as("viewer")...).want(200)
	c.get(widgetsPath, as("auditor")...).want(403)
	c.do("POST", widgetsPath, widget("v"), as("viewer")...).want(403)
	for _, user := range []string{"editor", "administrator"} {
		c.until(201, func() *answer { return c.do("POST", widgetsPath, widget(user), as(user)...) })
		c.get(widgetsPath, as(user)...).want(200)
		c.do("PATCH", widgetsPath+"/w/scale", `{"spec":{"replicas":2}}`, append(as(user), "Content-Type", mergePatch)...).want(200)
		c.do("PATCH", statusOfWidget, `{"status":{"phase":"x"}}`, append(as(user), "Content-Type", mergePatch)...).want(403)
		c.do("DELETE", widgetsPath+"/"+user, nil, as(user)...).want(200)
	}
}

func TestAuthorizer_isAskedFirst(t *testing.T) {
	t.Parallel()
	server := shop()
	server.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		switch {
		case a.GetUser().GetName() == "shopkeeper" && a.GetResource() == "widgets":
			return authorizer.DecisionAllow, "", nil
		case a.GetUser().GetName() == "thief":
			return authorizer.DecisionDeny, "not you", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	for mode, code := range map[annex.AuthorizationMode]int{"": 403, annex.AuthorizationRBAC: 403, annex.AuthorizationAlwaysAllow: 200,
		annex.AuthorizationAlwaysDeny: 403} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			var modes []annex.AuthorizationMode
			if mode != "" {
				modes = append(modes, mode)
			}
			c := startWith(t, server, annex.Options{Storage: memory.Storage(), AuthorizationModes: modes})
			c.post(clusterBindings, bind("ClusterRoleBinding", "all", "ClusterRole/cluster-admin", "thief", "admin")).want(201)
			c.get(widgetsPath, "Impersonate-User", "shopkeeper").want(200)
			c.get(shelvesPath, "Impersonate-User", "shopkeeper").want(code)
			c.get(widgetsPath, "Impersonate-User", "thief").refused(403, metav1.StatusReasonForbidden, "not you")
			if mode == annex.AuthorizationRBAC {
				c.until(200, func() *answer { return c.get(shelvesPath, "Impersonate-User", "admin") })
			}
			if mode == annex.AuthorizationAlwaysDeny {
				c.get("/apis", "Impersonate-User", "admin").want(403)
			}
			var all authorizationv1.SelfSubjectRulesReview
			decode(t, c.post(selfRulesPath, review("SelfSubjectRulesReview", spec(fields{"namespace": "default"}))).want(201).raw, &all)
			if !all.Status.Incomplete || !strings.Contains(all.Status.EvaluationError, "does not list rules") {
				t.Errorf("the rules of an authorizer that does not list them: %+v", all.Status)
			}
		})
	}
}

func TestRoles_invalid(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.post(bindingsPath, bind("RoleBinding", "b", "Role/a", "jane")).want(201)
	for name, test := range map[string]struct {
		path string
		obj  map[string]any
		want string
	}{
		"no verbs": {rolesPath, rbacObject("Role", "a", rules(fields{"apiGroups": []string{""}, "resources": []string{"pods"}})),
			"rules[0].verbs: Required value"},
		"no resources": {rolesPath, rbacObject("Role", "a", rules(fields{"apiGroups": []string{""}, "verbs": []string{"get"}})),
			"rules[0].resources: Required value"},
		"a path in a Role": {rolesPath, rbacObject("Role", "a", rules(fields{"nonResourceURLs": []string{"/x"}, "verbs": []string{"get"}})),
			"rules[0].nonResourceURLs: Invalid value"},
		"a name with a /":    {rolesPath, rbacObject("Role", "a/b"), "metadata.name: Invalid value"},
		"no reference":       {bindingsPath, rbacObject("RoleBinding", "a"), "roleRef.kind: Unsupported value"},
		"a reference abroad": {clusterBindings, bind("ClusterRoleBinding", "a", "Role/b", "jane"), `roleRef.kind: Unsupported value: "Role"`},
		"no subject's name":  {bindingsPath, bind("RoleBinding", "a", "Role/b", ""), "subjects[0].name: Required value"},
	} {
		t.Run(name, func(t *testing.T) {
			said := c.post(test.path, test.obj).refused(422, metav1.StatusReasonInvalid, test.want)
			for i, cause := range said.Details.Causes {
				if slices.Contains(said.Details.Causes[:i], cause) {
					t.Errorf("said twice: %+v", cause)
				}
			}
		})
	}
	c.patch(mergePatch, bindingsPath+"/b", fields{"roleRef": fields{"name": "other"}}).
		refused(422, metav1.StatusReasonInvalid, "roleRef: Invalid value", "field is immutable")
	c.post(clusterRolesPath, rbacObject("ClusterRole", "system:own:role")).want(201)
	c.get(clusterRolesPath+"/system:own:role", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").want(200)
}

func TestRoles_restart_completesDefaults(t *testing.T) {
	t.Parallel()
	options := annex.Options{DataDir: t.TempDir(), Storage: embedded.Dir("")}
	kept := shop()
	kept.Groups[0].Kinds[0] = widgets().DefaultRoles()
	instance, stop := run(t, kept, options)
	c := clientOf(t, instance)
	c.post(bindingsPath, bind("RoleBinding", "jane", "ClusterRole/view", "jane")).want(201)
	c.patch(mergePatch, clusterRolesPath+"/system:basic-user", fields{"rules": nil}).want(200)
	own := rbacObject("ClusterRole", "", rules(rule("get", "shelves")))["rules"]
	c.patch(mergePatch, clusterRolesPath+"/system:discovery",
		fields{"rules": own, "metadata": fields{"annotations": fields{"rbac.authorization.kubernetes.io/autoupdate": "false"}}}).
		want(200)
	c.patch(mergePatch, clusterRolesPath+"/shop.example.com:aggregate-to-view", fields{"rules": nil}).want(200)
	c.delete(clusterBindings+"/system:public-info-viewer", nil).want(200)
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	// Roles that exist when the server is ready take effect at once.
	instance, stop = run(t, kept, options)
	c = clientOf(t, instance)
	c.post(selfRulesPath, review("SelfSubjectRulesReview", spec(fields{"namespace": "default"})), "Impersonate-User", "jane").want(201)
	c.get(clusterBindings + "/system:public-info-viewer").want(200)
	c.get("/apis", "Impersonate-User", "jane").refused(403, metav1.StatusReasonForbidden)
	c.until(200, func() *answer { return c.get(widgetsPath, "Impersonate-User", "jane") })
	version := c.get(clusterRolesPath+"/view").str("metadata", "resourceVersion")
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	// A start without anything to complete writes nothing.
	instance, stop = run(t, kept, options)
	if got := clientOf(t, instance).get(clusterRolesPath+"/view").str("metadata", "resourceVersion"); got != version {
		t.Errorf("a second start wrote the role view: it is at %s, was at %s", got, version)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	kept.Groups[0].Kinds[0] = widgets().Role("clerk", "", "get")
	instance, _ = run(t, kept, options)
	c = clientOf(t, instance)
	c.get(clusterRolesPath + "/shop.example.com:clerk").want(200)
	c.get(clusterRolesPath+"/shop.example.com:aggregate-to-view").refused(404, metav1.StatusReasonNotFound)
	c.until(403, func() *answer { return c.get(widgetsPath, "Impersonate-User", "jane") })
}

func TestRoles_lastAdministrator_isWarned(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	jane := c.stranger("secret")
	const way = "the kubeconfig in the server's data directory"
	warned := func(a *answer) bool {
		return slices.ContainsFunc(a.warnings(), func(text string) bool { return strings.Contains(text, way) })
	}
	last := func(binding string) {
		c.post(clusterBindings, bind("ClusterRoleBinding", binding, "ClusterRole/cluster-admin", "jane")).want(201)
		c.until(200, func() *answer { return jane.get(clusterBindings) })
	}
	last("one")
	c.post(clusterBindings, bind("ClusterRoleBinding", "two", "ClusterRole/cluster-admin", "@staff")).want(201)
	dry := jane.do("DELETE", clusterBindings+"/one?dryRun=All", nil).want(200)
	// The second binding takes effect once the server has noticed it.
	testwait.NoError(t, "the second binding is known", func(context.Context) error {
		var rules authorizationv1.SelfSubjectRulesReview
		decode(t, jane.post(selfRulesPath, review("SelfSubjectRulesReview", spec(fields{"namespace": "default"}))).want(201).raw, &rules)
		if n := len(
			slices.DeleteFunc(rules.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool { return !slices.Contains(r.Verbs, "*") }),
		); n != 2 {
			return fmt.Errorf("%d rules", n)
		}
		return nil
	})
	one := jane.delete(clusterBindings+"/one", nil).want(200)
	if warned(dry) || warned(one) {
		t.Errorf("warned although another binding is left: %q %q", dry.warnings(), one.warnings())
	}
	label := jane.patch(mergePatch, clusterBindings+"/two", metadata(fields{"labels": fields{"a": "b"}})).want(200)
	if warned(label) {
		t.Errorf("warned of a label: %q", label.warnings())
	}
	c.until(403, func() *answer {
		a := jane.patch(mergePatch, clusterBindings+"/two", fields{"subjects": []fields{{"kind": "User", "name": "jim"}}})
		if a.code == 200 && !warned(a) {
			t.Errorf("no warning: %q", a.warnings())
		}
		return a
	})
	last("three")
	if a := jane.delete(clusterBindings+"/three", nil).want(200); !warned(a) {
		t.Errorf("no warning: %q", a.warnings())
	}
	c.until(403, func() *answer { return jane.get(clusterBindings) })
	// The warning is correct: the administrator's own certificate needs no binding.
	last("four")
	if a := jane.patch(mergePatch, clusterRolesPath+"/cluster-admin", rules(rule("get", "widgets"))).want(200); !warned(a) {
		t.Errorf("no warning of the role: %q", a.warnings())
	}
	c.get(clusterBindings).want(200)
}
