package apitest_test

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// stranger returns a client without the administrator's certificate, and with a token unless it is empty.
func (c *client) stranger(token string) *client {
	c.t.Helper()
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token
	config.Dial = c.config.Dial
	return connect(c.t, config)
}

func withTokens(t *testing.T) *client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("secret,jane,42,\"staff,guests\"\nroot,joe,43,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startWith(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: file})
}

var (
	openPaths   = []string{"/healthz", "/livez", "/readyz", "/version", "/healthz/ping", "/readyz?verbose", "/livez/ping"}
	closedPaths = []string{
		"/",
		"/api",
		"/api/v1",
		"/api/v1/namespaces",
		"/apis",
		"/apis/shop.example.com/v1",
		widgetsPath,
		widgetsPath + "/w",
		widgetsPath + "/w/status",
		widgetsPath + "?watch=1",
		shelvesPath,
		"/openapi/v2",
		"/openapi/v3",
		"/metrics",
		"/debug/pprof/",
		"/nowhere",
		"/apis/shop.example.com/v1/nowhere",
		"/healthz/../metrics",
	}
)

func TestAccess_noCredentials_onlyHealthAndVersion(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	c.create("w")
	anonymous := c.stranger("")
	for _, path := range openPaths {
		anonymous.get(path).want(200)
	}
	for _, path := range closedPaths {
		a := anonymous.get(path)
		a.refused(401, metav1.StatusReasonUnauthorized, "Unauthorized")
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
		for _, path := range []string{"/version", "/healthz", widgetsPath + "/w"} {
			if a := anonymous.do(method, path, `{}`); a.code != 401 {
				t.Errorf("%s %s: %d", method, path, a.code)
			}
		}
	}
	for _, token := range []string{"wrong", "secret,", "sec"} {
		wrong := c.stranger(token)
		wrong.get(widgetsPath).refused(401, metav1.StatusReasonUnauthorized)
		wrong.get("/version").refused(401, metav1.StatusReasonUnauthorized)
	}
	// Names that callers claim for themselves have no effect.
	anonymous.get(widgetsPath, "X-Remote-User", "admin", "X-Remote-Group", "system:masters").refused(401, metav1.StatusReasonUnauthorized)
	anonymous.get(widgetsPath, "Impersonate-User", "admin", "Impersonate-Group", "system:masters").
		refused(401, metav1.StatusReasonUnauthorized)
	anonymous.get(widgetsPath, "Authorization", "Basic YWRtaW46YWRtaW4=").refused(401, metav1.StatusReasonUnauthorized)
}

func TestAccess_noRole_onlyDiscovery(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	c.create("w")
	jane, joe := c.stranger("secret"), c.stranger("root")
	for _, path := range openPaths {
		jane.get(path).want(200)
	}
	s := jane.get(widgetsPath).
		refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com is forbidden: User "jane" cannot list resource "widgets" in API `+
			`group "shop.example.com" in the namespace "default"`)
	if s.Details == nil || s.Details.Group != "shop.example.com" || s.Details.Kind != "widgets" {
		t.Errorf("details: %+v", s.Details)
	}
	jane.get(widgetsPath+"/w").
		refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com "w" is forbidden: User "jane" cannot get resource "widgets"`)
	jane.patch(mergePatch, widgetsPath+"/w/status", `{}`).refused(403, metav1.StatusReasonForbidden, `cannot patch resource "widgets/status"`)
	jane.post(widgetsPath, widget("new")).refused(403, metav1.StatusReasonForbidden, "cannot create resource")
	jane.delete(widgetsPath, nil).refused(403, metav1.StatusReasonForbidden, "cannot deletecollection resource")
	jane.get(shelvesPath).refused(403, metav1.StatusReasonForbidden, "at the cluster scope")
	jane.get("/metrics").refused(403, metav1.StatusReasonForbidden, `forbidden: User "jane" cannot get path "/metrics"`)
	for _, path := range []string{"/api", "/apis"} {
		jane.get(path, "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json").want(200)
	}
	for _, path := range closedPaths {
		want := 403
		switch path { // every authenticated caller may discover
		case "/api", "/api/v1", "/apis", "/apis/shop.example.com/v1", "/openapi/v2", "/openapi/v3":
			want = 200
		}
		if a := jane.get(path); a.code != want {
			t.Errorf("%s: %d", path, a.code)
		}
	}
	if got := joe.get(widgetsPath).want(200).names(); len(got) != 1 {
		t.Errorf("joe sees %v", got)
	}
	if got := c.get(widgetsPath).want(200).names(); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

