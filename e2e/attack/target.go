package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// The namespaces that the program creates: of the well-behaved callers, of the attacker with rights on one, and of
// the attacker with the right to create definitions.
const (
	victimNamespace  = "attack-victim"
	tenantNamespace  = "attack-tenant"
	definerNamespace = "attack-definer"
)

// credential proves the identity of a caller. Without a token it uses the certificate, if there is one.
type credential struct {
	name  string
	token string
	cert  *tls.Certificate
}

// kind is the resource that the callers use. Its objects need no fields but their metadata.
type kind struct {
	apiVersion, resource, name string
}

func (k kind) path(namespace, object string) string {
	prefix := "/apis/" + k.apiVersion
	if !strings.Contains(k.apiVersion, "/") {
		prefix = "/api/" + k.apiVersion
	}
	path := prefix + "/namespaces/" + namespace + "/" + k.resource
	if object != "" {
		path += "/" + object
	}
	return path
}

func (k kind) group() string {
	if group, _, found := strings.Cut(k.apiVersion, "/"); found {
		return group
	}
	return ""
}

// target is the server under attack, with its accounts. It does not change once prepare has returned.
type target struct {
	url   *url.URL
	roots *x509.CertPool // nil for those of the system
	pid   int            // 0 if unknown
	kind  kind

	admin credential
	// user has all rights on objects of victimNamespace, tenant on those of tenantNamespace. weak has no rights, and
	// definer may create definitions, policies and webhooks.
	user, weak, tenant, definer credential
	// deep is a kind whose objects hold any JSON; its resource is empty if the server accepts no definitions.
	deep kind
}

