package stream_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/stream"
)

// everything returns widgets with every kind of session.
func everything(t *testing.T, toy *toy) *annex.KindBuilder[v1.Widget] {
	behind := site(t)
	return widgets(
		execs(toy),
		stream.Attach("attach", func(_ context.Context, r *stream.AttachRequest[v1.Widget], s stream.Streams) error {
			_, err := fmt.Fprintf(s.Stdout, "attached to %s of %s", r.Options.Container, r.Name)
			return err
		}).Containers(func(*v1.Widget) []string { return []string{"main", "side"} }),
		stream.PortForward("portforward", dialLocal),
		stream.PortForwardAt("remoteforward", func(context.Context, *stream.PortForwardRequest[v1.Widget]) (*stream.Backend, error) {
			return &stream.Backend{URL: behind.JoinPath("upgrade")}, nil
		}),
		proxyTo(behind),
	)
}

// answer returns the status code of a request, 101 if it is upgraded, and the body.
func answer(t *testing.T, config *rest.Config, method, path string, header http.Header) (int, string) {
	t.Helper()
	response, text := ask(t, config, method, path, nil, header)
	if response.StatusCode == http.StatusSwitchingProtocols {
		response.Body.Close()
	}
	return response.StatusCode, text
}

// The ways to request a session.
var (
	asWebSocket = http.Header{
		"Connection":             {"Upgrade"},
		"Upgrade":                {"websocket"},
		"Sec-Websocket-Version":  {"13"},
		"Sec-Websocket-Key":      {"dGhlIHNhbXBsZSBub25jZQ=="},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io"},
	}
	asTunnel = http.Header{
		"Connection":             {"Upgrade"},
		"Upgrade":                {"websocket"},
		"Sec-Websocket-Version":  {"13"},
		"Sec-Websocket-Key":      {"dGhlIHNhbXBsZSBub25jZQ=="},
		"Sec-Websocket-Protocol": {"SPDY/3.1+portforward.k8s.io"},
	}
	asSPDY    = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"}}
	asForward = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"portforward.k8s.io"}}
	asEcho    = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}}
)

