package apitest_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/auth/authtest"
	"github.com/annexapi/annex/internal/testwait"
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

// issuerEntry is an issuer of an AuthenticationConfiguration, whose users have a prefix.
func issuerEntry(i *authtest.Issuer, prefix string) string {
	return fmt.Sprintf("jwt:\n- issuer:\n    url: %s\n    audiences: [annex]\n    certificateAuthority: |\n      %s\n  claimMappings:\n    username: {claim: sub, prefix: '%s'}\n    groups: {claim: groups, prefix: '%[3]s'}\n",
		i.URL, strings.ReplaceAll(strings.TrimSpace(i.CA), "\n", "\n      "), prefix)
}

// self is who the server says that a client is.
func (c *client) self() authenticationv1.UserInfo {
	c.t.Helper()
	var r authenticationv1.SelfSubjectReview
	decode(c.t, c.post(selfReviewPath, review("SelfSubjectReview")).want(http.StatusCreated).raw, &r)
	return r.Status.UserInfo
}

// refusedFiles is the line of the metrics about changes of a configuration that were refused,
// empty if there is none yet.
func (c *client) refusedFiles(what string) string {
	c.t.Helper()
	for line := range strings.Lines(string(c.get("/metrics").want(http.StatusOK).raw)) {
		if strings.HasPrefix(line, "apiserver_"+what+"_config_controller_automatic_reloads_total{") && strings.Contains(line, `status="failure"`) {
			return line
		}
	}
	return ""
}

func TestTokensOfAnIssuerHaveTheRightsOfTheirUsers(t *testing.T) {
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
	for _, token := range []string{issuer.Forge("1", map[string]any{"sub": "jane"}), issuer.Token(map[string]any{"sub": "jane", "exp": 1}), issuer.Token(map[string]any{"sub": "jane", "aud": "others"})} {
		for _, path := range []string{widgetsPath, "/healthz"} {
			c.stranger(token).get(path).refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		}
	}
	var reviewed authenticationv1.TokenReview
	decode(t, c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": joe.config.BearerToken}))).want(201).raw, &reviewed)
	if !reviewed.Status.Authenticated || reviewed.Status.User.Username != "corp:joe" {
		t.Errorf("a review of the token: %+v", reviewed.Status)
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

func TestAServerStartsWhileAnIssuerIsAway(t *testing.T) {
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

func TestAnonymousRequestsAreLetInAsTheFileSays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want map[string]int
	}{
		"a file without a word of them": {"jwt: []\n", map[string]int{"/healthz": 200, "/readyz/ping": 200, "/version": 200, "/apis": 401, widgetsPath: 401}},
		"none":                          {"anonymous: {enabled: false}\n", map[string]int{"/healthz": 401, "/readyz": 401, "/version": 401, "/apis": 401, widgetsPath: 401}},
		"some paths":                    {"anonymous: {enabled: true, conditions: [{path: /livez}, {path: /apis}]}\n", map[string]int{"/livez": 200, "/readyz": 401, "/version": 401, "/apis": 403, widgetsPath: 401}},
		"all paths":                     {"anonymous: {enabled: true}\n", map[string]int{"/healthz": 200, "/readyz/ping": 200, "/version": 200, "/apis": 403, widgetsPath: 403, "/metrics": 403}},
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
			// What they may do, roles say.
			c.post(clusterBindings, bind("ClusterRoleBinding", "open", "ClusterRole/system:discovery", "@system:unauthenticated")).want(201)
			c.until(200, func() *answer { return c.stranger("").get("/apis") })
		})
	}
}