// kubeconfig is the part of a kubeconfig that is read.
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string `json:"name"`
		Context struct{ Cluster, User string }
	} `json:"contexts"`
	Clusters []struct {
		Name    string `json:"name"`
		Cluster struct {
			Server string `json:"server"`
			CA     string `json:"certificate-authority"`
			CAData []byte `json:"certificate-authority-data"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string `json:"name"`
		User struct {
			Token    string `json:"token"`
			Cert     string `json:"client-certificate"`
			CertData []byte `json:"client-certificate-data"`
			Key      string `json:"client-key"`
			KeyData  []byte `json:"client-key-data"`
		} `json:"user"`
	} `json:"users"`
}

// readKubeconfig returns the server and the administrator of the current context.
func readKubeconfig(path string) (*target, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var c kubeconfig
	if err := yaml.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", path, err)
	}
	content := func(inline []byte, name string) ([]byte, error) {
		if len(inline) > 0 || name == "" {
			return inline, nil
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return os.ReadFile(name)
	}
	t := &target{admin: credential{name: "administrator"}}
	for _, one := range c.Contexts {
		if one.Name != c.CurrentContext {
			continue
		}
		for _, cluster := range c.Clusters {
			if cluster.Name != one.Context.Cluster {
				continue
			}
			if t.url, err = url.Parse(cluster.Cluster.Server); err != nil {
				return nil, fmt.Errorf("the kubeconfig %s: server: %w", path, err)
			}
			ca, err := content(cluster.Cluster.CAData, cluster.Cluster.CA)
			if err != nil {
				return nil, fmt.Errorf("the kubeconfig %s: certificate authority: %w", path, err)
			}
			if len(ca) > 0 {
				t.roots = x509.NewCertPool()
				t.roots.AppendCertsFromPEM(ca)
			}
		}
		for _, user := range c.Users {
			if user.Name != one.Context.User {
				continue
			}
			t.admin.token = user.User.Token
			cert, err := content(user.User.CertData, user.User.Cert)
			if err != nil {
				return nil, fmt.Errorf("the kubeconfig %s: client certificate: %w", path, err)
			}
			key, err := content(user.User.KeyData, user.User.Key)
			if err != nil {
				return nil, fmt.Errorf("the kubeconfig %s: client key: %w", path, err)
			}
			if len(cert) > 0 {
				pair, err := tls.X509KeyPair(cert, key)
				if err != nil {
					return nil, fmt.Errorf("the kubeconfig %s: client certificate: %w", path, err)
				}
				t.admin.cert = &pair
			}
		}
	}
	if t.url == nil || t.url.Scheme != "https" {
		return nil, fmt.Errorf("the kubeconfig %s: the current context %q has no server with https", path, c.CurrentContext)
	}
	return t, nil
}

// tls returns a configuration of a credential that offers protocols, such as h2.
func (t *target) tls(c credential, protocols ...string) *tls.Config {
	config := &tls.Config{RootCAs: t.roots, ServerName: t.url.Hostname(), NextProtos: protocols}
	if c.cert != nil {
		config.Certificates = []tls.Certificate{*c.cert}
	}
	return config
}

// dial returns a TLS connection that the context's end closes.
func (t *target) dial(ctx context.Context, c credential, protocols ...string) (net.Conn, error) {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: t.tls(c, protocols...)}
	conn, err := dialer.DialContext(ctx, "tcp", t.url.Host)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return conn, nil
}

// client returns a client of a credential with at most so many connections.
func (t *target) client(c credential, connections int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:     t.tls(c),
			ForceAttemptHTTP2:   true,
			MaxConnsPerHost:     connections,
			MaxIdleConnsPerHost: connections,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

// request returns a request of a credential.
func (t *target) request(ctx context.Context, c credential, method, path string, body []byte) (*http.Request, error) {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, t.url.Scheme+"://"+t.url.Host+path, reader)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return r, nil
}

// statusError is an unexpected response.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.message) }

// codeOf returns the status code in an error, 0 if there was no response.
func codeOf(err error) int {
	var status *statusError
	if errors.As(err, &status) {
		return status.code
	}
	return 0
}

// do sends a request with JSON in its body and decodes the response, unless into is nil. An unsuccessful response is
// a statusError.
func (t *target) do(ctx context.Context, client *http.Client, c credential, method, path string, body, into any) error {
	var encoded []byte
	if body != nil {
		var err error
		if encoded, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	r, err := t.request(ctx, c, method, path, encoded)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	answer, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if answer.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %w", method, path, &statusError{answer.StatusCode, cut(string(content), 300)})
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s %s: decode the answer: %w", method, path, err)
	}
	return nil
}

func cut(text string, length int) string {
	if len(text) > length {
		return text[:length] + "..."
	}
	return text
}

type object = map[string]any

// rule returns a rule of a role.
func rule(group string, resources ...string) object {
	return object{"apiGroups": []string{group}, "resources": resources, "verbs": []string{"*"}}
}

const rbac = "rbac.authorization.k8s.io/v1"

// prepare creates the accounts of the attackers and of the well-behaved user, their namespaces and the objects in
// these.
func (t *target) prepare(ctx context.Context, weakToken string) error {
	client := t.client(t.admin, 1)
	defer client.CloseIdleConnections()
	create := func(path string, o object) error {
		err := t.do(ctx, client, t.admin, http.MethodPost, path, o, nil)
		if codeOf(err) == http.StatusConflict {
			return nil
		}
		return err
	}
	for _, ns := range []string{victimNamespace, tenantNamespace, definerNamespace} {
		if err := create("/api/v1/namespaces", object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": ns}}); err != nil {
			return err
		}
	}
	for _, account := range []struct {
		credential *credential
		namespace  string
		rules      []object
		cluster    []object
	}{
		{&t.user, victimNamespace, []object{rule(t.kind.group(), t.kind.resource)}, nil},
		{&t.tenant, tenantNamespace, []object{rule(t.kind.group(), t.kind.resource), rule("attack.example.com", "*")}, nil},
		{&t.definer, definerNamespace, []object{rule(t.kind.group(), t.kind.resource)}, []object{
			rule("apiextensions.k8s.io", "customresourcedefinitions"),
			rule("admissionregistration.k8s.io", "validatingwebhookconfigurations", "validatingadmissionpolicies",
				"validatingadmissionpolicybindings"),
		}},
		{&t.weak, tenantNamespace, nil, nil},
	} {
		name := map[*credential]string{&t.user: "user", &t.tenant: "tenant", &t.definer: "definer", &t.weak: "weak"}[account.credential]
		account.credential.name = name
		if name == "weak" && weakToken != "" {
			t.weak.token = weakToken
			continue
		}
		token, err := t.account(ctx, client, account.namespace, name)
		if err != nil {
			return err
		}
		account.credential.token = token
		subjects := []object{{"kind": "ServiceAccount", "name": name, "namespace": account.namespace}}
		role := func(what, path, name string, rules []object) error {
			meta := object{"name": name}
			if err := create(
				path+strings.ToLower(what)+"s",
				object{"apiVersion": rbac, "kind": what, "metadata": meta, "rules": rules},
			); err != nil {
				return err
			}
			return create(
				path+strings.ToLower(what)+"bindings",
				object{"apiVersion": rbac, "kind": what + "Binding", "metadata": meta, "subjects": subjects,
					"roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": what, "name": name}},
			)
		}
		if account.rules != nil {
			if err := role("Role", "/apis/"+rbac+"/namespaces/"+account.namespace+"/", name, account.rules); err != nil {
				return err
			}
		}
		if account.cluster != nil {
			if err := role("ClusterRole", "/apis/"+rbac+"/", "attack-"+name, account.cluster); err != nil {
				return err
			}
		}
	}
	for i := range listed {
		if err := create(
			t.kind.path(victimNamespace, ""),
			t.object(victimNamespace, fmt.Sprintf("listed-%d", i), strings.Repeat("x", 900)),
		); err != nil {
			return err
		}
	}
	for i := range large {
		if err := create(
			t.kind.path(tenantNamespace, ""),
			t.object(tenantNamespace, fmt.Sprintf("large-%d", i), strings.Repeat("x", 200_000)),
		); err != nil {
			return err
		}
	}
	return t.defineDeep(ctx, client)
}

// The numbers of objects in the namespaces of the well-behaved callers and of the tenant. Each of the tenant's has
// 200 kB.
const (
	listed = 100
	large  = 40
)

// account creates a service account and returns a token of it.
func (t *target) account(ctx context.Context, client *http.Client, namespace, name string) (string, error) {
	path := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	account := object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": name, "namespace": namespace}}
	if err := t.do(ctx, client, t.admin, http.MethodPost, path, account, nil); err != nil && codeOf(err) != http.StatusConflict {
		return "", err
	}
	var token struct{ Status struct{ Token string } }
	request := object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{"expirationSeconds": 7200}}
	err := t.do(ctx, client, t.admin, http.MethodPost, path+"/"+name+"/token", request, &token)
	return token.Status.Token, err
}

// object returns an object with a value.
func (t *target) object(namespace, name, value string) object {
	return object{"apiVersion": t.kind.apiVersion, "kind": t.kind.name,
		"metadata": object{"name": name, "namespace": namespace, "annotations": object{valueKey: value}}}
}

// valueKey is the annotation that holds an object's value.
const valueKey = "attack.example.com/value"

// defineDeep creates a definition whose objects hold any JSON, if the server accepts definitions.
func (t *target) defineDeep(ctx context.Context, client *http.Client) error {
	definition := definitionOf("Deep", object{"type": "object", "x-kubernetes-preserve-unknown-fields": true})
	err := t.do(ctx, client, t.admin, http.MethodPost, definitions, definition, nil)
	switch codeOf(err) {
	case http.StatusNotFound:
		return nil // a server without definitions
	case http.StatusConflict:
		err = nil
	}
	if err != nil {
		return err
	}
	deep := kind{"attack.example.com/v1", "deeps", "Deep"}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		o := object{"apiVersion": deep.apiVersion, "kind": deep.name, "metadata": object{"name": "deep"}}
		err := t.do(ctx, client, t.admin, http.MethodPost, deep.path(tenantNamespace, ""), o, nil)
		if err == nil || codeOf(err) == http.StatusConflict {
			t.deep = deep
			return nil
		}
		if codeOf(err) != http.StatusNotFound || !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("wait for the definition of %s: %w", deep.resource, err)
		}
	}
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definitionOf returns a definition of a namespaced kind in the group attack.example.com with a schema.
func definitionOf(name string, schema object) object {
	plural := strings.ToLower(name) + "s"
	return object{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": plural + ".attack.example.com"},
		"spec": object{"group": "attack.example.com", "scope": "Namespaced", "names": object{"plural": plural, "kind": name},
			"versions": []object{{"name": "v1", "served": true, "storage": true, "schema": object{"openAPIV3Schema": schema}}}}}
}

// clean deletes the program's objects on a server that it did not start.
func (t *target) clean(ctx context.Context) error {
	client := t.client(t.admin, 1)
	defer client.CloseIdleConnections()
	var failed []error
	for _, path := range []string{
		definitions + "/deeps.attack.example.com",
		"/apis/" + rbac + "/clusterroles/attack-definer", "/apis/" + rbac + "/clusterrolebindings/attack-definer",
		"/api/v1/namespaces/" + victimNamespace, "/api/v1/namespaces/" + tenantNamespace, "/api/v1/namespaces/" + definerNamespace,
	} {
		if err := t.do(ctx, client, t.admin, http.MethodDelete, path, nil, nil); err != nil && codeOf(err) != http.StatusNotFound {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// pause waits, and reports whether the context still lasts.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// bearer returns the WebSocket subprotocol that carries a token.
func bearer(token string) string {
	return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
}

// percentile returns the p-th percentile of durations, 0 for none. It sorts them.
func percentile(of []time.Duration, p float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[min(len(of)-1, int(p*float64(len(of))))]
}
