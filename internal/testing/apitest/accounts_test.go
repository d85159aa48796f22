package apitest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

const accountsPath = "/api/v1/namespaces/default/serviceaccounts"

func account(name string, f ...map[string]any) map[string]any {
	return object("v1", "ServiceAccount", name, append(f, fields{"apiVersion": "v1"})...)
}

func TestServiceAccounts_areOrdinaryObjects(t *testing.T) {
	t.Parallel()
	for _, storage := range []annex.Storage{memory.Storage(), embedded.Dir(""), files.Dir("")} {
		t.Run(storage.Name(), func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			c := startWith(t, shop(), annex.Options{Storage: storage, DataDir: data})
			made := c.post(accountsPath,
				account("robot", fields{"secrets": []fields{{"name": "s", "uid": "u"}}, "automountServiceAccountToken": false})).
				want(201)
			if got := made.str("kind"); got != "ServiceAccount" {
				t.Errorf("kind %q", got)
			}
			if made.str("metadata", "generation") != "" || strings.Contains(string(made.raw), `"uid":"u"`) ||
				made.str("automountServiceAccountToken") != "false" {
				t.Errorf("made: %s", made.raw)
			}
			c.post(accountsPath, account("robot")).refused(409, metav1.StatusReasonAlreadyExists, `serviceaccounts "robot" already exists`)
			c.post(accountsPath, account("Robot")).refused(422, metav1.StatusReasonInvalid, "metadata.name")
			c.patch(strategicType, accountsPath+"/robot", fields{"secrets": []fields{{"name": "other"}}}).want(200)
			if secrets := c.get(accountsPath + "/robot").want(200).object()["secrets"]; len(secrets.([]any)) != 2 {
				t.Errorf("a strategic patch does not merge: %v", secrets)
			}
			c.apply(accountsPath+"/applied", "me", account("applied", fields{"imagePullSecrets": []fields{{"name": "p"}}})).want(201)
			table := c.get(accountsPath, "Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").want(200)
			if !strings.Contains(string(table.raw), `"name":"Age"`) {
				t.Errorf("table: %s", table.raw)
			}
			c.get("/api/v1/serviceaccounts").want(200)
			if !strings.Contains(string(c.get("/api/v1").want(200).raw), `"shortNames":["sa"]`) {
				t.Error("discovery does not have the short name")
			}
			if storage.Name() == files.Name && !shared() {
				testwait.NoError(t, "the file of an account", func(context.Context) error {
					_, err := os.Stat(filepath.Join(data, "objects", "core", "serviceaccounts", "default", "robot.yaml"))
					return err
				})
			}
			c.namespace("other")
			c.post("/api/v1/namespaces/other/serviceaccounts", account("robot")).want(201)
			c.delete("/api/v1/namespaces/other", nil).want(200)
			testwait.NoError(t, "the namespace is gone with its account", func(context.Context) error {
				if c.get("/api/v1/namespaces/other").code != 404 {
					return errors.New("it is there")
				}
				return nil
			})
			c.get("/api/v1/namespaces/other/serviceaccounts/robot").want(404)
			c.delete(accountsPath+"/robot", nil).want(200)
			c.get(accountsPath+"/robot").refused(404, metav1.StatusReasonNotFound, `serviceaccounts "robot" not found`)
			c.get(accountsPath + "/default").want(404) // the server creates none
		})
	}
}

// tokenFor requests a token of a service account in the namespace default.
func (c *client) tokenFor(name string, f ...map[string]any) *answer {
	c.t.Helper()
	return c.post(
		accountsPath+"/"+name+"/token",
		object("v1", "TokenRequest", "", append(f, fields{"apiVersion": "authentication.k8s.io/v1"})...),
	)
}

// as returns a client with a token of a service account in the namespace default.
func (c *client) as(name string, f ...map[string]any) *client {
	c.t.Helper()
	return c.stranger(c.tokenFor(name, f...).want(201).str("status", "token"))
}

// known fails the test unless the server knows the client by the name of the account.
func (c *client) known(name string) {
	c.t.Helper()
	if got := c.post(selfReviewPath, review("SelfSubjectReview")).
		want(201).
		str("status", "userInfo", "username"); got != "system:serviceaccount:default:"+name {
		c.t.Errorf("known as %s", got)
	}
}

