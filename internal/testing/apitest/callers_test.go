package apitest_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
	"github.com/annexapi/annex/internal/identity/auth/authtest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// callersFile is a configuration file of apiserver.config.k8s.io.
type callersFile struct {
	t          *testing.T
	kind, path string
}

func newCallersFile(t *testing.T, kind, text string) callersFile {
	t.Helper()
	f := callersFile{t, kind, filepath.Join(t.TempDir(), kind+".yaml")}
	f.replace(text)
	return f
}

func (f callersFile) replace(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path+".new", []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: "+f.kind+"\n"+text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.t.Fatal(err)
	}
}

// issuerEntry returns an issuer of an AuthenticationConfiguration, whose users have a prefix.
func issuerEntry(i *authtest.Issuer, prefix string) string {
	return fmt.Sprintf("jwt:\n- issuer:\n    url: %s\n    audiences: [annex]\n    certificateAuthority: |\n      %s\n  claimMappings:\n   "+
		" username: {claim: sub, prefix: '%s'}\n    groups: {claim: groups, prefix: '%[3]s'}\n",
		i.URL, strings.ReplaceAll(strings.TrimSpace(i.CA), "\n", "\n      "), prefix)
}

// self returns the user that the server takes a client for.
func (c *client) self() authenticationv1.UserInfo {
	c.t.Helper()
	var r authenticationv1.SelfSubjectReview
	decode(c.t, c.post(selfReviewPath, review("SelfSubjectReview")).want(http.StatusCreated).raw, &r)
	return r.Status.UserInfo
}

// refusedFiles returns the line of the metrics about rejected changes of a configuration, empty if there is none yet.
func (c *client) refusedFiles(what string) string {
	c.t.Helper()
	for line := range strings.Lines(string(c.get("/metrics").want(http.StatusOK).raw)) {
		if strings.HasPrefix(line, "apiserver_"+what+"_config_controller_automatic_reloads_total{") &&
			strings.Contains(line, `status="failure"`) {
			return line
		}
	}
	return ""
}

func TestIssuer_tokensHaveRightsOfUsers(t *testing.T) {
	t.Parallel()
	issuer := authtest.NewIssuer(t)
	file := newCallersFile(t, "AuthenticationConfiguration", issuerEntry(issuer, "corp:"))
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), AuthenticationConfigFile: file.path, TokenAuthFile: tokenFile(t)})
	c.create("w")
	c.post(bindingsPath, bind("RoleBinding", "readers", "ClusterRole/cluster-admin", "@corp:readers")).want(201)
	jane := c.stranger(issuer.Token(map[string]any{"sub": "jane", "groups": []string{"readers"}}))
	joe := c.stranger(issuer.Token(map[string]any{"sub": "joe"}))
	jane.until(http.StatusOK, func() *answer { return jane.get(widgetsPath) })
	jane.get(shelvesPath).want(http.StatusForbidden)
	joe.get(widgetsPath).refused(http.StatusForbidden, metav1.StatusReasonForbidden, `User "corp:joe" cannot list resource "widgets"`)
	if info := jane.self(); info.Username != "corp:jane" || !slices.Equal(info.Groups, []string{"corp:readers", "system:authenticated"}) {
		t.Errorf("jane is %+v", info)
	}
	if info := c.stranger("secret").self(); info.Username != "jane" {
		t.Errorf("of the token file: %+v", info)
	}
	for _, token := range []string{issuer.Forge("1", map[string]any{"sub": "jane"}), issuer.Token(map[string]any{"sub": "jane", "exp": 1}),
		issuer.Token(map[string]any{"sub": "jane", "aud": "others"})} {
		for _, path := range []string{widgetsPath, "/healthz"} {
			c.stranger(token).get(path).refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		}
	}
	var reviewed authenticationv1.TokenReview
	decode(t, c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": joe.config.BearerToken}))).want(201).raw, &reviewed)
	if !reviewed.Status.Authenticated || reviewed.Status.User.Username != "corp:joe" {
		t.Errorf("a review of the token: %+v", reviewed.Status)
	}
	for audience, want := range map[string]bool{"https://shop": true, "https://elsewhere": false} {
		reviewed = authenticationv1.TokenReview{}
		decode(
			t,
			c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": joe.config.BearerToken, "audiences": []string{audience}}))).
				want(201).
				raw,
			&reviewed,
		)
		if reviewed.Status.Authenticated != want {
			t.Errorf("a review for the audience %s: %+v", audience, reviewed.Status)
		}
	}
	reviewed = authenticationv1.TokenReview{}
	decode(t, c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": issuer.Forge("1", nil)}))).want(201).raw, &reviewed)
	if reviewed.Status.Authenticated || !strings.Contains(reviewed.Status.Error, "verify") {
		t.Errorf("a review of a forged token: %+v", reviewed.Status)
	}

	before := c.refusedFiles("authentication")
	file.replace("jwt: []\nnonsense: true\n")
	testwait.Until(t, "the wrong file is counted", func() bool { return c.refusedFiles("authentication") != before })
	jane.get(widgetsPath).want(http.StatusOK)
	file.replace("jwt: []\n")
	jane.until(http.StatusUnauthorized, func() *answer { return jane.get(widgetsPath) })
	c.stranger("secret").get("/apis").want(http.StatusOK)
}

func TestIssuer_unreachable_serverStarts(t *testing.T) {
	t.Parallel()
	issuer := authtest.NewIssuer(t)
	issuer.Away.Store(true)
	file := newCallersFile(t, "AuthenticationConfiguration", issuerEntry(issuer, ""))
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), AuthenticationConfigFile: file.path})
	jane := c.stranger(issuer.Token(map[string]any{"sub": "jane"}))
	jane.get("/apis").refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	c.get("/apis").want(http.StatusOK)
	c.stranger("").get("/readyz").want(http.StatusOK)
	issuer.Away.Store(false)
	jane.until(http.StatusOK, func() *answer { return jane.get("/apis") })
}

