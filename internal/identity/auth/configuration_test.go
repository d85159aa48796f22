package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/auth/authtest"
	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const authenticationHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

// entry returns the configuration of an issuer, which maps the claim sub to a user with a prefix.
func entry(i *authtest.Issuer, prefix string) string {
	return fmt.Sprintf(`- issuer:
    url: %s
    audiences: [annex]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: "%s"}
    groups: {expression: 'has(claims.teams) ? claims.teams : []'}
    uid: {expression: claims.sub}
    extra:
    - {key: example.com/tenant, valueExpression: 'has(claims.tenant) ? claims.tenant : ""'}
  claimValidationRules:
  - {expression: '!has(claims.guest) || !claims.guest', message: guests are not let in}
  userValidationRules:
  - {expression: '!user.username.startsWith("system:")', message: a name of the system}
`, i.URL, strings.ReplaceAll(strings.TrimSpace(i.CA), "\n", "\n      "), prefix)
}

type configurationFile struct {
	t    *testing.T
	path string
}

func newConfigurationFile(t *testing.T, text string) configurationFile {
	f := configurationFile{t, filepath.Join(t.TempDir(), "authentication.yaml")}
	f.replace(text)
	return f
}

func (f configurationFile) replace(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path+".new", []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.t.Fatal(err)
	}
}

// open opens a file, and runs the configuration until the end of the test.
func (f configurationFile) open(ctx context.Context, options ConfigurationOptions) *Configuration {
	f.t.Helper()
	options.File = f.path
	if options.Server == "" {
		options.Server = f.t.Name()
	}
	c, err := OpenConfiguration(ctx, options)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	f.t.Cleanup(func() { cancel(); <-done; c.Close() })
	return c
}

// becomes waits until a token authenticates as name, or is rejected if name is empty.
func becomes(t *testing.T, c authenticator.Token, token, name string) user.Info {
	t.Helper()
	var got user.Info
	testwait.Until(t, "the token is that of "+name, func() bool {
		response, ok, _ := c.AuthenticateToken(t.Context(), token)
		if !ok {
			return name == ""
		}
		got = response.User
		return got.GetName() == name
	})
	return got
}

func TestConfiguration_severalIssuers(t *testing.T) {
	t.Parallel()
	one, other, stranger := authtest.NewIssuer(t), authtest.NewIssuer(t), authtest.NewIssuer(t)
	c := newConfigurationFile(
		t,
		authenticationHead+"jwt:\n"+entry(one, "one:")+entry(other, "other:"),
	).open(t.Context(), ConfigurationOptions{})
	info := becomes(t, c, one.Token(map[string]any{"sub": "jane", "teams": []string{"dev", "ops"}, "tenant": "acme"}), "one:jane")
	if info.GetUID() != "jane" || !slices.Equal(info.GetGroups(), []string{"dev", "ops"}) ||
		!slices.Equal(info.GetExtra()["example.com/tenant"], []string{"acme"}) {
		t.Errorf("got %+v", info)
	}
	becomes(t, c, other.Token(map[string]any{"sub": "jane"}), "other:jane")
	for name, token := range map[string]string{
		"of another issuer":                     stranger.Token(map[string]any{"sub": "jane"}),
		"of another issuer in the name of one":  stranger.Token(map[string]any{"sub": "jane", "iss": one.URL}),
		"signed by another key":                 one.Forge("1", map[string]any{"sub": "jane"}),
		"signed by a key that is not known":     one.Forge("9", map[string]any{"sub": "jane"}),
		"expired":                               one.Token(map[string]any{"sub": "jane", "exp": 1}),
		"not valid yet":                         one.Token(map[string]any{"sub": "jane", "nbf": 1 << 40}),
		"for another audience":                  one.Token(map[string]any{"sub": "jane", "aud": "others"}),
		"refused by a rule about its claims":    one.Token(map[string]any{"sub": "jane", "guest": true}),
		"without the claim that names the user": one.Token(nil),
		"unsigned":                              strings.Join(append(strings.Split(one.Token(map[string]any{"sub": "jane"}), ".")[:2], ""), "."),
		"no token":                              "secret",
		"empty":                                 "",
	} {
		if response, ok, _ := c.AuthenticateToken(t.Context(), token); ok {
			t.Errorf("a token %s: let in as %v", name, response.User)
		}
	}

	one.Rotate()
	becomes(t, c, one.Token(map[string]any{"sub": "joe"}), "one:joe")

	unprefixed := newConfigurationFile(t, authenticationHead+"jwt:\n"+entry(one, "")).open(t.Context(), ConfigurationOptions{})
	becomes(t, unprefixed, one.Token(map[string]any{"sub": "joe"}), "joe")
	if response, ok, err := unprefixed.AuthenticateToken(
		t.Context(),
		one.Token(map[string]any{"sub": "system:admin"}),
	); ok || err == nil ||
		!strings.Contains(err.Error(), "a name of the system") {
		t.Errorf("refused by a rule about users: %v, %v", response, err)
	}
}

