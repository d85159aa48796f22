package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"

func TestParsePolicy_mistake_hasFieldOrLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, policy, want string }{
		{"no file", "", "no such file or directory"},
		{"not YAML", head + "rules:\n- level: [\n", "line "},
		{"another kind", "apiVersion: v1\nkind: Pod\n", "Pod"},
		{"no version", "rules:\n- level: Metadata\n", "Kind"},
		{"an old version", "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules:\n- level: Metadata\n", "v1beta1"},
		{"no rules", head, "0 rules"},
		{"no level", head + "rules:\n- verbs: [get]\n", "rules[0].level: Required value"},
		{"a wrong level", head + "rules:\n- level: Metadata\n- level: Everything\n", `rules[1].level: Unsupported value: "Everything"`},
		{"a wrong stage", head + "omitStages: [Begin]\nrules:\n- level: None\n", `omitStages[0]: Invalid value: "Begin"`},
		{"a misspelled field", head + "rules:\n- level: None\n  user: [jane]\n", `unknown field "rules[0].user"`},
		{"a field twice", head + "rules:\n- level: None\n  level: Metadata\n", `"level"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "policy.yaml")
			if test.policy != "" {
				if err := os.WriteFile(file, []byte(test.policy), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			log := filepath.Join(t.TempDir(), "audit.log")
			_, err := Open(t.Context(), config.AuditOptions{PolicyFile: file, Log: config.AuditLogOptions{Path: log}})
			if err == nil {
				t.Fatal("it was not refused")
			}
			for _, part := range []string{"Options.Audit.PolicyFile", file, test.want} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("no %s in %v", part, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("several lines: %v", err)
			}
			if _, err := os.Stat(log); err == nil {
				t.Error("the log was made")
			}
		})
	}
}

func TestPolicy_reload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	replace(head + "rules:\n- level: Metadata\n")
	a := opened(t, config.AuditOptions{PolicyFile: file, Log: config.AuditLogOptions{Path: filepath.Join(dir, "audit.log")}})
	end := run(t, a, testwait.Patience)
	defer end()
	is := func(level auditinternal.Level) {
		t.Helper()
		testwait.Until(t, "the level is "+string(level), func() bool {
			return a.Policy().EvaluatePolicyRule(&authorizer.AttributesRecord{}).Level == level
		})
	}
	is(auditinternal.LevelMetadata)
	replace(head + "rules:\n- level: Request\n")
	is(auditinternal.LevelRequest)
	replace(head + "rules:\n- level: Everything\n")
	testwait.Until(t, "the wrong policy is counted", func() bool { return a.policy.refusals.Load() == 1 })
	is(auditinternal.LevelRequest)
	replace(head + "rules:\n- level: None\n")
	is(auditinternal.LevelNone)
	if n := a.policy.reloads.Load(); n != 2 {
		t.Errorf("read again %d times", n)
	}
}

func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	jane := &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
	anonymous := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	server := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	path := func(u user.Info, path string) authorizer.Attributes {
		return authorizer.AttributesRecord{User: u, Verb: "get", Path: path}
	}
	resource := func(u user.Info, verb string) authorizer.Attributes {
		return authorizer.AttributesRecord{User: u, Verb: verb, Resource: "widgets", ResourceRequest: true}
	}
	const none, metadata = auditinternal.LevelNone, auditinternal.LevelMetadata
	for _, test := range []struct {
		name  string
		about authorizer.Attributes
		want  auditinternal.Level
	}{
		{"a read", resource(jane, "get"), metadata},
		{"a watch", resource(jane, "watch"), metadata},
		{"a write", resource(jane, "delete"), metadata},
		{"an anonymous read", resource(anonymous, "list"), metadata},
		{"a caller who is not known", resource(nil, "list"), metadata},
		{"health", path(anonymous, "/readyz/ping"), none},
		{"version", path(jane, "/version"), none},
		{"discovery", path(jane, "/apis/shop.example.com/v1"), none},
		{"OpenAPI", path(jane, "/openapi/v3"), none},
		{"metrics", path(jane, "/metrics"), none},
		{"discovery of a caller who is not known", path(nil, "/apis"), metadata},
		{"a backup", path(jane, "/storage/backup"), metadata},
		{"a path that is none", path(jane, "/nowhere"), metadata},
		{"what the server reads of itself", resource(server, "watch"), none},
		{"what the server does to itself", resource(server, "deletecollection"), metadata},
	} {
		for strict, stages := range map[bool]int{false: 1, true: 0} {
			p, err := openPolicy("", strict)
			if err != nil {
				t.Fatal(err)
			}
			got := p.EvaluatePolicyRule(test.about)
			if got.Level != test.want || len(got.OmitStages) != stages {
				t.Errorf("%s: %s without %v", test.name, got.Level, got.OmitStages)
			}
		}
	}
}

func TestPolicy_bearerTokens_areNotRecorded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: RequestResponse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := openPolicy(file, false)
	if err != nil {
		t.Fatal(err)
	}
	const all, metadata = auditinternal.LevelRequestResponse, auditinternal.LevelMetadata
	for resource, want := range map[[3]string]auditinternal.Level{
		{"", "serviceaccounts", "token"}:                         metadata,
		{"authentication.k8s.io", "tokenreviews", ""}:            metadata,
		{"", "serviceaccounts", ""}:                              all,
		{"authentication.k8s.io", "selfsubjectreviews", ""}:      all,
		{"shop.example.com", "serviceaccounts", "token"}:         all,
		{"shop.example.com", "tokenreviews", ""}:                 all,
		{"authorization.k8s.io", "selfsubjectaccessreviews", ""}: all,
	} {
		a := authorizer.AttributesRecord{
			User:            &user.DefaultInfo{Name: "jane"},
			Verb:            "create",
			APIGroup:        resource[0],
			Resource:        resource[1],
			Subresource:     resource[2],
			ResourceRequest: true,
		}
		if got := p.EvaluatePolicyRule(a).Level; got != want {
			t.Errorf("%q: %s, want %s", resource, got, want)
		}
	}
}