func (c *client) unknown() {
	c.t.Helper()
	c.post(selfReviewPath, review("SelfSubjectReview")).refused(401, metav1.StatusReasonUnauthorized, "Unauthorized")
}

func TestServiceAccounts_tokensAndRights(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	c.tokenFor("robot").refused(404, metav1.StatusReasonNotFound, `serviceaccounts "robot" not found`)
	made := c.post(accountsPath, account("robot")).want(201)
	issued := c.tokenFor("robot", spec(fields{"expirationSeconds": 600})).want(201)
	if got := issued.str(
		"apiVersion",
	) + " " + issued.str(
		"kind",
	) + " " + issued.str(
		"spec",
		"expirationSeconds",
	); got != "authentication.k8s.io/v1 TokenRequest 600" {
		t.Errorf("answered with %s", got)
	}
	token := issued.str("status", "token")
	robot := c.stranger(token)
	var self authenticationv1.SelfSubjectReview
	decode(t, robot.post(selfReviewPath, review("SelfSubjectReview")).want(201).raw, &self)
	user := self.Status.UserInfo
	if user.Username != "system:serviceaccount:default:robot" || user.UID != made.str("metadata", "uid") ||
		!slices.Equal(user.Groups, []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}) ||
		!strings.HasPrefix(user.Extra["authentication.kubernetes.io/credential-id"].String(), "[JTI=") {
		t.Errorf("%+v", user)
	}
	robot.get(widgetsPath).
		refused(403, metav1.StatusReasonForbidden, `User "system:serviceaccount:default:robot" cannot list resource "widgets"`)

	c.post(rolesPath, rbacObject("Role", "reader", rules(rule("get list", "widgets")))).want(201)
	c.post(bindingsPath, rbacObject("RoleBinding", "robots", fields{
		"roleRef":  fields{"kind": "Role", "name": "reader"},
		"subjects": []fields{{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}},
	})).want(201)
	c.until(200, func() *answer { return robot.get(widgetsPath) })
	robot.get(otherWidgets).refused(403, metav1.StatusReasonForbidden)
	robot.tokenFor("robot").refused(403, metav1.StatusReasonForbidden, `cannot create resource "serviceaccounts/token"`)

	// A token is only accepted in the header.
	nobody := c.stranger("")
	nobody.get(widgetsPath + "?access_token=" + token).want(401)
	nobody.get(widgetsPath, "X-Remote-User", "system:serviceaccount:default:robot").want(401)

	asked := c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": token}))).want(201)
	if asked.str("status", "authenticated") != "true" || asked.str("status", "user", "username") != user.Username ||
		asked.str("status", "audiences") != "[https://shop]" {
		t.Errorf("a review: %s", asked.raw)
	}
	other := c.tokenFor("robot", spec(fields{"audiences": []string{"vault"}})).want(201).str("status", "token")
	c.stranger(other).unknown()
	for audience, want := range map[string]string{"vault": "true", "other": "false"} {
		asked := c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": other, "audiences": []string{audience}}))).want(201)
		if got := asked.str("status", "authenticated"); got != want && (want == "true" || got != "") {
			t.Errorf("for %s: %s", audience, asked.raw)
		}
	}

	// Impersonation is a right like others.
	for who, code := range map[string]int{"robot": 200, "other": 403} {
		c.do("GET", widgetsPath, nil, "Impersonate-User", "system:serviceaccount:default:"+who).want(code)
	}
	jane := c.stranger("secret")
	jane.get(widgetsPath, "Impersonate-User", "system:serviceaccount:default:robot").
		refused(403, metav1.StatusReasonForbidden, `User "jane" cannot impersonate`)
	c.post(rolesPath, rbacObject("Role", "as-robot",
		rules(fields{"verbs": []string{"impersonate"}, "apiGroups": []string{""}, "resources": []string{"serviceaccounts"},
			"resourceNames": []string{"robot"}}))).
		want(201)
	c.post(bindingsPath, bind("RoleBinding", "as-robot", "Role/as-robot", "jane")).want(201)
	c.until(200, func() *answer {
		return jane.get(widgetsPath, "Impersonate-User", "system:serviceaccount:default:robot")
	})
	jane.get(widgetsPath, "Impersonate-User", "system:serviceaccount:default:other").want(403)
}

