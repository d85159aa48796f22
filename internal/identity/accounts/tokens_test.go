package accounts

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/request"
	testclock "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/identity/jws"
)

// stored are objects by namespace and name.
type stored map[string]runtime.Object

func (s stored) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if obj, ok := s[request.NamespaceValue(ctx)+"/"+name]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(Resource, name)
}

func (s stored) put(name string, uid types.UID) *corev1.ServiceAccount {
	obj := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid}}
	s["default/"+name] = obj
	return obj
}

var widgetKind = schema.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "Widget"}

// world contains everything that tokens depend on.
type world struct {
	*Tokens
	t                 *testing.T
	clock             *testclock.FakeClock
	accounts, widgets stored
}

func newWorld(t *testing.T, options Options) *world {
	t.Helper()
	w := &world{t: t, clock: testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), accounts: stored{}, widgets: stored{}}
	if options.Issuers == nil {
		options.Issuers = []string{"https://shop"}
	}
	if options.Audiences == nil {
		options.Audiences = []string{"https://shop", "shop"}
	}
	options.Clock = w.clock
	keys, err := OpenKeys(KeyOptions{Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	w.Tokens = NewTokens(options, keys, w.accounts, func(gvk schema.GroupVersionKind) (Kind, bool) {
		return Kind{Resource: schema.GroupResource{Group: widgetKind.Group, Resource: "widgets"}, Storage: w.widgets}, gvk == widgetKind
	})
	w.accounts.put("robot", "uid-1")
	return w
}

func (w *world) ask(
	spec authenticationv1.TokenRequestSpec,
	change ...func(*authenticationv1.TokenRequest),
) (*authenticationv1.TokenRequest, error) {
	w.t.Helper()
	asked := &authenticationv1.TokenRequest{Spec: spec}
	for _, c := range change {
		c(asked)
	}
	obj, err := w.Requests().Create(request.WithNamespace(w.t.Context(), "default"), "robot", asked, nil, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*authenticationv1.TokenRequest), nil
}

func (w *world) token(spec authenticationv1.TokenRequestSpec) string {
	w.t.Helper()
	answer, err := w.ask(spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.Status.Token
}

// refuses reports an error unless the token is rejected for a reason.
func (w *world) refuses(token, reason string) {
	w.t.Helper()
	_, ok, err := w.AuthenticateToken(w.t.Context(), token)
	if ok || err == nil || !strings.Contains(err.Error(), reason) {
		w.t.Errorf("%v, %v; want %s", ok, err, reason)
	}
	if err != nil && token != "" && strings.Contains(err.Error(), token[strings.LastIndexByte(token, '.'):]) {
		w.t.Errorf("the error has the token: %v", err)
	}
}

func (w *world) accepts(token string) *authenticator.Response {
	w.t.Helper()
	response, ok, err := w.AuthenticateToken(w.t.Context(), token)
	if !ok || err != nil {
		w.t.Fatalf("%v, %v", ok, err)
	}
	return response
}

func bound(name string, uid types.UID) authenticationv1.TokenRequestSpec {
	return authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "shop.example.com/v1", Kind: "Widget", Name: name, UID: uid},
	}
}