func TestAnonymous_configurationFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want map[string]int
	}{
		"a file without a word of them": {"jwt: []\n", map[string]int{"/healthz": 200, "/readyz/ping": 200, "/version": 200, "/apis": 401,
			widgetsPath: 401}},
		"none": {"anonymous: {enabled: false}\n",
			map[string]int{"/healthz": 401, "/readyz": 401, "/version": 401, "/apis": 401, widgetsPath: 401}},
		"some paths": {"anonymous: {enabled: true, conditions: [{path: /livez}, {path: /apis}]}\n",
			map[string]int{"/livez": 200, "/readyz": 401, "/version": 401, "/apis": 403, widgetsPath: 401}},
		"all paths": {"anonymous: {enabled: true}\n",
			map[string]int{"/healthz": 200, "/readyz/ping": 200, "/version": 200, "/apis": 403, widgetsPath: 403, "/metrics": 403}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := newCallersFile(t, "AuthenticationConfiguration", test.text)
			c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), AuthenticationConfigFile: file.path})
			for path, code := range test.want {
				c.stranger("").get(path).want(code)
				c.stranger("wrong").get(path).want(401)
			}
			if test.want["/apis"] != 403 {
				return
			}
			// Roles determine their rights.
			c.post(clusterBindings, bind("ClusterRoleBinding", "open", "ClusterRole/system:discovery", "@system:unauthenticated")).want(201)
			c.until(200, func() *answer { return c.stranger("").get("/apis") })
		})
	}
}

func TestTokenWebhook_unknownTokens(t *testing.T) {
	t.Parallel()
	hook := authtest.NewWebhook(t, func(spec map[string]any) map[string]any {
		if spec["token"] == "hers" {
			return map[string]any{"authenticated": true, "user": map[string]any{"username": "jill", "groups": []string{"staff"}}}
		}
		return map[string]any{"authenticated": false}
	})
	c := startWith(
		t,
		shop(),
		annex.Options{
			Storage:       memory.Storage(),
			TokenAuthFile: tokenFile(t),
			TokenWebhook:  annex.TokenWebhookOptions{ConfigFile: hook.Kubeconfig, CacheTTL: -1},
		},
	)
	jill := c.stranger("hers")
	if info := jill.self(); info.Username != "jill" || !slices.Equal(info.Groups, []string{"staff", "system:authenticated"}) {
		t.Errorf("jill is %+v", info)
	}
	c.stranger("wrong").get("/healthz").refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	asked := hook.Asked.Load()
	c.get("/apis").want(http.StatusOK)
	c.stranger("secret").get("/apis").want(http.StatusOK)
	c.stranger("").get("/healthz").want(http.StatusOK)
	if n := hook.Asked.Load(); n != asked {
		t.Errorf("asked %d times about callers that are known", n-asked)
	}

	// While it hangs, only its own tokens wait, and those not for long.
	hook.Hang(true)
	waiting := make(chan *answer)
	go func() { waiting <- jill.get("/apis") }()
	testwait.Until(t, "the webhook is asked", func() bool { return hook.Asked.Load() > asked })
	c.get(widgetsPath).want(http.StatusOK)
	c.stranger("secret").get("/apis").want(http.StatusOK)
	c.stranger("").get("/healthz").want(http.StatusOK)
	select {
	case a := <-waiting:
		t.Fatalf("answered at once: %d", a.code)
	default:
	}
	(<-waiting).refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	hook.Hang(false)
	jill.until(http.StatusOK, func() *answer { return jill.get("/apis") })
}

