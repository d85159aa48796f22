package auth

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/auth/authtest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const authorizationHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"

// webhookEntry returns the configuration of a webhook.
func webhookEntry(name string, hook *authtest.Webhook, more string) string {
	return "- type: Webhook\n  name: " + name + "\n  webhook:\n    timeout: 1s\n    subjectAccessReviewVersion: v1\n    " +
		"matchConditionSubjectAccessReviewVersion: v1\n" +
		"    failurePolicy: NoOpinion\n    cacheAuthorizedRequests: false\n    cacheUnauthorizedRequests: false\n    connectionInfo: {type: " +
		"KubeConfigFile, kubeConfigFile: " + hook.Kubeconfig + "}\n" + more
}

// decided is the decision of a webhook: it allows get, denies delete, and has no opinion on other verbs.
func decided(spec map[string]any) map[string]any {
	switch verb := spec["resourceAttributes"].(map[string]any)["verb"]; verb {
	case "get":
		return map[string]any{"allowed": true}
	case "delete":
		return map[string]any{"allowed": false, "denied": true, "reason": "nothing is deleted here"}
	}
	return map[string]any{"allowed": false}
}

func request(name, verb string) authorizer.Attributes {
	return authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: verb, Resource: "widgets", ResourceRequest: true}
}

func TestOpenAuthorization_mistake_hasLineAndField(t *testing.T) {
	t.Parallel()
	hook := authtest.NewWebhook(t, decided)
	for _, test := range []struct{ name, text, want string }{
		{"no authorizers", strings.Replace(authorizationHead, "authorizers:\n", "", 1), "line 1: authorizers: Required value"},
		{"a misspelled field", authorizationHead + "- type: RBAC\n  named: rbac\n", `line 5: unknown field "authorizers[0].named"`},
		{"an unknown type", authorizationHead + "- {type: RBAC, name: rbac}\n- {type: Node, name: node}\n", `line 5: authorizers[1].type: ` +
			`Unsupported value: "Node": supported values: "AlwaysAllow", "AlwaysDeny", "RBAC", "Webhook"`},
		{"no name", authorizationHead + "- type: RBAC\n", "line 4: authorizers[0].name: Required value"},
		{"RBAC twice", authorizationHead + "- {type: RBAC, name: one}\n- {type: RBAC, name: two}\n", "line 5: authorizers[1].type: " +
			"Duplicate value"},
		{"a name twice", authorizationHead + "- {type: RBAC, name: one}\n- {type: AlwaysDeny, name: one}\n", "line 5: authorizers[1].name: " +
			"Duplicate value"},
		{"a webhook that is none", authorizationHead + "- {type: Webhook, name: hook}\n", "line 4: authorizers[0].webhook: Required value"},
		{"no timeout", authorizationHead + strings.Replace(webhookEntry("hook", hook, ""), "    timeout: 1s\n", "", 1),
			"line 6: authorizers[0].webhook.timeout: Required value"},
		{"too long a timeout", authorizationHead + strings.Replace(webhookEntry("hook", hook, ""), "1s", "31s", 1),
			"line 7: authorizers[0].webhook.timeout: Invalid value"},
		{"a timeout that is none", authorizationHead + strings.Replace(webhookEntry("hook", hook, ""), "1s", "soon", 1),
			`line 7: authorizers[0].webhook.timeout: time: invalid duration "soon"`},
		{"no policy for failures", authorizationHead + strings.Replace(webhookEntry("hook", hook, ""), "NoOpinion", "Ignore", 1),
			`line 10: authorizers[0].webhook.failurePolicy: Unsupported value: "Ignore"`},
		{"a condition that is none", authorizationHead + webhookEntry("hook", hook, "    matchConditions:\n    - expression: request.usr "+
			"== 'a'\n"),
			"line 15: authorizers[0].webhook.matchConditions[0].expression: Invalid value"},
		{"a kubeconfig that is missing", authorizationHead + strings.Replace(webhookEntry("hook", hook, ""), hook.Kubeconfig, "/missing/kubeconfig",
			1), "line 13: authorizers[0].webhook.connectionInfo.kubeConfigFile: Invalid value"},
		{"the cluster's webhook", authorizationHead + strings.Replace(webhookEntry("hook", hook, ""), "{type: KubeConfigFile, "+
			"kubeConfigFile: "+
			hook.Kubeconfig+"}", "{type: InClusterConfig}", 1), "line 13: authorizers[0].webhook.connectionInfo.type: Unsupported value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := newConfigurationFile(t, test.text).path
			_, err := OpenAuthorization(
				t.Context(),
				AuthorizationOptions{File: file, Server: t.Name(), RBAC: authorizerfactory.NewAlwaysDenyAuthorizer()},
			)
			if err == nil {
				t.Fatal("it was not refused")
			}
			for _, part := range []string{"Options.AuthorizationConfigFile", file, test.want} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("no %s in %v", part, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("several lines: %v", err)
			}
		})
	}
}