func TestTokens_claims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.widgets.put("w", "uid-w")
	answer, err := w.ask(bound("w", ""))
	if err != nil {
		t.Fatal(err)
	}
	if want := w.clock.Now().Add(time.Hour); !answer.Status.ExpirationTimestamp.Time.Equal(want) || *answer.Spec.ExpirationSeconds != 3600 {
		t.Errorf("expires %v, want %v", answer.Status.ExpirationTimestamp, want)
	}
	if answer.Name != "robot" || answer.Namespace != "default" || answer.UID != "uid-1" ||
		!slices.Equal(answer.Spec.Audiences, []string{"https://shop", "shop"}) {
		t.Errorf("%+v", answer)
	}
	parsed, err := jws.Parse(answer.Status.Token)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(parsed.Payload, &got); err != nil {
		t.Fatal(err)
	}
	id, _ := got["jti"].(string)
	if len(id) != 36 {
		t.Errorf("jti %q", id)
	}
	delete(got, "jti")
	now := float64(w.clock.Now().Unix())
	want := map[string]any{
		"iss": "https://shop", "sub": "system:serviceaccount:default:robot", "aud": []any{"https://shop", "shop"},
		"iat": now, "nbf": now, "exp": now + 3600,
		"kubernetes.io": map[string]any{
			"namespace":      "default",
			"serviceaccount": map[string]any{"name": "robot", "uid": "uid-1"},
			"object":         map[string]any{"apiVersion": "shop.example.com/v1", "kind": "Widget", "name": "w", "uid": "uid-w"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	info := w.accepts(answer.Status.Token).User
	if info.GetName() != "system:serviceaccount:default:robot" || info.GetUID() != "uid-1" ||
		!slices.Equal(info.GetGroups(), []string{"system:serviceaccounts", "system:serviceaccounts:default"}) ||
		!reflect.DeepEqual(info.GetExtra(), map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=" + id}}) {
		t.Errorf("%+v", info)
	}
}

func TestTokens_expire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	token := w.token(authenticationv1.TokenRequestSpec{})
	w.accepts(token)
	w.clock.Step(-skew)
	w.accepts(token) // within the clock difference of another server
	w.clock.Step(-time.Second)
	w.refuses(token, "is not valid before 2026-01-01T00:00:00Z")
	w.clock.Step(skew + time.Second + time.Hour - time.Second)
	w.accepts(token)
	w.clock.Step(time.Second)
	w.refuses(token, "has expired at 2026-01-01T01:00:00Z")
}

func TestTokens_endWithAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	token := w.token(authenticationv1.TokenRequestSpec{})
	w.accepts(token)
	account := w.accounts.put("robot", "uid-1")
	account.DeletionTimestamp = &metav1.Time{Time: w.clock.Now()}
	w.accepts(token) // the object still exists, with finalizers
	w.clock.Step(terminating + time.Second)
	w.refuses(token, "robot is deleted since")
	delete(w.accounts, "default/robot")
	w.refuses(token, `serviceaccounts "robot" not found`)
	w.accounts.put("robot", "uid-2")
	w.refuses(token, "robot has the UID uid-2, not uid-1")
}

func TestTokens_endWithBoundObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.widgets.put("w", "uid-w")
	token := w.token(bound("w", "uid-w"))
	w.accepts(token)
	w.widgets.put("w", "uid-x")
	w.refuses(token, "the Widget to which the token is bound: w has the UID uid-x, not uid-w")
	delete(w.widgets, "default/w")
	w.refuses(token, "the Widget to which the token is bound")

	other := NewTokens(w.options, w.keys, w.accounts, func(schema.GroupVersionKind) (Kind, bool) { return Kind{}, false })
	w.Tokens = other
	w.refuses(token, "which this server does not serve")
}

// A server with the kinds of workloads binds tokens as a kube-apiserver does.
func TestTokens_boundToPodsAndNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	objects := stored{}
	objects.put("p", "uid-p")
	objects["/n"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-n"}}
	w.Tokens = NewTokens(w.options, w.keys, w.accounts, func(gvk schema.GroupVersionKind) (Kind, bool) {
		return Kind{Resource: schema.GroupResource{Resource: "objects"}, Storage: objects, ClusterScoped: gvk == nodes}, gvk == pods ||
			gvk == nodes
	})
	for kind, test := range map[string]struct{ name, uid, key, extra, claim string }{
		"Pod":  {"p", "uid-p", "default/p", "authentication.kubernetes.io/pod-", `"pod":{"name":"p","uid":"uid-p"}`},
		"Node": {"n", "uid-n", "/n", "authentication.kubernetes.io/node-", `"node":{"name":"n","uid":"uid-n"}`},
	} {
		spec := bound(test.name, "")
		spec.BoundObjectRef.APIVersion, spec.BoundObjectRef.Kind = "v1", kind
		token := w.token(spec)
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
		if err != nil || !strings.Contains(string(payload), test.claim) || strings.Contains(string(payload), `"object"`) {
			t.Errorf("%s: %s, %v", kind, payload, err)
		}
		extra := w.accepts(token).User.GetExtra()
		if !slices.Equal(extra[test.extra+"name"], []string{test.name}) || !slices.Equal(extra[test.extra+"uid"], []string{test.uid}) {
			t.Errorf("%s: %v", kind, extra)
		}
		spec.BoundObjectRef.UID = "other"
		if _, err := w.ask(spec); !apierrors.IsConflict(err) {
			t.Errorf("another %s: %v", kind, err)
		}
		delete(objects, test.key)
		w.refuses(token, "the "+kind+" to which the token is bound")
	}
}