// behind returns a client of a server with the certificate of a proxy, or of another name that the proxy's authority
// signs.
func (c *client) behind(a *clustertest.Authority, name string) *client {
	c.t.Helper()
	cert := a.Issue(c.t, name)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		c.t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.Dial = c.config.Dial
	config.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	config.KeyData = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	return connect(c.t, config)
}

func TestRequestHeader_callersOfProxy(t *testing.T) {
	t.Parallel()
	proxies, others := clustertest.NewAuthority(t, "proxies", time.Now()), clustertest.NewAuthority(t, "others", time.Now())
	options := annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), RequestHeader: annex.RequestHeaderOptions{
		ClientCAFile: clustertest.File(t, "proxies", proxies.PEM), AllowedNames: []string{"front"},
		UsernameHeaders: []string{"X-Remote-User", "X-Caller"}, UIDHeaders: []string{"X-Remote-Uid"},
	}}
	c := startWith(t, shop(), options)
	proxy := c.behind(proxies, "front")
	ask := func(c *client, headers ...string) (info authenticationv1.UserInfo) {
		var r authenticationv1.SelfSubjectReview
		decode(t, c.post(selfReviewPath, review("SelfSubjectReview"), headers...).want(http.StatusCreated).raw, &r)
		return r.Status.UserInfo
	}
	info := ask(proxy, "X-Caller", "jill", "X-Remote-Uid", "7", "X-Remote-Group", "staff", "X-Remote-Extra-Team", "a")
	if info.Username != "jill" || info.UID != "7" || !slices.Equal(info.Groups, []string{"staff", "system:authenticated"}) ||
		!slices.Equal(info.Extra["team"], []string{"a"}) {
		t.Errorf("jill is %+v", info)
	}
	proxy.get(widgetsPath, "X-Remote-User", "jill").want(http.StatusForbidden)
	proxy.get(widgetsPath, "X-Remote-User", "root", "X-Remote-Group", "system:masters").want(http.StatusOK)
	// Without a user name in the headers, the proxy itself is no caller.
	proxy.get("/apis").refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)

	forged := []string{
		"X-Remote-User",
		"root",
		"X-Caller",
		"root",
		"X-Remote-Group",
		"system:masters",
		"X-Remote-Uid",
		"0",
		"X-Remote-Extra-Team",
		"a",
	}
	for name, stranger := range map[string]*client{
		"no certificate":             c.stranger(""),
		"a name that is not allowed": c.behind(proxies, "back"),
		"another authority":          c.behind(others, "front"),
		"a wrong token":              c.stranger("wrong"),
	} {
		for _, path := range []string{widgetsPath, "/apis", "/metrics"} {
			if a := stranger.get(path, forged...); a.code != http.StatusUnauthorized {
				t.Errorf("%s: %s: %d", name, path, a.code)
			}
		}
	}
	if info := ask(
		c.stranger("secret"),
		forged...); info.Username != "jane" || slices.Contains(info.Groups, "system:masters") ||
		len(info.Extra) > 0 {
		t.Errorf("forged headers beside a token: %+v", info)
	}
	if info := ask(c, forged...); info.Username == "root" || info.Extra["team"] != nil {
		t.Errorf("forged headers beside the administrator's certificate: %+v", info)
	}
}