func TestConfiguration_audiences(t *testing.T) {
	t.Parallel()
	i := authtest.NewIssuer(t)
	c := newConfigurationFile(
		t,
		authenticationHead+"jwt:\n"+entry(i, ""),
	).open(t.Context(), ConfigurationOptions{Audiences: authenticator.Audiences{"here"}})
	token := i.Token(map[string]any{"sub": "jane"})
	becomes(t, c, token, "jane")
	for audience, want := range map[string]bool{"here": true, "there": false} {
		ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{audience})
		if _, ok, err := c.AuthenticateToken(ctx, token); ok != want || err != nil {
			t.Errorf("asked for %s: %t, %v", audience, ok, err)
		}
	}
}

func TestOpenConfiguration_mistake_hasLineAndField(t *testing.T) {
	t.Parallel()
	i := authtest.NewIssuer(t)
	for _, test := range []struct{ name, text, want string }{
		{"no YAML", authenticationHead + "jwt: [\n", "line "},
		{"a misspelled field", authenticationHead + "jwt:\n- issuer:\n    uri: a\n", `line 5: unknown field "jwt[0].issuer.uri"`},
		{"plain HTTP", authenticationHead + "jwt:\n- issuer:\n    url: http://a\n    audiences: [b]\n  claimMappings:\n    username: {claim: " +
			"sub, prefix: ''}\n", `line 5: jwt[0].issuer.url: Invalid value: "http://a": URL scheme must be https`},
		{"no audience", authenticationHead +
			"jwt:\n- issuer:\n    url: https://a\n  claimMappings:\n    username: {claim: sub, prefix: ''}\n",
			"line 4: jwt[0].issuer.audiences: Required value"},
		{"no user", authenticationHead + "jwt:\n- issuer:\n    url: https://a\n    audiences: [b]\n",
			"line 4: jwt[0].claimMappings.username: Required value"},
		{"a wrong expression", authenticationHead + "jwt:\n" + strings.Replace(entry(i, ""), "claims.teams :", "claims.teams ::", 1),
			"jwt[0].claimMappings.groups.expression: Invalid value"},
		{"an expression of another type", authenticationHead + "jwt:\n" +
			strings.Replace(entry(i, ""), `'!user.username.startsWith("system:")'`, "user.username", 1), "jwt[0].userValidationRules[0].expression"},
		{"an issuer twice", authenticationHead + "jwt:\n" + entry(i, "a") + entry(i, "b"), "jwt[1].issuer.url: Duplicate value"},
		{"an issuer of the server's own", authenticationHead + "jwt:\n- issuer:\n    url: https://own\n    audiences: [b]\n  " +
			"claimMappings:\n    username: {claim: sub, prefix: ''}\n", "line 5: jwt[0].issuer.url: Invalid value"},
		{"no authority", authenticationHead + "jwt:\n- issuer:\n    url: https://a\n    audiences: [b]\n    certificateAuthority: none\n  " +
			"claimMappings:\n    username: {claim: sub, prefix: ''}\n", "line 7: jwt[0].issuer.certificateAuthority"},
		{"an egress selector", authenticationHead + "jwt:\n- issuer:\n    url: https://a\n    audiences: [b]\n    egressSelectorType: " +
			"cluster\n  claimMappings:\n    username: {claim: sub, prefix: ''}\n", "line 7: jwt[0].issuer.egressSelectorType"},
		{"conditions of what is off", authenticationHead + "anonymous:\n  enabled: false\n  conditions:\n  - path: /livez\n",
			"line 5: anonymous.conditions: Invalid value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := newConfigurationFile(t, test.text).path
			_, err := OpenConfiguration(t.Context(), ConfigurationOptions{File: file, Server: t.Name(), Disallowed: []string{"https://own"}})
			if err == nil {
				t.Fatal("it was not refused")
			}
			for _, part := range []string{"Options.AuthenticationConfigFile", file, test.want} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("no %s in %v", part, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("several lines: %v", err)
			}
		})
	}
	if _, err := OpenConfiguration(
		t.Context(),
		ConfigurationOptions{File: "/missing/file"},
	); err == nil ||
		!strings.Contains(err.Error(), "/missing/file: no such file") {
		t.Errorf("a missing file: %v", err)
	}
}