func TestTokens_audiences(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	token := w.token(authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}})
	w.refuses(token, `is for the audiences ["vault"], not for ["https://shop" "shop"]`)
	response, ok, err := w.AuthenticateToken(authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault", "other"}), token)
	if !ok || err != nil || !slices.Equal(response.Audiences, authenticator.Audiences{"vault"}) {
		t.Errorf("of a review for vault: %+v, %v, %v", response, ok, err)
	}
	if got := w.accepts(
		w.token(authenticationv1.TokenRequestSpec{Audiences: []string{"shop", "vault"}}),
	).Audiences; !slices.Equal(
		got,
		authenticator.Audiences{"shop"},
	) {
		t.Errorf("%q", got)
	}
}

func TestTokens_otherIssuer_noOpinion(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, Options{}), newWorld(t, Options{Issuers: []string{"https://other", "https://shop"}})
	for _, token := range []string{"", "secret", "a.b.c", strings.Repeat("x", 100_000), other.token(authenticationv1.TokenRequestSpec{})} {
		if response, ok, err := w.AuthenticateToken(t.Context(), token); response != nil || ok || err != nil {
			t.Errorf("%.20s: %v, %v", token, ok, err)
		}
	}
	foreign := newWorld(t, Options{})
	w.refuses(foreign.token(authenticationv1.TokenRequestSpec{}), "is unknown or retired")
	// Tokens of the second issuer are accepted if a key of this server has signed them.
	other.keys = w.keys
	other.accepts(w.token(authenticationv1.TokenRequestSpec{Audiences: []string{"shop"}}))
}

// Only a holder of the key can sign such claims, and this server never does.
func TestTokens_invalidClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	for want, change := range map[string]func(map[string]any){
		"is not a service account token": func(c map[string]any) { delete(c, "kubernetes.io") },
		"never expires":                  func(c map[string]any) { delete(c, "exp") },
		"has expired":                    func(c map[string]any) { c["exp"] = c["iat"] },
		"is issued in the future":        func(c map[string]any) { c["iat"] = c["exp"] },
		"is not valid before":            func(c map[string]any) { c["nbf"] = c["exp"] },
		`subject "system:admin" does not match its service account`: func(c map[string]any) { c["sub"] = "system:admin" },
		"is bound to an object of " +
			"a cluster": func(c map[string]any) { c["kubernetes.io"].(map[string]any)["secret"] = map[string]any{"name": "s"} },
		"is bound to a /v1, Kind=Pod, which this " +
			"server does not serve": func(c map[string]any) { c["kubernetes.io"].(map[string]any)["pod"] = map[string]any{"name": "p"} },
		`audiences [], not for`:                           func(c map[string]any) { delete(c, "aud") },
		`for the audiences ["other"]`:                     func(c map[string]any) { c["aud"] = "other" },
		`serviceaccounts "other" not found`:               func(c map[string]any) { ofAccount(c, "default", "other") },
		`token of system:serviceaccount:other:robot: the`: func(c map[string]any) { ofAccount(c, "other", "robot") },
	} {
		now := w.clock.Now().Unix()
		c := map[string]any{"iss": "https://shop", "aud": "shop", "iat": now, "nbf": now, "exp": now + 600, "jti": "1"}
		ofAccount(c, "default", "robot")
		sign := func() string {
			payload, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			token, err := w.keys.Signer().Sign(payload)
			if err != nil {
				t.Fatal(err)
			}
			return token
		}
		c["exp"] = float64(now) + 600.5
		w.accepts(sign())
		change(c)
		w.refuses(sign(), want)
	}
}