func TestImpersonation(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	c.create("w")
	c.get(widgetsPath, authenticationv1.ImpersonateUserHeader, "jane").
		refused(403, metav1.StatusReasonForbidden, `User "jane" cannot list resource`)
	c.get(widgetsPath, authenticationv1.ImpersonateUserHeader, "anyone", authenticationv1.ImpersonateGroupHeader, "system:masters").want(200)
	c.get(widgetsPath, authenticationv1.ImpersonateUserHeader, "anyone", authenticationv1.ImpersonateGroupHeader, "staff",
		"Impersonate-Extra-Scopes", "x", authenticationv1.ImpersonateUIDHeader, "7").
		refused(403, metav1.StatusReasonForbidden, `User "anyone"`)
	c.get(widgetsPath, authenticationv1.ImpersonateGroupHeader, "system:masters").
		refused(400, metav1.StatusReasonBadRequest, "without impersonating a user")
	jane := c.stranger("secret")
	jane.get(widgetsPath, authenticationv1.ImpersonateUserHeader, "joe").
		refused(403, metav1.StatusReasonForbidden, `User "jane" cannot impersonate`)
	jane.get("/version", authenticationv1.ImpersonateUserHeader, "joe", authenticationv1.ImpersonateGroupHeader, "system:masters").
		refused(403, metav1.StatusReasonForbidden)
	if got := c.do(http.MethodPatch, widgetsPath+"/w", `{"spec":{"replicas":1}}`, "Content-Type", mergePatch, "Impersonate-User", "anyone",
		"Impersonate-Group", "system:masters").
		want(200).
		widget(); *got.Spec.Replicas != 1 {
		t.Errorf("patched as another: %+v", got.Spec)
	}
}

func TestClientCertificate_foreignAuthority_isRejected(t *testing.T) {
	t.Parallel()
	one, other := start(t, shop()), start(t, shop())
	// The other server's administrator.
	config := rest.CopyConfig(one.config)
	config.CertData, config.KeyData = other.config.CertData, other.config.KeyData
	config.CertFile, config.KeyFile = other.config.CertFile, other.config.KeyFile
	connect(t, config).get(widgetsPath).refused(401, metav1.StatusReasonUnauthorized)

	// Nor does the client trust any server.
	config = rest.CopyConfig(one.config)
	config.CAData, config.CAFile = other.config.CAData, other.config.CAFile
	wrong := connect(t, config)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.http.Do(request); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
	conn, err := tls.Dial(
		"tcp",
		strings.TrimPrefix(one.config.Host, "https://"),
		&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11},
	)
	if err == nil {
		conn.Close()
		t.Error("TLS 1.1 was spoken")
	}
}

func TestListenInsecure_passesFullChain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("root,joe,43,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	instance, _ := run(t, shop(), annex.Options{Storage: memory.Storage(), ListenInsecure: anyPort, TokenAuthFile: file})
	plain := connect(t, &rest.Config{Host: instance.InsecureURL()})
	plain.get("/readyz").want(200)
	plain.get(widgetsPath).refused(401, metav1.StatusReasonUnauthorized)
	known := connect(t, &rest.Config{Host: instance.InsecureURL(), BearerToken: "root"})
	known.post(widgetsPath, widget("w")).want(201)
}