func TestRequestHeader_forgedHeaders_reachNoHandler(t *testing.T) {
	t.Parallel()
	proxies := clustertest.NewAuthority(t, "proxies", time.Now())
	seen := make(chan http.Header, 1)
	server := shop()
	server.Handlers = append(
		server.Handlers,
		annex.Handler{Path: "/seen", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Clone() })},
	)
	c := startWith(t, server, annex.Options{Storage: memory.Storage(), RequestHeader: annex.RequestHeaderOptions{
		ClientCAFile: clustertest.File(
			t,
			"proxies",
			proxies.PEM,
		),
		UsernameHeaders:    []string{"X-Caller"},
		ExtraHeadersPrefix: []string{"X-More-"},
	}})
	c.get("/seen", "X-Remote-User", "root", "X-Remote-Group", "system:masters", "X-Caller", "root", "X-More-Team", "a", "X-Other", "kept").
		want(http.StatusOK)
	header := <-seen
	for _, name := range []string{"X-Remote-User", "X-Remote-Group", "X-Caller", "X-More-Team"} {
		if header.Get(name) != "" {
			t.Errorf("%s reached the handler", name)
		}
	}
	if header.Get("X-Other") != "kept" {
		t.Errorf("the handler got %v", header)
	}
}

func TestRequestHeader_wrongProxy_isRejected(t *testing.T) {
	t.Parallel()
	users := clustertest.NewAuthority(t, "users", time.Now())
	file := clustertest.File(t, "users", users.PEM)
	for name, test := range map[string]struct {
		options annex.Options
		want    string
	}{
		"no such file": {annex.Options{RequestHeader: annex.RequestHeaderOptions{ClientCAFile: "/missing/ca.crt"}},
			"Options.RequestHeader.ClientCAFile: open /missing/ca.crt: no such file"},
		"an authority of callers": {annex.Options{ClientCAFile: file, RequestHeader: annex.RequestHeaderOptions{ClientCAFile: file}},
			`has a certificate authority that also issues certificates of users, "users", so every user could impersonate any other: add ` +
				`Options.RequestHeader.AllowedNames`},
		"names of no authority": {annex.Options{RequestHeader: annex.RequestHeaderOptions{AllowedNames: []string{"front"}}},
			"Options.RequestHeader.AllowedNames requires Options.RequestHeader.ClientCAFile, the certificate authorities of clients that " +
				"may send the headers"},
		"an empty header": {annex.Options{RequestHeader: annex.RequestHeaderOptions{ClientCAFile: file, GroupHeaders: []string{" "}}},
			"Options.RequestHeader.GroupHeaders has an empty value"},
	} {
		test.options.Storage = memory.Storage()
		instance, err := annex.New(t.Context(), shop(), test.options)
		if err == nil {
			_ = instance.Close()
			t.Errorf("%s: not refused", name)
			continue
		}
		if !errors.As(err, new(*annex.ConfigError)) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %T: %v", name, err, err)
		}
	}
	instance, err := annex.New(
		t.Context(),
		shop(),
		annex.Options{
			Storage:       memory.Storage(),
			ClientCAFile:  file,
			RequestHeader: annex.RequestHeaderOptions{ClientCAFile: file, AllowedNames: []string{"front"}},
		},
	)
	if err != nil {
		t.Fatalf("with allowed names: %v", err)
	}
	_ = instance.Close()
}

func TestAllowLocalhost(t *testing.T) {
	t.Parallel()
	instance, _ := run(
		t,
		shop(),
		annex.Options{Storage: memory.Storage(), ListenInsecure: anyPort, TokenAuthFile: tokenFile(t), AllowLocalhost: true},
	)
	admin := clientOf(t, instance)
	plain := connect(t, &rest.Config{Host: instance.InsecureURL()})
	secure := admin.stranger("")
	for name, c := range map[string]*client{"HTTP": plain, "HTTPS": secure} {
		c.post(widgetsPath, widget(strings.ToLower(name))).want(http.StatusCreated)
		if info := c.self(); info.Username != admin.self().Username || !slices.Contains(info.Groups, "system:masters") {
			t.Errorf("%s: %+v", name, info)
		}
		for _, headers := range [][]string{
			{"Origin", "http://evil.example.com"}, {"Sec-Fetch-Site", "cross-site"}, {"X-Forwarded-For", "127.0.0.1"},
			{"Forwarded", "for=127.0.0.1"}, {"Via", "1.1 proxy"},
			{"X-Remote-User", "root"}, {"Authorization", "Bearer wrong"}, {"Authorization", "Basic YWRtaW46YWRtaW4="},
		} {
			if a := c.get(widgetsPath, headers...); a.code != http.StatusUnauthorized {
				t.Errorf("%s with %v: %d", name, headers, a.code)
			}
		}
		// DNS rebinding: the page's name resolves to this machine.
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.config.Host+widgetsPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "evil.example.com"
		response, err := c.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s with the Host of another: %d", name, response.StatusCode)
		}
	}
	if info := admin.stranger("secret").self(); info.Username != "jane" {
		t.Errorf("with a token: %+v", info)
	}
	admin.stranger("").get("/healthz").want(http.StatusOK)
}

