package plugin

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRoleOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, kind string
		verbs      metav1.Verbs
		want       role
	}{
		{"log", "LogOptions", metav1.Verbs{"get"}, roleLogs},
		{"output", "LogOptions", metav1.Verbs{"get"}, roleLogs},
		{"log", "Pod", metav1.Verbs{"get"}, roleLogs},
		{"exec", "PodExecOptions", metav1.Verbs{"create", "get"}, roleExec},
		{"shell", "ExecOptions", metav1.Verbs{"create", "get"}, roleExec},
		{"attach", "AttachOptions", metav1.Verbs{"create", "get"}, roleAttach},
		{"portforward", "PodPortForwardOptions", metav1.Verbs{"create", "get"}, rolePortForward},
		{"proxy", "PodProxyOptions", metav1.Verbs{"create", "delete", "get", "patch", "update"}, roleNone},
		{"eviction", "Eviction", metav1.Verbs{"create"}, roleAction},
		{"approval", "Approval", metav1.Verbs{"create", "update"}, roleAction},
		{"settings", "Settings", metav1.Verbs{"update"}, roleNone},
		{"summary", "Summary", metav1.Verbs{"get"}, roleView},
		{"raw", "NoOptions", metav1.Verbs{"create", "get"}, roleNone},
		{"resize", "Pod", metav1.Verbs{"get", "patch", "update"}, roleNone},
	} {
		if got := roleOf(metav1.APIResource{Kind: test.kind, Verbs: test.verbs}, test.name, "Pod"); got != test.want {
			t.Errorf("%s of %s with %v: %q, want %q", test.name, test.kind, test.verbs, got, test.want)
		}
	}
}

// ofSeveralGroups returns two kinds with the same name, one of them in two versions.
func ofSeveralGroups(only ...string) []resource {
	version := func(gv string) metav1.GroupVersionForDiscovery {
		return metav1.GroupVersionForDiscovery{GroupVersion: gv, Version: gv[strings.Index(gv, "/")+1:]}
	}
	things := func(gv string, more ...metav1.APIResource) *metav1.APIResourceList {
		return &metav1.APIResourceList{GroupVersion: gv, APIResources: append(more,
			metav1.APIResource{Name: "things", SingularName: "thing", ShortNames: []string{"tg"}, Kind: "Thing"},
			metav1.APIResource{Name: "things/status", Kind: "Thing", Verbs: metav1.Verbs{"get"}},
			metav1.APIResource{Name: "things/log", Kind: "LogOptions", Verbs: metav1.Verbs{"get"}})}
	}
	groups := []*metav1.APIGroup{
		{
			Name:             "a.example.com",
			Versions:         []metav1.GroupVersionForDiscovery{version("a.example.com/v2"), version("a.example.com/v1")},
			PreferredVersion: version("a.example.com/v1"),
		},
		{
			Name:             "b.example.com",
			Versions:         []metav1.GroupVersionForDiscovery{version("b.example.com/v1")},
			PreferredVersion: version("b.example.com/v1"),
		},
		{
			Name:             "c.example.org",
			Versions:         []metav1.GroupVersionForDiscovery{version("c.example.org/v1")},
			PreferredVersion: version("c.example.org/v1"),
		},
	}
	lists := []*metav1.APIResourceList{
		things("a.example.com/v2", metav1.APIResource{Name: "others", Kind: "Other"}), things("a.example.com/v1"), things("b.example.com/v1"),
		{GroupVersion: "c.example.org/v1", APIResources: []metav1.APIResource{{Name: "parts", Kind: "Part"}}},
	}
	return preferred(groups, lists, only)
}

func TestPreferred(t *testing.T) {
	t.Parallel()
	for only, want := range map[string]string{
		"":                            "things.v1.a.example.com others.v2.a.example.com things.v1.b.example.com parts.v1.c.example.org",
		"b.example.com":               "things.v1.b.example.com",
		"*.example.com":               "things.v1.a.example.com others.v2.a.example.com things.v1.b.example.com",
		"*.example.org b.example.com": "things.v1.b.example.com parts.v1.c.example.org",
		"example.com *":               "",
	} {
		var got []string
		for _, r := range ofSeveralGroups(strings.Fields(only)...) {
			got = append(got, r.Resource+"."+r.Version+"."+r.Group)
			if r.Resource == "things" && !slices.Equal(r.can(), []string{"logs"}) {
				t.Errorf("%s can %v", r.full(), r.can())
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("of the groups %q: %v, want %s", only, got, want)
		}
	}
}

func TestIsCalled_asKubectl(t *testing.T) {
	t.Parallel()
	p := newPlugin(Options{}, IOStreams{})
	p.server.known, p.server.fresh = ofSeveralGroups(), true
	for word, want := range map[string]string{
		"things.a.example.com":    "things.a.example.com",
		"thing.b.example.com":     "things.b.example.com",
		"tg.b.example.com":        "things.b.example.com",
		"Thing.v1.b.example.com":  "things.b.example.com",
		"things":                  `"things" is in several groups: use things.a.example.com or things.b.example.com`,
		"tg":                      `"tg" is in several groups: use things.a.example.com or things.b.example.com`,
		"others":                  "others.a.example.com have no logs: things.a.example.com, things.b.example.com have",
		"thigns":                  `"thigns": no kind of the server: did you mean things?`,
		"things.v2.b.example.com": `"things.v2.b.example.com": no kind of the server; kubectl annex lists the kinds`,
	} {
		r, err := p.find(word, "logs", hasRole(roleLogs))
		got := r.full()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

func TestFlagName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"decision": "decision", "maxRetries": "max-retries", "podIP": "pod-ip",
		"HTTPPort": "http-port", "a_b.c": "a-b-c", "with-dash": "with-dash", "dryRun": "dry-run"} {
		if got := flagName(name); got != want {
			t.Errorf("%s: --%s, want --%s", name, got, want)
		}
	}
	f := fields{
		all: []*field{
			{name: "dryRun", flag: "dry-run", kind: "boolean"},
			{name: "size", flag: "size", kind: "integer"},
			{name: "labels", flag: "labels", kind: "string", keyed: true},
			{name: "ports", flag: "ports", kind: "int-or-string", many: true},
		},
	}
	flags := f.flags(func(name string) bool { return name == "dry-run" })
	if err := flags.Parse([]string{"--field-dry-run", "--size=3", "--labels=a=b", "--labels=c=", "--ports=80", "--ports=http"}); err != nil {
		t.Fatal(err)
	}
	values := f.values()
	if values["dryRun"] != true || values["size"] != int64(3) || len(values["labels"].(map[string]any)) != 2 ||
		!slices.Equal(values["ports"].([]any), []any{int64(80), "http"}) {
		t.Errorf("%v", values)
	}
	for _, bad := range []string{"--size=1.5", "--labels=a", "--labels==b", "--field-dry-run=perhaps"} {
		if err := flags.Parse([]string{bad}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