func TestServiceAccounts_tokensEndWithBoundObject(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	c.post(accountsPath, account("robot")).want(201)
	w := c.create("w")
	bound := spec(fields{"boundObjectRef": fields{"apiVersion": "shop.example.com/v1", "kind": "Widget", "name": "w"}})
	robot, ofWidget := c.as("robot"), c.as("robot", bound)
	robot.known("robot")
	ofWidget.known("robot")

	// A token for another object than the named one is not issued.
	c.tokenFor("robot", spec(fields{"boundObjectRef": fields{"apiVersion": "shop.example.com/v1", "kind": "Widget", "name": "w",
		"uid": "other"}})).
		refused(409, metav1.StatusReasonConflict, "does not match the UID in record")
	c.tokenFor("robot", spec(fields{"boundObjectRef": fields{"apiVersion": "shop.example.com/v1", "kind": "Widget", "name": "none"}})).
		refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "none" not found`)
	for _, kind := range []fields{{"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "shop.example.com/v1", "kind": "Shelf"},
		{"apiVersion": "shop.example.com/v9", "kind": "Widget"}} {
		kind["name"] = "w"
		c.tokenFor("robot", spec(fields{"boundObjectRef": kind})).
			refused(400, metav1.StatusReasonBadRequest, "cannot bind token to object of type")
	}
	c.tokenFor("robot", spec(fields{"expirationSeconds": 599})).
		refused(422, metav1.StatusReasonInvalid, "may not specify a duration less than 10 minutes")
	c.tokenFor("robot", metadata(fields{"name": "other"})).refused(422, metav1.StatusReasonInvalid, "must match the service account name")
	c.tokenFor("robot", metadata(fields{"uid": "other"})).refused(409, metav1.StatusReasonConflict, "is not that of the service account")
	c.post(accountsPath+"/robot/token", `{"apiVersion":"v1","kind":"ServiceAccount"}`).want(400)
	c.post(accountsPath+"/robot/token", `{`).want(400)
	c.get(accountsPath + "/robot/token").want(405)

	c.delete(widgetsPath+"/w", nil).want(200)
	ofWidget.unknown()
	robot.known("robot")
	if again := c.create("w"); again.UID == w.UID {
		t.Error("the same UID again")
	}
	ofWidget.unknown()

	c.delete(accountsPath+"/robot", nil).want(200)
	robot.unknown()
	c.post(accountsPath, account("robot")).want(201)
	robot.unknown()
	c.as("robot").known("robot")
}

// signingKey reads the key of a server, as a thief would.
func signingKey(t *testing.T, data string) *ecdsa.PrivateKey {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(data, "cert", "service-account.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return key.(*ecdsa.PrivateKey)
}

// signed signs the claims of a token anew, after a change of them.
func signed(t *testing.T, token string, key *ecdsa.PrivateKey, change func(claims map[string]any)) string {
	t.Helper()
	parts := strings.Split(token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	decode(t, payload, &claims)
	change(claims)
	if payload, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	parts[1] = base64.RawURLEncoding.EncodeToString(payload)
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func TestServiceAccounts_foreignTokens_areRejected(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), DataDir: data})
	c.post(accountsPath, account("robot")).want(201)
	token := c.tokenFor("robot").want(201).str("status", "token")
	key := signingKey(t, data)
	foreign, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	same := func(map[string]any) {}
	c.stranger(signed(t, token, key, same)).known("robot") // the test itself is correct
	for name, bad := range map[string]string{
		"foreign":        signed(t, token, foreign, same),
		"expired":        signed(t, token, key, func(c map[string]any) { c["exp"] = time.Now().Add(-time.Second).Unix() }),
		"not yet":        signed(t, token, key, func(c map[string]any) { c["nbf"] = time.Now().Add(time.Hour).Unix() }),
		"other issuer":   signed(t, token, key, func(c map[string]any) { c["iss"] = "https://other" }),
		"other audience": signed(t, token, key, func(c map[string]any) { c["aud"] = []string{"other"} }),
		"administrator":  signed(t, token, key, func(c map[string]any) { c["sub"] = "annex-admin" }),
		"cut":            token[:len(token)-2],
		"unsigned":       "eyJhbGciOiJub25lIn0" + token[strings.IndexByte(token, '.'):strings.LastIndexByte(token, '.')] + ".",
	} {
		t.Run(name, func(t *testing.T) {
			caller := c.stranger(bad)
			caller.t = t
			caller.unknown()
			caller.get("/version").want(401) // wrong credentials are rejected everywhere
		})
	}
}

func TestServiceAccounts_keyRotation(t *testing.T) {
	t.Parallel()
	data, logs := filepath.Join(t.TempDir(), "data"), t.TempDir()
	policy, events, access := filepath.Join(logs, "policy.yaml"), filepath.Join(logs, "audit.log"), filepath.Join(logs, "access.log")
	if err := os.WriteFile(
		policy,
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: RequestResponse\n"),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	args := []string{"--data-dir", data, "-v", "9", "--audit-policy-file", policy, "--audit-log-path", events, "--access-log", access}
	p := shopProgram(t, args...)
	c := clientFrom(t, filepath.Join(data, "kubeconfig"))
	c.post(accountsPath, account("robot")).want(201)
	first := c.tokenFor("robot").want(201).str("status", "token")
	keyOf := func(token string) string {
		header, err := base64.RawURLEncoding.DecodeString(token[:strings.IndexByte(token, '.')])
		if err != nil {
			t.Fatal(err)
		}
		var h struct{ Kid string }
		decode(t, header, &h)
		return h.Kid
	}
	rotate := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), p.Path, append([]string{"token-key", "rotate", "--data-dir", data}, args...)...).
			CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	rotate()
	var second string
	testwait.NoError(t, "tokens of the new key", func(context.Context) error {
		if second = c.tokenFor("robot").want(201).str("status", "token"); keyOf(second) == keyOf(first) {
			return errors.New("the old key signs")
		}
		return nil
	})
	c.stranger(first).known("robot")
	c.stranger(second).known("robot")
	if keys := string(
		c.get("/openid/v1/jwks").want(200).raw,
	); !strings.Contains(keys, keyOf(first)) ||
		!strings.Contains(keys, keyOf(second)) {
		t.Errorf("keys: %s", keys)
	}

	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	p = shopProgram(t, args...)
	c = clientFrom(t, filepath.Join(data, "kubeconfig"))
	c.post(tokenReviewsPath, review("TokenReview", spec(fields{"token": second}))).want(201)
	c.stranger(first).known("robot")
	c.stranger(second).known("robot")
	rotate("--discard-old")
	testwait.NoError(t, "the old keys are gone", func(context.Context) error {
		for _, token := range []string{first, second} {
			if c.stranger(token).get("/version").code != 401 {
				return errors.New("accepted")
			}
		}
		return nil
	})
	c.as("robot").known("robot")
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{"log": p.log.String()}
	for _, path := range []string{events, access} {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(raw), "/serviceaccounts/robot/token") {
			t.Errorf("%s does not have the requests: %v", path, err)
		}
		said[path] = string(raw)
	}
	if !strings.Contains(said[events], `"authentication.kubernetes.io/issued-credential-id":"JTI=`) {
		t.Error("the audit does not say which tokens were issued")
	}
	for name, text := range said {
		for _, token := range []string{first, second} {
			if strings.Contains(text, token) || strings.Contains(text, token[strings.LastIndexByte(token, '.'):]) {
				t.Errorf("a token is in %s", name)
			}
		}
	}
}