func TestAuthorizationWebhook_besideRoles(t *testing.T) {
	t.Parallel()
	hook := authtest.NewWebhook(t, func(spec map[string]any) map[string]any {
		resource, _ := spec["resourceAttributes"].(map[string]any)
		switch {
		case resource["resource"] == "shelves":
			return map[string]any{"allowed": true}
		case resource["verb"] == "delete":
			return map[string]any{"denied": true, "allowed": false, "reason": "the archive keeps all"}
		}
		return map[string]any{"allowed": false}
	})
	file := newCallersFile(t, "AuthorizationConfiguration", fmt.Sprintf(`authorizers:
- type: Webhook
  name: archive.example.com
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    unauthorizedTTL: 1ms
    authorizedTTL: 1ms
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: has(request.resourceAttributes) && request.resourceAttributes.group == 'shop.example.com'
- {type: RBAC, name: rbac}
`, hook.Kubeconfig))
	server := shop()
	server.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "owner" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	c := startWith(t, server, annex.Options{Storage: memory.Storage(), AuthorizationConfigFile: file.path, TokenAuthFile: tokenFile(t)})
	c.create("w")
	c.post(bindingsPath, bind("RoleBinding", "jane", "ClusterRole/cluster-admin", "jane")).want(201)
	jane := c.stranger("secret")
	jane.until(http.StatusOK, func() *answer { return jane.get(widgetsPath) })
	jane.get(shelvesPath).want(http.StatusOK)
	jane.delete(widgetsPath+"/w", nil).refused(http.StatusForbidden, metav1.StatusReasonForbidden, "the archive keeps all")
	asked := hook.Asked.Load()
	jane.get("/apis").want(http.StatusOK)
	jane.get("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles").want(http.StatusOK)
	c.get(widgetsPath).want(http.StatusOK) // an administrator
	c.get(widgetsPath, "Impersonate-User", "owner").want(http.StatusOK)
	if n := hook.Asked.Load(); n != asked {
		t.Errorf("the webhook was asked %d times about what it is not for", n-asked)
	}

	hook.Hang(true)
	waiting := make(chan *answer)
	go func() { waiting <- jane.get(widgetsPath) }()
	testwait.Until(t, "the webhook is asked", func() bool { return hook.Asked.Load() > asked })
	c.get(widgetsPath).want(http.StatusOK)
	jane.get("/apis").want(http.StatusOK)
	if a := <-waiting; a.code != http.StatusInternalServerError { // as kube-apiserver answers
		t.Errorf("a webhook that hangs, and whose failures deny: %d %s", a.code, a.raw)
	}
	hook.Hang(false)
	jane.until(http.StatusOK, func() *answer { return jane.get(widgetsPath) })

	before := c.refusedFiles("authorization")
	file.replace("authorizers:\n- {type: AlwaysAllow, name: all}\n")
	testwait.Until(t, "other types are refused", func() bool { return c.refusedFiles("authorization") != before })
	jane.get("/metrics").want(http.StatusForbidden)
	file.replace("authorizers:\n- {type: RBAC, name: rbac}\n")
	jane.until(http.StatusForbidden, func() *answer { return jane.get(shelvesPath) })
	jane.delete(widgetsPath+"/w", nil).want(http.StatusOK)
}

func TestLog_wrongTokens_areLimited(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := shopProgram(t, "--data-dir", data)
	c := clientFrom(t, filepath.Join(data, "kubeconfig"))
	for i := range 300 {
		c.stranger("").get("/apis", "Authorization", fmt.Sprintf("Bearer wrong-%d", i)).want(http.StatusUnauthorized)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(p.log.String(), "\n"); n > 10 {
		t.Errorf("%d lines for 300 wrong tokens:\n%.2000s", n, p.log.String())
	}
	if !strings.Contains(p.log.String(), "Rejected credentials") {
		t.Errorf("nothing is said of wrong tokens:\n%s", p.log.String())
	}
	if strings.Contains(p.log.String(), "wrong-") {
		t.Errorf("a token is in the log:\n%s", p.log.String())
	}
}