func TestAuthorization_orderOfFile(t *testing.T) {
	t.Parallel()
	hook := authtest.NewWebhook(t, decided)
	for _, test := range []struct {
		name, text string
		want       map[string]authorizer.Decision
	}{
		{"a webhook before all is allowed", webhookEntry("hook", hook, "") + "- {type: AlwaysAllow, name: all}\n",
			map[string]authorizer.Decision{"get": authorizer.DecisionAllow, "delete": authorizer.DecisionDeny, "list": authorizer.DecisionAllow}},
		{"a webhook after all is allowed", "- {type: AlwaysAllow, name: all}\n" + webhookEntry("hook", hook, ""),
			map[string]authorizer.Decision{"get": authorizer.DecisionAllow, "delete": authorizer.DecisionAllow, "list": authorizer.DecisionAllow}},
		{"a webhook before nothing is allowed", webhookEntry("hook", hook, "") + "- {type: AlwaysDeny, name: none}\n",
			map[string]authorizer.Decision{"get": authorizer.DecisionAllow, "delete": authorizer.DecisionDeny,
				"list": authorizer.DecisionNoOpinion}},
		{"a webhook that is asked about others", webhookEntry("hook", hook, "    matchConditions:\n    - expression: request.user "+
			"== 'joe'\n"),
			map[string]authorizer.Decision{"get": authorizer.DecisionNoOpinion, "delete": authorizer.DecisionNoOpinion}},
		{"two webhooks", webhookEntry("one", hook, "    matchConditions:\n    - expression: request.user "+
			"== 'joe'\n") + webhookEntry("two", hook, ""),
			map[string]authorizer.Decision{"get": authorizer.DecisionAllow}},
	} {
		a, err := OpenAuthorization(
			t.Context(),
			AuthorizationOptions{
				File:   newConfigurationFile(t, authorizationHead+test.text).path,
				Server: t.Name(),
				RBAC:   authorizerfactory.NewAlwaysDenyAuthorizer(),
			},
		)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		for verb, want := range test.want {
			got, reason, err := a.Authorize(t.Context(), request("jane", verb))
			if got != want || err != nil {
				t.Errorf("%s: %s: %v, %q, %v", test.name, verb, got, reason, err)
			}
			if aware := a.ConditionsAwareAuthorize(
				t.Context(),
				request("jane", verb),
			); aware.IsAllow() != (want == authorizer.DecisionAllow) ||
				aware.IsDeny() != (want == authorizer.DecisionDeny) {
				t.Errorf("%s: %s: the conditions-aware answer differs: %v", test.name, verb, aware)
			}
		}
	}
}

func TestAuthorization_failurePolicy(t *testing.T) {
	t.Parallel()
	hook := authtest.NewWebhook(t, decided)
	hook.Hang(true)
	for policy, want := range map[string]authorizer.Decision{"NoOpinion": authorizer.DecisionAllow, "Deny": authorizer.DecisionDeny} {
		text := authorizationHead + strings.Replace(webhookEntry("hook", hook, ""), "NoOpinion", policy, 1) + "- {type: AlwaysAllow, " +
			"name: all}\n"
		a, err := OpenAuthorization(t.Context(), AuthorizationOptions{File: newConfigurationFile(t, text).path, Server: t.Name()})
		if err != nil {
			t.Fatal(err)
		}
		if got, reason, _ := a.Authorize(t.Context(), request("jane", "get")); got != want {
			t.Errorf("%s: %v, %q", policy, got, reason)
		}
	}
}

func TestAuthorization_reload(t *testing.T) {
	t.Parallel()
	hook := authtest.NewWebhook(t, decided)
	file := newConfigurationFile(t, authorizationHead+"- {type: RBAC, name: rbac}\n")
	rbac := authorizerfactory.NewAlwaysDenyAuthorizer()
	a, err := OpenAuthorization(t.Context(), AuthorizationOptions{File: file.path, Server: t.Name(), RBAC: rbac})
	if err != nil {
		t.Fatal(err)
	}
	log := &logged{}
	ctx, cancel := context.WithCancel(log.into(t))
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	defer func() { cancel(); <-done }()
	becomes := func(verb string, want authorizer.Decision) {
		t.Helper()
		testwait.Until(t, verb+" is decided anew", func() bool {
			got, _, _ := a.Authorize(t.Context(), request("jane", verb))
			return got == want
		})
	}
	becomes("get", authorizer.DecisionNoOpinion)
	file.replace(authorizationHead + webhookEntry("hook", hook, "") + "- {type: RBAC, name: rbac}\n")
	becomes("get", authorizer.DecisionAllow)
	for text, want := range map[string]string{
		"- {type: RBAC, name: 'No Name'}\n": "line 4: authorizers[0].name",
		"- {type: AlwaysAllow, name: all}\n": "line 3: authorizers: the types other than Webhook are " +
			"AlwaysAllow, but a running server cannot change them: it started with RBAC",
		webhookEntry("hook", hook, ""): "the types other than Webhook are none",
		"- {type: RBAC, name: rbac}\n- {type: AlwaysAllow, name: all}\n" + "x: []\n": "unknown field",
	} {
		file.replace(authorizationHead + text)
		testwait.Until(t, "the log says "+want, func() bool { return log.count(want) == 1 })
		becomes("get", authorizer.DecisionAllow)
		becomes("list", authorizer.DecisionNoOpinion)
	}
	file.replace(authorizationHead + "- {type: RBAC, name: rbac}\n")
	becomes("get", authorizer.DecisionNoOpinion)
}