func TestSessions_needCreatePermission(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("g-token,getter,1\nc-token,creator,2\nb-token,both,3\nn-token,none,4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := annextest.StartWith(t, shop(everything(t, newToy())), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokens})
	create(t, config, "w")
	client := kubernetes.NewForConfigOrDie(config)
	for name, verbs := range map[string][]string{"getter": {"get"}, "creator": {"create"}, "both": {"get", "create"}} {
		_, err := client.RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups: []string{"shop.example.com"},
					Resources: []string{"widgets/exec", "widgets/attach", "widgets/portforward", "widgets/remoteforward", "widgets/proxy"},
					Verbs:     verbs,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(user string) *rest.Config {
		c := rest.AnonymousClientConfig(config)
		c.BearerToken, c.Dial = user[:1]+"-token", config.Dial
		return c
	}
	testwait.Until(t, "the roles are in force", func() bool {
		get, _ := answer(t, as("getter"), http.MethodGet, "w/proxy/x", nil)
		post, _ := answer(t, as("creator"), http.MethodPost, "w/proxy/x", nil)
		both, _ := answer(t, as("both"), http.MethodPost, "w/proxy/x", nil)
		return get == 200 && post == 200 && both == 200
	})
	for _, test := range []struct {
		method, path string
		header       http.Header
		// codes for getter, creator and both; none gets at most 403 and an anonymous caller 401
		getter, creator, both int
	}{
		{"GET", "w/exec?command=true", asWebSocket, 403, 403, 101},
		{"GET", "w/exec?command=true", asSPDY, 403, 403, 101},
		{"POST", "w/exec?command=true", asSPDY, 403, 101, 101},
		{"GET", "w/attach", asWebSocket, 403, 403, 101},
		{"POST", "w/attach", asSPDY, 403, 101, 101},
		{"GET", "w/portforward", asTunnel, 403, 403, 101},
		{"GET", "w/portforward", asForward, 403, 403, 101},
		{"POST", "w/portforward", asForward, 403, 101, 101},
		{"GET", "w/exec", nil, 400, 403, 400},
		{"GET", "w/proxy/x", nil, 200, 403, 200},
		{"POST", "w/proxy/x", nil, 403, 200, 200},
		{"DELETE", "w/proxy/x", nil, 403, 403, 403},
		{"GET", "w/proxy/upgrade", asEcho, 403, 403, 101},
		{"HEAD", "w/proxy/upgrade", asEcho, 403, 403, 101},
		{"OPTIONS", "w/proxy/upgrade", asEcho, 403, 403, 403},
		{"GET", "w/remoteforward", asForward, 403, 403, 101},
		// A request that names an upgrade without asking for it is not upgraded, neither here nor by backends.
		{"GET", "w/proxy/upgrade", http.Header{"Upgrade": {"echo"}}, 503, 403, 503},
		{"GET", "w/proxy/upgrade", http.Header{"Connection": {"close"}, "Upgrade": {"echo"}}, 503, 403, 503},
		{"GET", "w/proxy/nameless", nil, 503, 403, 503},
		{"GET", "w/exec", http.Header{"Upgrade": {"SPDY/3.1"}}, 400, 403, 400},
		{"GET", "w/remoteforward", http.Header{"Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"portforward.k8s.io"}}, 400, 403, 400},
	} {
		for user, want := range map[string]int{"getter": test.getter, "creator": test.creator, "both": test.both, "none": 403} {
			if got, text := answer(t, as(user), test.method, test.path, test.header); got != want {
				t.Errorf("%s: %s %s %s: %d, not %d: %s", user, test.method, test.path, test.header.Get("Upgrade"), got, want, text)
			}
		}
		if got, text := answer(t, rest.AnonymousClientConfig(config), test.method, test.path, test.header); got != 401 {
			t.Errorf("anonymous: %s %s: %d: %s", test.method, test.path, got, text)
		}
	}
}

func TestSessions_admitConnect(t *testing.T) {
	t.Parallel()
	kind := everything(t, newToy()).AdmitConnect(func(_ context.Context, c annex.Connection[v1.Widget]) error {
		if o, ok := c.Options.(*stream.ExecOptions); ok && c.Name == "shut" {
			return fmt.Errorf("no %q in %s", o.Command, c.Name)
		}
		return nil
	})
	config := startWidgets(t, kind)
	create(t, config, "shut")
	eachDialect(t, false, func(t *testing.T, d dialect) {
		if _, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"echo", "x"}, object: "shut"},
		); err == nil ||
			!strings.Contains(err.Error(), `is forbidden: no ["echo" "x"] in shut`) {
			t.Errorf("got %v", err)
		}
		if _, _, err := d.run(t, t.Context(), config, command{words: []string{"echo", "x"}}); err != nil {
			t.Error(err)
		}
	})
	if got, text := answer(t, config, http.MethodGet, "shut/attach", asWebSocket); got != 101 {
		t.Errorf("attach: %d %s", got, text)
	}
}

func TestSessions_policiesSeeOptions(t *testing.T) {
	t.Parallel()
	server := shop(everything(t, newToy()))
	server.ControlPlane = controlplane.New(controlplane.Options{})
	config := annextest.Start(t, server)
	create(t, config, "w")
	client := kubernetes.NewForConfigOrDie(config)
	_, err := client.AdmissionregistrationV1().
		ValidatingAdmissionPolicies().
		Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "no-shells"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{
					ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Connect},
						Rule: admissionregistrationv1.Rule{
							APIGroups:   []string{"shop.example.com"},
							APIVersions: []string{"v1"},
							Resources:   []string{"widgets/exec"},
						},
					}}},
				},
				Validations: []admissionregistrationv1.Validation{{
					Expression:        "object.command[0] != 'sh' && object.stdout",
					MessageExpression: "'no ' + object.command[0] + ' by ' + request.operation + ' of a ' + object.kind",
				}},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.AdmissionregistrationV1().
		ValidatingAdmissionPolicyBindings().
		Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "no-shells"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: "no-shells", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := dialects()[0]
	testwait.NoError(t, "shells are refused", func(ctx context.Context) error {
		_, _, err := d.run(t, ctx, config, command{words: []string{"sh"}})
		if err == nil || !strings.Contains(err.Error(), "no sh by CONNECT of a ExecOptions") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if out, _, err := d.run(t, t.Context(), config, command{words: []string{"echo", "x"}}); err != nil || out != "w  x" {
		t.Errorf("got %q, %v", out, err)
	}
}

// A webhook gets the options of a session, and its refusal is the answer to the request.
func TestSessions_webhooksSeeOptions(t *testing.T) {
	t.Parallel()
	reviews := make(chan *admissionv1.AdmissionRequest, 100)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		var options stream.ExecOptions
		if err := json.Unmarshal(review.Request.Object.Raw, &options); err != nil {
			t.Error(err)
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID:     review.Request.UID,
			Allowed: options.Command[0] != "sh",
			Result:  &metav1.Status{Code: 403, Message: "no shells here"},
		}
		reviews <- review.Request
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	server := shop(everything(t, newToy()))
	server.ControlPlane = controlplane.New(controlplane.Options{})
	config := annextest.Start(t, server)
	create(t, config, "w")
	fails, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	_, err := kubernetes.NewForConfigOrDie(config).
		AdmissionregistrationV1().
		ValidatingWebhookConfigurations().
		Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "no-shells"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "no-shells.example.com",
				ClientConfig: admissionregistrationv1.WebhookClientConfig{
					URL: &hook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
				},
				Rules: []admissionregistrationv1.RuleWithOperations{
					{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Connect},
						Rule: admissionregistrationv1.Rule{
							APIGroups:   []string{"shop.example.com"},
							APIVersions: []string{"v1"},
							Resources:   []string{"widgets/exec"},
						},
					},
				},
				FailurePolicy: &fails, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := dialects()[0]
	testwait.NoError(t, "shells are refused", func(ctx context.Context) error {
		_, _, err := d.run(t, ctx, config, command{words: []string{"sh"}})
		if err == nil || !strings.Contains(err.Error(), `admission webhook "no-shells.example.com" denied the request: no shells here`) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	for len(reviews) > 0 {
		<-reviews
	}
	eachDialect(t, false, func(t *testing.T, d dialect) {
		if _, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"sh", "-c", "x"}},
		); err == nil ||
			!strings.Contains(err.Error(), "no shells here") {
			t.Errorf("got %v", err)
		}
		<-reviews
		if out, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"echo", "x"}, input: strings.NewReader(""), query: url.Values{"container": {"side"}}},
		); err != nil ||
			out != "w side x" {
			t.Errorf("got %q, %v", out, err)
		}
		r := <-reviews
		if r.Operation != admissionv1.Connect ||
			r.Kind != (metav1.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "ExecOptions"}) ||
			r.Resource.Resource != "widgets" || r.SubResource != "exec" ||
			r.Name != "w" ||
			r.Namespace != "default" ||
			r.UserInfo.Username == "" {
			t.Errorf("the request is %+v", r)
		}
		want := `{"kind":"ExecOptions","apiVersion":"shop.example.com/v1","stdin":true,` +
			`"stdout":true,"stderr":true,"container":"side","command":["echo","x"]}`
		if string(r.Object.Raw) != want {
			t.Errorf("the options are %s, not %s", r.Object.Raw, want)
		}
	})
}

