package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

func TestPlugins_seeAllWritesAndConnections(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]string{}
	server := workshop()
	server.AdmissionPlugins = []annex.AdmissionPlugin{
		{Name: "Label", Plugin: annex.Mutating(func(_ context.Context, a admission.Attributes) error {
			if obj, err := meta.Accessor(
				a.GetObject(),
			); err == nil && a.GetOperation() == admission.Create &&
				a.GetResource().Resource == "widgets" {
				obj.SetLabels(map[string]string{"creator": a.GetUserInfo().GetName()})
			}
			return nil
		})},
		{Name: "Log", Plugin: annex.Validating(func(_ context.Context, a admission.Attributes) error {
			mu.Lock()
			defer mu.Unlock()
			seen[fmt.Sprintf("%s %s/%s %s", a.GetOperation(), a.GetResource().Resource, a.GetSubresource(), a.GetName())] = fmt.Sprintf(
				"%T",
				a.GetObject(),
			)
			return nil
		})},
		{Name: "NoAttach", Plugin: annex.Validating(func(_ context.Context, a admission.Attributes) error {
			if a.GetOperation() == admission.Connect && a.GetSubresource() == "attach" {
				return errors.New("attaching is for emergencies")
			}
			return nil
		})},
	}
	c := start(t, server)
	c.create("w")
	if got := c.widget("w").Labels["creator"]; got != "annex-admin" {
		t.Errorf("labels: %v", c.widget("w").Labels)
	}
	c.patch(mergePatch, widgetsPath+"/w", spec(fields{"size": "large"})).want(200)
	c.post("/api/v1/namespaces", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": "n"}}).want(201)
	c.post(clusterRolesPath, rbacObject("ClusterRole", "r", rules(rule("get", "widgets")))).want(201)
	c.get(widgetsPath + "/w/log").want(200)
	c.get(widgetsPath+"/w/attach").
		refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com "w" is forbidden: attaching is for emergencies`)
	c.delete(widgetsPath+"/w", nil).want(200)
	mu.Lock()
	defer mu.Unlock()
	for request, object := range map[string]string{
		"CREATE widgets/ w": "*v1.Widget", "UPDATE widgets/ w": "*v1.Widget", "DELETE widgets/ w": "<nil>",
		"CREATE namespaces/ n": "*v1.Namespace", "CREATE clusterroles/ r": "*v1.ClusterRole", "CONNECT widgets/log w": "*v1.LogOptions",
	} {
		if got, asked := seen[request]; !asked || got != object {
			t.Errorf("%s: asked %v with %q, want %q; all: %v", request, asked, got, object, seen)
		}
	}
}

func TestPlugins_mutateBeforeHooks(t *testing.T) {
	t.Parallel()
	var order []string
	say := func(what string) { order = append(order, what) }
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{widgets().
		Mutate(func(context.Context, annex.Request[v1.Widget]) error { say("kind mutates"); return nil }).
		Admit(func(context.Context, annex.Request[v1.Widget]) error { say("kind admits"); return nil })}}},
		AdmissionPlugins: []annex.AdmissionPlugin{
			{Name: "A", Plugin: annex.Validating(func(_ context.Context, a admission.Attributes) error {
				if a.GetResource().Resource == "widgets" {
					say("A")
				}
				return nil
			})},
			{Name: "B", Plugin: annex.Mutating(func(_ context.Context, a admission.Attributes) error {
				if a.GetResource().Resource == "widgets" {
					say("B")
				}
				return nil
			})},
		}}
	start(t, server).create("w")
	if want := []string{"B", "kind mutates", "A", "kind admits"}; !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
}

// refusing rejects all widgets.
func refusing(name string, disabled bool) annex.AdmissionPlugin {
	return annex.AdmissionPlugin{
		Name:     name,
		Disabled: disabled,
		Plugin: annex.Validating(func(_ context.Context, a admission.Attributes) error {
			if a.GetResource().Resource == "widgets" {
				return errors.New("refused by " + name)
			}
			return nil
		}),
	}
}

func TestPlugins_enableAndDisable(t *testing.T) {
	t.Parallel()
	server := shop()
	server.AdmissionPlugins = []annex.AdmissionPlugin{refusing("Always", false), refusing("Sometimes", true)}
	for name, test := range map[string]struct {
		options annex.AdmissionOptions
		want    string // the plugin that rejects
	}{
		"by default":     {annex.AdmissionOptions{}, "Always"},
		"disabled":       {annex.AdmissionOptions{DisablePlugins: []string{"Always"}}, ""},
		"another one":    {annex.AdmissionOptions{DisablePlugins: []string{"Always"}, EnablePlugins: []string{"Sometimes"}}, "Sometimes"},
		"enabled anyway": {annex.AdmissionOptions{EnablePlugins: []string{"Always", "Sometimes"}}, "Always"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startWith(t, server, annex.Options{Storage: memory.Storage(), Admission: test.options})
			if a := c.post(widgetsPath, widget("w")); test.want == "" {
				a.want(201)
			} else {
				a.refused(403, metav1.StatusReasonForbidden, "refused by "+test.want)
			}
		})
	}
}

// quota is a plugin of upstream's kind.
type quota struct {
	*admission.Handler
	text       string
	authorizer authorizer.Authorizer
}

func (q *quota) SetAuthorizer(a authorizer.Authorizer) { q.authorizer = a }

func (q *quota) ValidateInitialization() error {
	if q.authorizer == nil {
		return errors.New("no authorizer")
	}
	if q.text == "broken" {
		return errors.New("the text is broken")
	}
	return nil
}

func (q *quota) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	decision, _, _ := q.authorizer.Authorize(ctx, authorizer.AttributesRecord{User: a.GetUserInfo(), Verb: "exceed", Path: "/quota"})
	return admission.NewForbidden(
		a,
		fmt.Errorf("%s says %q, may exceed: %v", q.text, a.GetResource().Resource, decision == authorizer.DecisionAllow),
	)
}

func withQuota() annex.Server {
	server := shop()
	server.AdmissionPlugins = []annex.AdmissionPlugin{
		{Name: "Quota", New: func(env *annex.Env, configuration io.Reader) (admission.Interface, error) {
			q := &quota{Handler: admission.NewHandler(admission.Update)}
			if env == nil || configuration == nil {
				return q, nil
			}
			text, err := io.ReadAll(configuration)
			q.text = strings.TrimSpace(string(text))
			return q, err
		}},
		{Name: "Nothing", Disabled: true, New: func(*annex.Env, io.Reader) (admission.Interface, error) { return nil, nil }},
	}
	return server
}

const admissionConfiguration = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"

func TestPlugins_configuration_ofUpstreamPlugins(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ plugins, want string }{
		"in the file":     {"- name: Quota\n  configuration: {limit: 3}\n", `{"limit":3} says "widgets", may exceed: true`},
		"in another file": {"- name: Quota\n  path: quota.txt\n", `the other file says`},
		"none":            {"- name: Nothing\n", ` says "widgets"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "admission.yaml")
			write(t, file, admissionConfiguration+test.plugins)
			write(t, filepath.Join(dir, "quota.txt"), "the other file\n")
			c := startWith(t, withQuota(), annex.Options{Storage: memory.Storage(), Admission: annex.AdmissionOptions{ConfigFile: file}})
			c.create("w")
			c.patch(mergePatch, widgetsPath+"/w", spec(fields{"size": "large"})).refused(403, metav1.StatusReasonForbidden, test.want)
		})
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNew_plugins_mistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, test := range map[string]struct {
		plugins []annex.AdmissionPlugin
		file    string
		options annex.AdmissionOptions
		want    string
	}{
		"no name": {plugins: []annex.AdmissionPlugin{refusing("", false)}, want: "admission plugin 0: name: must begin with a capital " +
			"letter and have only letters and digits, such as ImagePolicy"},
		"a lower-case name": {plugins: []annex.AdmissionPlugin{refusing("quota", false)}, want: `admission plugin "quota": name: must begin with a capital letter`},
		"a name twice": {plugins: []annex.AdmissionPlugin{refusing("A", false), refusing("A", true)}, want: `admission plugin "A": ` +
			`declared twice`},
		"the hooks' name": {plugins: []annex.AdmissionPlugin{refusing("Hooks", false)}, want: `admission plugin "Hooks": name: a built-in plugin`},
		"the cluster's name": {plugins: []annex.AdmissionPlugin{refusing("NamespaceLifecycle", false)}, want: `admission plugin ` +
			`"NamespaceLifecycle": name: aggregated servers have a built-in plugin`},
		"nothing":      {plugins: []annex.AdmissionPlugin{{Name: "A"}}, want: `admission plugin "A": set Plugin or New`},
		"made nothing": {options: annex.AdmissionOptions{EnablePlugins: []string{"Nothing"}}, want: `admission plugin "Nothing": its constructor returned no plugin`},
		"an unknown one": {options: annex.AdmissionOptions{DisablePlugins: []string{"Quotas"}}, want: `Options.Admission.DisablePlugins: ` +
			`unknown plugin "Quotas"; plugins: Quota, Nothing`},
		"one of a cluster": {options: annex.AdmissionOptions{EnablePlugins: []string{"ValidatingAdmissionWebhook"}},
			want: "Options.Admission.EnablePlugins: the plugin ValidatingAdmissionWebhook needs the objects of a cluster: add " +
				"Options.Aggregated"},
		"on and off": {options: annex.AdmissionOptions{EnablePlugins: []string{"Quota"}, DisablePlugins: []string{"Quota"}},
			want: "the plugin Quota is both in"},
		"no file": {options: annex.AdmissionOptions{ConfigFile: filepath.Join(dir, "none")},
			want: "Options.Admission.ConfigFile: open "},
		"another file": {file: "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n",
			want: "not an AdmissionConfiguration of"},
		"broken YAML":      {file: admissionConfiguration + "- name: [\n", want: "yaml: line 4: did not find expected node content"},
		"an unknown field": {file: admissionConfiguration + "- nam: Quota\n", want: `unknown field "plugins[0].nam"`},
		"an unknown plugin": {file: admissionConfiguration + "- name: Quota\n- name: Quotas\n", want: `plugins[1].name: unknown plugin ` +
			`"Quotas"; there are Quota, Nothing`},
		"a plugin twice": {file: admissionConfiguration + "- name: Quota\n- name: Quota\n", want: `plugins[1].name: "Quota" is ` +
			`configured already`},
		"a path that is not": {file: admissionConfiguration + "- name: Quota\n  path: none.txt\n", want: "plugins[0].path: open " +
			filepath.Join(dir, "none.txt")},
		"path and content": {file: admissionConfiguration + "- name: Quota\n  path: a\n  configuration: {}\n", want: "plugins[0].path: " +
			"path and configuration exclude each other"},
		"what the plugin finds": {file: admissionConfiguration + "- name: Quota\n  path: broken.txt\n", want: `admission plugin "Quota": the ` +
			`text is broken`},
	} {
		t.Run(name, func(t *testing.T) {
			server := withQuota()
			if test.plugins != nil {
				server.AdmissionPlugins = test.plugins
			}
			write(t, filepath.Join(dir, "broken.txt"), "broken")
			if test.file != "" {
				test.options.ConfigFile = filepath.Join(dir, "admission.yaml")
				write(t, test.options.ConfigFile, test.file)
			}
			instance, err := annex.New(t.Context(), server, annex.Options{Storage: memory.Storage(), Admission: test.options})
			if err == nil {
				instance.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want %q in it", err, test.want)
			}
		})
	}
}