func TestAuthorization_orderOfModes(t *testing.T) {
	t.Parallel()
	hook := authtest.NewWebhook(t, decided)
	const allow, deny, rbac, ask = config.AuthorizationAlwaysAllow, config.AuthorizationAlwaysDeny, config.AuthorizationRBAC,
		config.AuthorizationWebhook
	for _, test := range []struct {
		modes        []config.AuthorizationMode
		list, delete authorizer.Decision
	}{
		{[]config.AuthorizationMode{rbac}, authorizer.DecisionNoOpinion, authorizer.DecisionNoOpinion},
		{[]config.AuthorizationMode{deny, allow}, authorizer.DecisionAllow, authorizer.DecisionAllow},
		{[]config.AuthorizationMode{rbac, ask, allow}, authorizer.DecisionAllow, authorizer.DecisionDeny},
		{[]config.AuthorizationMode{allow, ask}, authorizer.DecisionAllow, authorizer.DecisionAllow},
		{[]config.AuthorizationMode{ask}, authorizer.DecisionNoOpinion, authorizer.DecisionDeny},
	} {
		for _, version := range []string{"v1", "v1beta1"} {
			a, err := OpenAuthorization(t.Context(), AuthorizationOptions{
				Modes: test.modes,
				RBAC:  authorizerfactory.NewAlwaysDenyAuthorizer(),
				Webhook: config.AuthorizationWebhookOptions{
					ConfigFile:           hook.Kubeconfig,
					Version:              version,
					AuthorizedCacheTTL:   -1,
					UnauthorizedCacheTTL: -1,
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			for verb, want := range map[string]authorizer.Decision{"list": test.list, "delete": test.delete} {
				if got, reason, err := a.Authorize(t.Context(), request("jane", verb)); got != want || err != nil {
					t.Errorf("%v: %s: %v, %q, %v", test.modes, verb, got, reason, err)
				}
			}
		}
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenAuthorization(
		t.Context(),
		AuthorizationOptions{
			Modes:   []config.AuthorizationMode{ask},
			Webhook: config.AuthorizationWebhookOptions{ConfigFile: kubeconfig, Version: "v1"},
		},
	)
	if err == nil || !strings.Contains(err.Error(), "Options.AuthorizationWebhook.ConfigFile "+kubeconfig) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a kubeconfig without a server: %v", err)
	}
}

func TestNewAuthorizer_reasons_omitChainName(t *testing.T) {
	t.Parallel()
	no := func(reason string) authorizer.Authorizer {
		return authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, reason, nil
		})
	}
	modes, err := OpenAuthorization(t.Context(), AuthorizationOptions{
		Modes: []config.AuthorizationMode{config.AuthorizationRBAC, config.AuthorizationAlwaysDeny},
		RBAC: struct {
			authorizer.Authorizer
			authorizer.RuleResolver
		}{no("RBAC: no role"), authorizerfactory.NewAlwaysDenyAuthorizer()},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		own  []union.NamedAuthorizer
		want string
	}{
		{nil, "rbac: RBAC: no role\nalwaysdeny: Everything is forbidden."},
		{[]union.NamedAuthorizer{{AuthorizerName: "server", Authorizer: no("not mine")}}, "server: not mine\nrbac: RBAC: no " +
			"role\nalwaysdeny: Everything is forbidden."},
		{[]union.NamedAuthorizer{{AuthorizerName: "server", Authorizer: no("")}}, "rbac: RBAC: no role\nalwaysdeny: Everything is forbidden."},
	} {
		all, _, err := NewAuthorizer(append(test.own, union.NamedAuthorizer{AuthorizerName: "modes", Authorizer: modes})...)
		if err != nil {
			t.Fatal(err)
		}
		if decision, reason, err := all.Authorize(
			t.Context(),
			request("jane", "list"),
		); decision != authorizer.DecisionNoOpinion || reason != test.want ||
			err != nil {
			t.Errorf("%v, %q instead of %q, %v", decision, reason, test.want, err)
		}
		if decision, _, err := all.Authorize(
			t.Context(),
			authorizer.AttributesRecord{User: &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}},
		); decision != authorizer.DecisionAllow ||
			err != nil {
			t.Errorf("an administrator: %v, %v", decision, err)
		}
	}
}
