package certs

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/identity/jws"
)

func tokenOf(t *testing.T, c *Credentials, at time.Time, life time.Duration) string {
	t.Helper()
	token, _, err := c.Token(at, life)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func administrator(t *testing.T, dir string) *Credentials {
	t.Helper()
	c, err := OpenUsers(dir, nil).Administrator()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTokens_authenticateUntilExpiry(t *testing.T) {
	t.Parallel()
	dir, clock := t.TempDir(), clocktesting.NewFakeClock(now())
	server := open(t, Options{Dir: dir, Clock: clock})
	tokens := server.Tokens(authenticator.Audiences{"https://shop"})
	alice := create(t, usersAt(dir, clock.Now()), NewUser{Name: "alice", Groups: []string{"staff"}})
	for _, c := range []*Credentials{administrator(t, dir), alice} {
		token, expires, err := c.Token(clock.Now(), time.Hour)
		if err != nil || !expires.Equal(clock.Now().Add(time.Hour)) {
			t.Fatalf("%s, %v", expires, err)
		}
		response, ok, err := tokens.AuthenticateToken(t.Context(), token)
		if err != nil || !ok || response.User.GetName() != c.Name() || !slices.Equal(response.User.GetGroups(), c.cert.Subject.Organization) ||
			!slices.Equal(response.Audiences, authenticator.Audiences{"https://shop"}) {
			t.Errorf("%+v, %v, %v", response, ok, err)
		}
		if _, ok, err := tokens.AuthenticateToken(
			authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault"}),
			token,
		); ok || err == nil ||
			!strings.Contains(err.Error(), "is for this server") {
			t.Errorf("for others: %v, %v", ok, err)
		}
		clock.Step(time.Hour - time.Second)
		if _, ok, err := tokens.AuthenticateToken(t.Context(), token); !ok || err != nil {
			t.Errorf("before its end: %v, %v", ok, err)
		}
		clock.Step(time.Second)
		if _, ok, err := tokens.AuthenticateToken(t.Context(), token); ok || err == nil || !strings.Contains(err.Error(), "it has expired at") {
			t.Errorf("at its end: %v, %v", ok, err)
		}
		clock.Step(-time.Hour - Skew - time.Second)
		if _, ok, err := tokens.AuthenticateToken(t.Context(), token); ok || err == nil || !strings.Contains(err.Error(), "is not valid yet") {
			t.Errorf("before it was issued: %v, %v", ok, err)
		}
		clock.Step(Skew + time.Second)
	}
}

func TestTokens_endWithCertificate(t *testing.T) {
	t.Parallel()
	dir, start := t.TempDir(), now()
	server := openAt(t, dir, start)
	alice := create(t, usersAt(dir, start), NewUser{Name: "alice", Lifetime: time.Hour})
	if _, expires, err := alice.Token(start, 10*time.Hour); err != nil || !expires.Equal(start.Add(time.Hour)) {
		t.Errorf("it outlives the certificate: %s, %v", expires, err)
	}
	if _, _, err := alice.Token(
		start.Add(time.Hour),
		time.Hour,
	); !errors.As(err, new(Refusal)) ||
		!strings.Contains(err.Error(), "the certificate of alice has expired at") {
		t.Error(err)
	}
	token := tokenOf(t, alice, start, time.Hour)
	if _, err := usersAt(dir, start).Revoke(t.Context(), Revocation{Name: "alice"}); err != nil {
		t.Fatal(err)
	}
	if err := server.loadRevocations(); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := server.Tokens(nil).
		AuthenticateToken(t.Context(), token); ok || err == nil ||
		!strings.Contains(err.Error(), `of "alice" is revoked`) {
		t.Errorf("revoked: %v, %v", ok, err)
	}
}

func TestTokens_otherKey_isRefused(t *testing.T) {
	t.Parallel()
	dir, start := t.TempDir(), now()
	server := openAt(t, dir, start)
	tokens := server.Tokens(nil)
	admin := administrator(t, dir)
	other := t.TempDir()
	openAt(t, other, start)
	alice := create(t, usersAt(dir, start), NewUser{Name: "alice"})
	sign := func(key *pair, chain []byte, claims tokenClaims) string {
		signer, err := jws.NewSigner(key.key)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		token, err := signer.Sign(payload, chain)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := tokenClaims{tokenIssuer, AdminUser, "1", start.Unix(), start.Unix(), start.Add(time.Hour).Unix()}
	ofAlice := good
	ofAlice.Subject = "alice"
	for name, test := range map[string]struct{ token, want string }{
		"another authority":             {tokenOf(t, administrator(t, other), start, time.Hour), "certificate signed by unknown authority"},
		"another's certificate":         {sign(alice.pair, admin.cert.Raw, good), "signature is wrong"},
		"another's name":                {sign(admin.pair, admin.cert.Raw, ofAlice), `its subject is "alice"`},
		"the server's certificate":      {sign(server.server, server.server.cert.Raw, good), "incompatible key usage"},
		"a certificate that is none":    {sign(admin.pair, []byte("x"), good), "token has no valid certificate"},
		"a cut token":                   {strings.TrimSuffix(tokenOf(t, admin, start, time.Hour), "A")[:900], ""},
		"no certificate":                {"", ""},
		"a token of others":             {"a.b.c", ""},
		"another issuer, not looked at": {sign(admin.pair, admin.cert.Raw, tokenClaims{Issuer: "https://shop"}), ""},
	} {
		response, ok, err := tokens.AuthenticateToken(t.Context(), test.token)
		if ok || response != nil || (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, %v, want %s", name, ok, err, test.want)
		}
	}
	if _, ok, err := tokens.AuthenticateToken(t.Context(), sign(admin.pair, admin.cert.Raw, good)); !ok || err != nil {
		t.Errorf("the test itself: %v, %v", ok, err)
	}
}

func TestWriteKubeconfig_token(t *testing.T) {
	t.Parallel()
	dir, path, clock := t.TempDir(), filepath.Join(t.TempDir(), "kubeconfig"), clocktesting.NewFakeClock(now())
	c := open(t, Options{Dir: dir, Clock: clock, TokenLifetime: 3 * time.Hour})
	token := func() string {
		t.Helper()
		if err := c.writeKubeconfig(kubeconfigTarget{path, "shop", "https://127.0.0.1:8443"}); err != nil {
			t.Fatal(err)
		}
		known, err := clientcmd.LoadFromFile(path)
		if err != nil {
			t.Fatal(err)
		}
		auth := known.AuthInfos["shop-admin"]
		if len(auth.ClientKeyData) > 0 || len(auth.ClientCertificateData) > 0 {
			t.Error("the key is in the kubeconfig")
		}
		if _, ok, err := c.Tokens(nil).AuthenticateToken(t.Context(), auth.Token); !ok || err != nil {
			t.Errorf("the token is not accepted: %v", err)
		}
		return auth.Token
	}
	first := token()
	clock.Step(time.Hour + 59*time.Minute)
	if token() != first {
		t.Error("a token that lasts is replaced")
	}
	clock.Step(2 * time.Minute)
	second := token()
	if second == first {
		t.Error("a third is left, and the token is not renewed")
	}
	// The token in the file may be for another server, or have a longer lifetime than now requested.
	c.tokenLifetime = time.Hour
	if token() == second {
		t.Error("a token that lives longer than is asked for stays")
	}
	plain := open(t, Options{Dir: dir, Clock: clock})
	if err := plain.writeKubeconfig(kubeconfigTarget{path, "shop", "https://127.0.0.1:8443"}); err != nil {
		t.Fatal(err)
	}
	known, err := clientcmd.LoadFromFile(path)
	if err != nil || known.AuthInfos["shop-admin"].Token != "" || len(known.AuthInfos["shop-admin"].ClientKeyData) == 0 {
		t.Errorf("without tokens: %v", err)
	}
}

func TestIssued_invalidCredentials(t *testing.T) {
	t.Parallel()
	dir, other, start := t.TempDir(), t.TempDir(), now()
	openAt(t, other, start)
	if _, err := OpenUsers(
		dir,
		nil,
	).Administrator(); !errors.As(err, new(Refusal)) ||
		!strings.Contains(err.Error(), "no certificate authority in") {
		t.Error(err)
	}
	create(t, usersAt(dir, start), NewUser{Name: "alice"}) // creates an authority but no administrator
	if _, err := OpenUsers(
		dir,
		nil,
	).Administrator(); !errors.As(err, new(Refusal)) ||
		!strings.Contains(err.Error(), "start the server once") {
		t.Error(err)
	}
	foreign := create(t, usersAt(other, start), NewUser{Name: "bob"})
	file := func(name string, data []byte, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]string{
		"/none":                               "certificate /none: no such file or directory",
		file("text", []byte("x"), 0o600):      "failed to find any PEM data",
		file("open", foreign.PEM(), 0o644):    "the file has a key and is readable or writable by every user of this machine",
		file("half", foreign.certPEM, 0o600):  "found a certificate rather than a key",
		file("foreign", foreign.PEM(), 0o600): "was not issued by the authority",
	} {
		if _, err := OpenUsers(dir, nil).Issued(path); !errors.As(err, new(Refusal)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	mine := create(t, usersAt(dir, start), NewUser{Name: "alice"})
	if got, err := OpenUsers(dir, nil).Issued(file("mine", mine.PEM(), 0o600)); err != nil || got.Name() != "alice" {
		t.Error(err)
	}
}