func ofAccount(c map[string]any, namespace, name string) {
	c["sub"] = "system:serviceaccount:" + namespace + ":" + name
	c["kubernetes.io"] = map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": name, "uid": "uid-1"}}
}

// The signature is verified once, everything else each time.
func TestTokens_cached_endWithKey(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/key"
	w := newWorld(t, Options{})
	var err error
	if w.keys, err = OpenKeys(KeyOptions{SigningFile: path, MakeSigning: true, Clock: w.clock}); err != nil {
		t.Fatal(err)
	}
	token := w.token(authenticationv1.TokenRequestSpec{})
	w.accepts(token)
	if _, err := Rotate(t.Context(), path, w.clock.Now(), w.clock.Now().Add(time.Minute), false); err != nil {
		t.Fatal(err)
	}
	w.keys.refresh()
	w.accepts(token)
	w.clock.Step(2 * time.Minute)
	w.refuses(token, "is unknown or retired")
}

func TestRequests_invalidRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.widgets.put("w", "uid-w")
	lasting := func(seconds int64) authenticationv1.TokenRequestSpec {
		return authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}
	}
	pod := bound("p", "")
	pod.BoundObjectRef.APIVersion, pod.BoundObjectRef.Kind = "v1", "Pod"
	for _, test := range []struct {
		spec   authenticationv1.TokenRequestSpec
		change func(*authenticationv1.TokenRequest)
		is     func(error) bool
		want   string
	}{
		{lasting(599), nil, apierrors.IsInvalid, "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"},
		{lasting(-1), nil, apierrors.IsInvalid, "less than 10 minutes"},
		{lasting(1<<32 + 1), nil, apierrors.IsInvalid, "may not specify a duration larger than 2^32 seconds"},
		{authenticationv1.TokenRequestSpec{Attestations: map[string]authenticationv1.AttestationValue{"a": {"b"}}}, nil, apierrors.IsInvalid,
			"spec.attestations"},
		{pod, nil, apierrors.IsBadRequest, "cannot bind token to object of type /v1, Kind=Pod: use a namespaced kind that this " +
			"server serves"},
		{bound("", ""), nil, apierrors.IsBadRequest, "an object without a name"},
		{bound("none", ""), nil, apierrors.IsNotFound, "not found"},
		{bound("w", "uid-x"), nil, apierrors.IsConflict, "the UID in the bound object reference (uid-x) does not match"},
		{lasting(600), func(r *authenticationv1.TokenRequest) { r.Name = "other" }, apierrors.IsInvalid, "metadata.name: Invalid value: " +
			"\"other\": must match the service account name"},
		{lasting(600), func(r *authenticationv1.TokenRequest) { r.Namespace = "other" }, apierrors.IsInvalid, "metadata.namespace"},
		{lasting(600), func(r *authenticationv1.TokenRequest) { r.UID = "other" }, apierrors.IsConflict, "the UID in the request (other) is " +
			"not that of the service account (uid-1)"},
	} {
		change := test.change
		if change == nil {
			change = func(*authenticationv1.TokenRequest) {}
		}
		if _, err := w.ask(test.spec, change); err == nil || !test.is(err) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
	if _, err := w.ask(
		lasting(600),
		func(r *authenticationv1.TokenRequest) { r.UID, r.Name, r.Namespace = "uid-1", "robot", "default" },
	); err != nil {
		t.Error(err)
	}
	refusal := errors.New("no")
	refuse := func(_ context.Context, obj runtime.Object) error {
		if len(obj.(*authenticationv1.TokenRequest).Spec.Audiences) == 0 {
			t.Error("admission does not see the defaults")
		}
		return refusal
	}
	if _, err := w.Requests().
		Create(request.WithNamespace(t.Context(), "default"), "robot", &authenticationv1.TokenRequest{}, refuse,
			&metav1.CreateOptions{}); !errors.Is(
		err,
		refusal,
	) {
		t.Error(err)
	}
	dry, err := w.Requests().
		Create(request.WithNamespace(t.Context(), "default"), "robot", &authenticationv1.TokenRequest{}, nil,
			&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || dry.(*authenticationv1.TokenRequest).Status.Token != "" {
		t.Errorf("a dry run: %+v, %v", dry, err)
	}
}

func TestRequests_lifetimeIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxExpiration: 2 * time.Hour})
	long := int64(1 << 32)
	answer, err := w.ask(authenticationv1.TokenRequestSpec{ExpirationSeconds: &long})
	if err != nil {
		t.Fatal(err)
	}
	if !answer.Status.ExpirationTimestamp.Time.Equal(w.clock.Now().Add(2*time.Hour)) || *answer.Spec.ExpirationSeconds != 7200 {
		t.Errorf("%+v", answer.Status)
	}
	w.clock.Step(2 * time.Hour)
	w.refuses(answer.Status.Token, "has expired")
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	handlers := w.Discovery("", "127.0.0.1:8443")
	ask := func(method, path string) (int, map[string][]string, string) {
		recorder := httptest.NewRecorder()
		handlers[path].ServeHTTP(recorder, httptest.NewRequest(method, path, nil))
		body, err := io.ReadAll(recorder.Body)
		if err != nil {
			t.Fatal(err)
		}
		return recorder.Code, recorder.Header(), string(body)
	}
	const configuration, keys = "/.well-known/openid-configuration", "/openid/v1/jwks"
	code, header, body := ask("GET", configuration)
	const want = `{"issuer":"https://shop","jwks_uri":"https://127.0.0.1:8443/openid/v1/jwks",` +
		`"response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256"]}`
	if code != 200 || body != want ||
		fmt.Sprint(header["Content-Type"], header["Cache-Control"]) != "[application/json] [public, max-age=3600]" {
		t.Errorf("%d %v %s", code, header, body)
	}
	code, header, body = ask("GET", keys)
	if code != 200 || !strings.Contains(body, w.keys.Signer().ID) ||
		fmt.Sprint(header["Content-Type"], header["Cache-Control"]) != "[application/jwk-set+json] [public, max-age=3600]" {
		t.Errorf("%d %v %s", code, header, body)
	}
	for _, path := range []string{configuration, keys} {
		if code, header, _ := ask("POST", path); code != 405 || header["Allow"][0] != "GET" {
			t.Errorf("POST %s: %d %v", path, code, header)
		}
	}
	handlers = w.Discovery("https://keys.example.com/jwks", "")
	if _, _, body := ask("GET", configuration); !strings.Contains(body, `"jwks_uri":"https://keys.example.com/jwks"`) {
		t.Error(body)
	}
}

func BenchmarkTokens(b *testing.B) {
	keys, err := OpenKeys(KeyOptions{})
	if err != nil {
		b.Fatal(err)
	}
	accounts := stored{}
	account := accounts.put("robot", "uid-1")
	tokens := NewTokens(Options{Issuers: []string{"https://shop"}, Audiences: []string{"https://shop"}}, keys, accounts, nil)
	token, _, err := tokens.issue(account, time.Now(), time.Hour, []string{"https://shop"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for name, forget := range map[string]bool{"first": true, "again": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if forget {
					tokens.cache.Clear()
				}
				if _, ok, err := tokens.AuthenticateToken(b.Context(), token); !ok || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