func TestSessions_discovery(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, everything(t, newToy()))
	list, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerResourcesForGroupVersion("shop.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range list.APIResources {
		got[r.Name] = r.Kind + " " + r.Verbs.String()
	}
	for name, want := range map[string]string{
		"widgets/exec":        "ExecOptions [create get]",
		"widgets/attach":      "AttachOptions [create get]",
		"widgets/portforward": "PortForwardOptions [create get]",
		"widgets/proxy":       "ProxyOptions [create delete get patch update]",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, not %q", name, got[name], want)
		}
	}
	openAPI := get(t, config, "/openapi/v3/apis/shop.example.com/v1")
	for _, want := range []string{
		`{"name":"command","in":"query","description":"The command and its arguments, one for each parameter. It is not run in a shell."`,
		`{"name":"ports","in":"query","description":"The ports to forward. Defaults to all."`,
		`{"name":"path","in":"path"`,
	} {
		if !strings.Contains(openAPI, want) {
			t.Errorf("no %s in OpenAPI", want)
		}
	}
}

func TestAttach(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, everything(t, newToy()))
	for query, want := range map[string]string{"": "main", "container=side": "side"} {
		for _, d := range dialects() {
			executor, err := d.executor(config, urlOf(t, config, "w/attach?"+query, nil))
			if err != nil {
				t.Fatal(err)
			}
			var out lockedBuffer
			err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard})
			if got := out.String(); err != nil || got != "attached to "+want+" of w" {
				t.Errorf("%s: %q, %v", d.name, got, err)
			}
		}
	}
}