func TestServiceAccounts_openIDDiscovery(t *testing.T) {
	t.Parallel()
	c := withTokens(t)
	c.post(accountsPath, account("robot")).want(201)
	token := c.tokenFor("robot", spec(fields{"audiences": []string{"vault"}})).want(201).str("status", "token")
	const configuration, keys = "/.well-known/openid-configuration", "/openid/v1/jwks"
	for _, path := range []string{configuration, keys} {
		c.stranger("").get(path).want(401)
		c.stranger("secret").get(path).refused(403, metav1.StatusReasonForbidden)
		c.as("robot").do("POST", path, "{}").refused(403, metav1.StatusReasonForbidden)
		c.do("POST", path, "{}").want(405)
	}
	// All service accounts have access, by the role system:service-account-issuer-discovery.
	robot := c.as("robot")
	found := robot.get(configuration).want(200)
	if got := found.header.Get("Content-Type") + ", " + found.header.Get("Cache-Control"); got != "application/json, public, max-age=3600" {
		t.Error(got)
	}
	if found.str("issuer") != "https://shop" || found.str("id_token_signing_alg_values_supported") != "[ES256]" ||
		found.str("jwks_uri") != c.config.Host+keys {
		t.Errorf("%s", found.raw)
	}
	published := robot.get(strings.TrimPrefix(found.str("jwks_uri"), c.config.Host)).want(200)
	if got := published.header.Get(
		"Content-Type",
	) + ", " + published.header.Get(
		"Cache-Control",
	); got != "application/jwk-set+json, public, max-age=3600" {
		t.Error(got)
	}
	var set struct {
		Keys []struct{ Kty, Crv, Kid, Alg, Use, X, Y string }
	}
	decode(t, published.raw, &set)
	parts := strings.Split(token, ".")
	raw := func(text string) []byte {
		data, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var header struct{ Alg, Kid string }
	decode(t, raw(parts[0]), &header)
	if len(set.Keys) != 1 || set.Keys[0].Kid != header.Kid || set.Keys[0].Alg != header.Alg || set.Keys[0].Kty != "EC" ||
		set.Keys[0].Crv != "P-256" ||
		set.Keys[0].Use != "sig" {
		t.Fatalf("%+v for %+v", set, header)
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, raw(set.Keys[0].X), raw(set.Keys[0].Y)))
	if err != nil {
		t.Fatal(err)
	}
	digest, signature := sha256.Sum256([]byte(parts[0]+"."+parts[1])), raw(parts[2])
	if !ecdsa.Verify(public, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
		t.Error("the signature is not that of the key")
	}
}