// reloads returns upstream's metric of reloads of a server's file.
func reloads(t *testing.T, server, status string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range families {
		if family.GetName() != "apiserver_authentication_config_controller_automatic_reloads_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["status"] == status && labels["apiserver_id_hash"] == server {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}

func TestConfiguration_reload(t *testing.T) {
	t.Parallel()
	one, other := authtest.NewIssuer(t), authtest.NewIssuer(t)
	file := newConfigurationFile(t, authenticationHead+"jwt:\n"+entry(one, "")+"anonymous: {enabled: true, conditions: [{path: /apis}]}\n")
	c := file.open(t.Context(), ConfigurationOptions{Server: "reloaded"})
	ofOne, ofOther := one.Token(map[string]any{"sub": "jane"}), other.Token(map[string]any{"sub": "joe"})
	isOpen := func(path string) bool {
		_, ok, err := c.AuthenticateRequest(httptest.NewRequest(http.MethodGet, path, nil))
		if err != nil {
			t.Error(err)
		}
		return ok
	}
	becomes(t, c, ofOne, "jane")
	if !isOpen("/apis") || isOpen("/healthz") {
		t.Error("anonymous requests are not what the file says")
	}
	before, good := reloads(t, hashOf("reloaded"), "failure"), reloads(t, hashOf("reloaded"), "success")

	file.replace(authenticationHead + "jwt:\n" + entry(one, "") + "nonsense: {}\n")
	testwait.Until(t, "the wrong file is counted", func() bool { return reloads(t, hashOf("reloaded"), "failure") == before+1 })
	becomes(t, c, ofOne, "jane")
	if !isOpen("/apis") {
		t.Error("a wrong file has changed something")
	}

	file.replace(authenticationHead + "jwt:\n" + entry(one, "") + entry(other, "") + "anonymous: {enabled: false}\n")
	becomes(t, c, ofOther, "joe")
	becomes(t, c, ofOne, "jane")
	if isOpen("/apis") || isOpen("/healthz") {
		t.Error("anonymous requests are let in although they are off")
	}

	// The issuer's cached tokens are dropped with the issuer, and its mapping with the old file.
	file.replace(authenticationHead + "jwt:\n" + entry(other, "new:"))
	becomes(t, c, ofOther, "new:joe")
	becomes(t, c, ofOne, "")
	if !isOpen("/healthz") || isOpen("/apis") {
		t.Error("without a word about anonymous requests, health and version are open")
	}
	if n := reloads(t, hashOf("reloaded"), "success") - good; n != 2 {
		t.Errorf("read again %v times", n)
	}
}

// logged is a log in memory.
type logged struct{ testlog.Buffer }

func (l *logged) count(text string) int { return strings.Count(l.String(), text) }

// into returns a context whose logger writes to the log.
func (l *logged) into(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), logr.FromSlogHandler(slog.NewTextHandler(l, nil)))
}

func TestConfiguration_unreachableIssuer_isLoggedOnce(t *testing.T) {
	t.Parallel()
	away, there := authtest.NewIssuer(t), authtest.NewIssuer(t)
	away.Away.Store(true)
	log := &logged{}
	c := newConfigurationFile(t, authenticationHead+"jwt:\n"+entry(away, "")+entry(there, "")).open(log.into(t), ConfigurationOptions{})
	becomes(t, c, there.Token(map[string]any{"sub": "joe"}), "joe")
	token := away.Token(map[string]any{"sub": "jane"})
	if _, ok, err := c.AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Errorf("a token of an issuer that is away: %t, %v", ok, err)
	}
	testwait.Until(t, "the log tells", func() bool {
		return log.count("Cannot read the keys of the issuer, its tokens are rejected meanwhile") == 1
	})
	away.Away.Store(false)
	becomes(t, c, token, "jane")
	if n := log.count("Cannot read the keys of the issuer, its tokens are rejected meanwhile"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if log.count("its tokens are accepted") != 1 {
		t.Error("the log does not tell that the issuer is back")
	}
}

func TestConfiguration_beforeRun_asksNoIssuer(t *testing.T) {
	t.Parallel()
	i := authtest.NewIssuer(t)
	file := newConfigurationFile(t, authenticationHead+"jwt:\n"+entry(i, ""))
	c, err := OpenConfiguration(t.Context(), ConfigurationOptions{File: file.path, Server: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := c.AuthenticateToken(t.Context(), i.Token(map[string]any{"sub": "jane"})); ok || i.Asked.Load() > 0 {
		t.Error("the issuer was asked")
	}
	c.Close()
}

func TestConfiguration_manyWrongTokens(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("tries 10,000 tokens")
	}
	i := authtest.NewIssuer(t)
	c := newConfigurationFile(t, authenticationHead+"jwt:\n"+entry(i, "")).open(t.Context(), ConfigurationOptions{})
	becomes(t, c, i.Token(map[string]any{"sub": "jane"}), "jane")
	log := &logged{}
	ctx := log.into(t)
	known := Quiet(NewAuthenticator(Credentials{Tokens: []authenticator.Token{c}}))
	asked := i.Asked.Load()
	const many = 10_000
	began := time.Now()
	header, claims, _ := strings.Cut(i.Forge("unknown", map[string]any{"sub": "jane"}), ".")
	for n := range many {
		request := httptest.NewRequest(http.MethodGet, "/apis", nil).WithContext(ctx)
		// Each token is different and has a key ID that would require a request to the issuer.
		request.Header.Set("Authorization", fmt.Sprintf("Bearer %s.%s%04d", header, claims[:len(claims)-4], n))
		if response, ok, err := known.AuthenticateRequest(request); ok || err != nil {
			t.Fatalf("token %d: %v, %v", n, response, err)
		}
	}
	t.Logf("%v for each token", time.Since(began)/many)
	if n := log.count("Rejected credentials"); n < 1 || n > 3 {
		t.Errorf("%d lines in the log", n)
	}
	if n := i.Asked.Load() - asked; n > many/100 {
		t.Errorf("the issuer was asked %d times", n)
	}
}

// hashOf returns the name of a server in upstream's metrics.
func hashOf(server string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(server))) }