func TestServiceAccounts_invalidOptions(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none")
	for want, o := range map[string]annex.Options{
		"Options.ServiceAccounts.Issuers has an empty issuer":                                      {ServiceAccounts: annex.ServiceAccountOptions{Issuers: []string{""}}},
		`Options.ServiceAccounts.Issuers "https://a b:x" contains a colon, but is not a URL`:       {ServiceAccounts: annex.ServiceAccountOptions{Issuers: []string{"https://a b:x"}}},
		`Options.ServiceAccounts.Issuers "a" is set twice`:                                         {ServiceAccounts: annex.ServiceAccountOptions{Issuers: []string{"a", "b", "a"}}},
		"Options.APIAudiences has an empty audience":                                               {APIAudiences: []string{"a", ""}},
		"Options.ServiceAccounts.KeyFiles has an empty name":                                       {ServiceAccounts: annex.ServiceAccountOptions{KeyFiles: []string{""}}},
		`Options.ServiceAccounts.JWKSURI "http://a/b" is not an https URL`:                         {ServiceAccounts: annex.ServiceAccountOptions{JWKSURI: "http://a/b"}},
		"Options.ServiceAccounts.MaxTokenExpiration 59m0s is not between an hour and 2^32 seconds": {ServiceAccounts: annex.ServiceAccountOptions{MaxTokenExpiration: 59 * time.Minute}},
		"Options.ServiceAccounts.SigningKeyFile " + missing +
			": no such file or directory": {ServiceAccounts: annex.ServiceAccountOptions{SigningKeyFile: missing}},
		"Options.ServiceAccounts.KeyFiles " + missing +
			": no such file or directory": {ServiceAccounts: annex.ServiceAccountOptions{KeyFiles: []string{missing}}},
		"Options.ServiceAccounts.Issuers requires a standalone server": {Aggregated: true,
			ServiceAccounts: annex.ServiceAccountOptions{Issuers: []string{"a"}}},
		"Options.ServiceAccounts.MaxTokenExpiration requires a standalone server": {Aggregated: true,
			ServiceAccounts: annex.ServiceAccountOptions{MaxTokenExpiration: -1}},
		"Options.APIAudiences requires a standalone server: the cluster authenticates tok": {Aggregated: true,
			APIAudiences: []string{"a"}},
	} {
		o.Storage = memory.Storage()
		instance, err := annex.New(t.Context(), shop(), o)
		if err == nil {
			t.Errorf("no error, want %s", want)
			instance.Close()
			continue
		}
		if !errors.As(err, new(*annex.ConfigError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
