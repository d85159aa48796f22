package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// longSelectors lists by labels and fields with 10,000 terms, as callers with and without rights. The defence: the
// cost of a selector is proportional to its length, once for a request and not for each object.
type longSelectors struct{}

func (longSelectors) Name() string { return "long-selectors" }

func (longSelectors) Run(ctx context.Context, t *target, r *report) error {
	var labels, fields, sets strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&labels, "a%d!=b,", i)
		fmt.Fprintf(&fields, "metadata.name!=n%d,", i)
		fmt.Fprintf(&sets, "v%d,", i)
	}
	var shots []shot
	for _, query := range []string{
		"labelSelector=" + url.QueryEscape(strings.TrimSuffix(labels.String(), ",")),
		"fieldSelector=" + url.QueryEscape(strings.TrimSuffix(fields.String(), ",")),
		"labelSelector=" + url.QueryEscape("a notin ("+strings.TrimSuffix(sets.String(), ",")+")"),
	} {
		for _, as := range []credential{t.tenant, t.weak} {
			shots = append(shots, shot{as: as, method: http.MethodGet, path: t.kind.path(tenantNamespace, "") + "?limit=5&" + query})
		}
	}
	return fire(ctx, t, r, 4, shots...)
}

// hugeContinue lists with continue tokens of 500 kB. The defence: they are rejected without much work.
type hugeContinue struct{}

func (hugeContinue) Name() string { return "huge-continue" }

func (hugeContinue) Run(ctx context.Context, t *target, r *report) error {
	list := t.kind.path(tenantNamespace, "") + "?limit=1&continue="
	token := func(content string) string { return base64.RawURLEncoding.EncodeToString([]byte(content)) }
	var shots []shot
	for _, next := range []string{
		strings.Repeat("A", 500_000),
		token(`{"v":"meta.k8s.io/v1","rv":1,"start":"` + strings.Repeat("s", 300_000) + `"}`),
		token(`{"v":"meta.k8s.io/v1","rv":1,"start":` + strings.Repeat("[", 300_000) + `}`),
		token(`{"v":"meta.k8s.io/v1","rv":9223372036854775807,"start":"` + strings.Repeat("../", 100_000) + `"}`),
	} {
		shots = append(shots, shot{as: t.tenant, method: http.MethodGet, path: list + next})
	}
	return fire(ctx, t, r, 4, shots...)
}

// longQueries sends 100,000 parameters, long names of managers and paths of a hundred thousand segments. The defence:
// they are bounded by the size of a header, and read in time proportional to their length.
type longQueries struct{}

func (longQueries) Name() string { return "long-queries" }

func (longQueries) Run(ctx context.Context, t *target, r *report) error {
	one := t.kind.path(tenantNamespace, "large-1")
	return fire(
		ctx,
		t,
		r,
		4,
		shot{as: t.tenant, method: http.MethodGet, path: one + "?" + strings.Repeat("a&", 300_000)},
		shot{as: t.tenant, method: http.MethodGet, path: one + "?" + strings.Repeat("pretty=%31&", 50_000)},
		shot{as: t.tenant, method: http.MethodGet, path: "/apis" + strings.Repeat("/a", 300_000)},
		shot{as: t.tenant, method: http.MethodGet, path: "/api/v1" + strings.Repeat("/../api/v1", 50_000)},
		shot{
			as:     t.tenant,
			method: http.MethodPatch,
			path:   one + "?fieldManager=" + strings.Repeat("m", 500_000),
			media:  mergePatch,
			body:   []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		},
	)
}

// manyWatches opens 1,000 watches with initial events of objects of 200 kB, and reads none of their events. The
// defence: unsent events are held once for all watches, and a watch has little memory of its own.
type manyWatches struct{}

func (manyWatches) Name() string { return "many-watches" }

func (manyWatches) Run(ctx context.Context, t *target, r *report) error {
	path := t.kind.path(tenantNamespace, "") + "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
	return spread(10, func(int) error {
		return renewing(ctx, t, t.tenant, func(s *session) error {
			return spread(100, func(int) error {
				for ctx.Err() == nil {
					one, err := s.open(t.tenant, http.MethodGet, path, true)
					r.count(1, 0)
					if err != nil {
						r.answer(0)
						return err
					}
					one.counted(ctx, r)
					select {
					case <-one.ended:
						pause(ctx, 50*time.Millisecond)
					case <-ctx.Done():
					}
				}
				return nil
			})
		}, noWindow)
	})
}

// hasDefinitions reports whether the server accepts definitions; if not, it adds a note.
func (t *target) hasDefinitions(r *report) bool {
	if t.deep.resource == "" {
		r.note("the server takes no definitions")
	}
	return t.deep.resource != ""
}

// largeExpressions creates definitions and policies with expressions that are long, nested or expensive. The defence:
// length, depth and cost are bounded before anything is compiled or run.
type largeExpressions struct{}

func (largeExpressions) Name() string { return "large-expressions" }

func (largeExpressions) Run(ctx context.Context, t *target, r *report) error {
	if !t.hasDefinitions(r) {
		return nil
	}
	nested := "self.a.all(x0, "
	for i := range 10 {
		nested += fmt.Sprintf("self.a.all(x%d, ", i+1)
	}
	nested += "true" + strings.Repeat(")", 11)
	var shots []shot
	for i, expression := range []string{
		"self.a.size() >= 0" + strings.Repeat(" && self.a.size() >= 0", 50_000),
		strings.Repeat("(", 100_000) + "true" + strings.Repeat(")", 100_000),
		strings.Repeat("!", 100_001) + "true",
		nested,
		"[" + strings.Repeat("'aaaa',", 300_000) + "'a'].size() > 0",
		"self.a.all(x, x.matches('" + strings.Repeat("(a{1,100}){1,100}", 200) + "'))",
	} {
		array := object{"type": "array", "items": object{"type": "string"}}
		schema := object{"type": "object", "properties": object{"a": array}, "x-kubernetes-validations": []object{{"rule": expression}}}
		definition, err := json.Marshal(definitionOf(fmt.Sprintf("Expression%d", i), schema))
		if err != nil {
			return err
		}
		shots = append(shots, shot{as: t.definer, method: http.MethodPost, path: definitions + "?dryRun=All", body: definition})
		policy, err := json.Marshal(object{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
			"metadata": object{"name": fmt.Sprintf("attack-%d", i)},
			"spec": object{
				"validations": []object{{"expression": strings.ReplaceAll(expression, "self", "object")}},
				"matchConstraints": object{
					"resourceRules": []object{
						{
							"apiGroups":   []string{"attack.example.com"},
							"apiVersions": []string{"*"},
							"operations":  []string{"CREATE"},
							"resources":   []string{"*"},
						},
					},
				},
			}})
		if err != nil {
			return err
		}
		shots = append(
			shots,
			shot{
				as:     t.definer,
				method: http.MethodPost,
				path:   "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?dryRun=All",
				body:   policy,
			},
		)
	}
	return fire(ctx, t, r, 2, shots...)
}

// largeDefinitions creates definitions whose schemas are deep, wide, of many versions, or have expensive patterns,
// and deletes them. The defence: the cost of a definition is proportional to its length, including its documentation.
type largeDefinitions struct{}

func (largeDefinitions) Name() string { return "large-definitions" }

func (largeDefinitions) Run(ctx context.Context, t *target, r *report) error {
	if !t.hasDefinitions(r) {
		return nil
	}
	text := object{"type": "string"}
	deep := text
	for range 1_000 {
		deep = object{"type": "object", "properties": object{"a": deep}}
	}
	wide, patterns, list := object{}, object{}, []object{}
	for i := range 10_000 {
		wide[fmt.Sprintf("p%d", i)] = text
	}
	for i := range 2_000 {
		patterns[fmt.Sprintf("p%d", i)] = object{"type": "string", "pattern": fmt.Sprintf("^(a{1,30}){1,30}%d$", i)}
		list = append(list, object{"required": []string{fmt.Sprintf("p%d", i)}})
	}
	branching := object{"anyOf": list, "allOf": []object{{"oneOf": list}, {"anyOf": list}}}
	schemas := []object{
		{"type": "object", "properties": object{"spec": deep}},
		{"type": "object", "properties": object{"spec": object{"type": "object", "properties": wide}}},
		{"type": "object", "properties": object{"spec": object{"type": "object", "properties": patterns}}},
		{"type": "object", "anyOf": branching["anyOf"], "allOf": branching["allOf"]},
	}
	return spread(len(schemas), func(worker int) error {
		client := t.client(credential{}, 1)
		defer client.CloseIdleConnections()
		name := fmt.Sprintf("Large%d", worker)
		definition, err := json.Marshal(definitionOf(name, schemas[worker]))
		if err != nil {
			return err
		}
		path := definitions + "/" + strings.ToLower(name) + "s.attack.example.com"
		// Created objects are deleted, also after the attack.
		defer func() {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), shotPatience)
			defer cancel()
			_, _ = fireOne(clean, t, client, newReport(), shot{as: t.definer, method: http.MethodDelete, path: path})
		}()
		for ctx.Err() == nil {
			for _, one := range []shot{
				{as: t.definer, method: http.MethodPost, path: definitions, body: definition},
				{as: t.weak, method: http.MethodGet, path: "/openapi/v3/apis/attack.example.com/v1"},
				{as: t.definer, method: http.MethodDelete, path: path},
			} {
				code, _ := fireOne(ctx, t, client, r, one)
				if ctx.Err() != nil {
					return nil
				}
				r.answer(code)
				pause(ctx, 50*time.Millisecond)
			}
		}
		return nil
	})
}

// loopbackWebhooks creates a webhook for objects of one namespace that calls the server itself, and a second webhook
// that calls a listener on this machine, which never answers; then it creates objects there. The defence: calls have
// a deadline, waiting callers do not delay others, and a webhook's requests carry no identity of the server. A note
// records whether services on the server's own machine are reachable.
type loopbackWebhooks struct{}

func (loopbackWebhooks) Name() string { return "loopback-webhooks" }

func (loopbackWebhooks) Run(ctx context.Context, t *target, r *report) error {
	if !t.hasDefinitions(r) {
		return nil
	}
	var listen net.ListenConfig
	silent, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer silent.Close()
	go func() { // ends with the listener
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			r.note("a webhook reaches services on the server's loopback addresses")
			context.AfterFunc(ctx, func() { conn.Close() })
		}
	}()
	const hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	client := t.client(credential{}, 1)
	defer client.CloseIdleConnections()
	hook := func(name, at string) object {
		return object{
			"name":                    name + ".attack.example.com",
			"clientConfig":            object{"url": at},
			"admissionReviewVersions": []string{"v1"},
			"sideEffects":             "None",
			"failurePolicy":           "Ignore",
			"timeoutSeconds":          5,
			"namespaceSelector":       object{"matchLabels": object{"kubernetes.io/metadata.name": definerNamespace}},
			"rules": []object{
				{
					"apiGroups":   []string{t.kind.group()},
					"apiVersions": []string{"*"},
					"operations":  []string{"CREATE"},
					"resources":   []string{t.kind.resource},
				},
			},
		}
	}
	configuration := object{
		"apiVersion": "admissionregistration.k8s.io/v1",
		"kind":       "ValidatingWebhookConfiguration",
		"metadata":   object{"name": "attack"},
		"webhooks": []object{
			hook("self", "https://"+t.url.Host+t.kind.path(definerNamespace, "")),
			hook("silent", "https://"+silent.Addr().String()+"/"),
		},
	}
	if err := t.do(ctx, client, t.definer, http.MethodPost, hooks, configuration, nil); err != nil && codeOf(err) != http.StatusConflict {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), shotPatience)
		defer cancel()
		if err := t.do(clean, client, t.definer, http.MethodDelete, hooks+"/attack", nil, nil); err != nil {
			r.note("the webhook was not deleted: %v", err)
		}
	}()
	body, err := json.Marshal(object{"apiVersion": t.kind.apiVersion, "kind": t.kind.name, "metadata": object{"generateName": "hooked-"}})
	if err != nil {
		return err
	}
	return fire(
		ctx,
		t,
		r,
		50,
		shot{as: t.definer, method: http.MethodPost, path: t.kind.path(definerNamespace, "") + "?dryRun=All", body: body},
	)
}

// foreignWebSocket opens a watch over a WebSocket as a page of another origin does in the browser of an
// administrator: with the browser's certificate, and with an invalid token as a subprotocol. The defence: 403, or any
// code other than 101.
type foreignWebSocket struct{}

func (foreignWebSocket) Name() string { return "foreign-websocket" }

func (foreignWebSocket) Run(ctx context.Context, t *target, r *report) error {
	host, port := t.url.Hostname(), t.url.Port()
	origins := []string{"https://evil.example", "http://" + host + ":" + port, "https://" + host + ":1", "http://localhost:3000", "null"}
	for _, origin := range origins {
		for _, protocols := range []string{"", bearer("no-token") + ", base64.binary.k8s.io", "base64.binary.k8s.io"} {
			if ctx.Err() != nil {
				return nil
			}
			conn, err := t.dial(ctx, t.admin, "http/1.1")
			if err != nil {
				return err
			}
			key := make([]byte, 16)
			_, _ = rand.Read(key) // never fails
			text := fmt.Sprintf("GET %s?watch=true HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: "+
				"13\r\nSec-WebSocket-Key: %s\r\nOrigin: %s\r\n",
				t.kind.path(victimNamespace, ""), t.url.Host, base64.StdEncoding.EncodeToString(key), origin)
			if protocols != "" {
				text += "Sec-WebSocket-Protocol: " + protocols + "\r\n"
			}
			if t.admin.cert == nil { // as the header that a browser adds by itself: only a certificate or a cookie is one
				r.note("the administrator has no certificate, so that there is nothing for a browser to add")
				conn.Close()
				return nil
			}
			_, err = io.WriteString(conn, text+"\r\n")
			r.count(1, 0)
			if err == nil {
				err = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			}
			line, readErr := bufio.NewReader(conn).ReadString('\n')
			conn.Close()
			code := statusIn(line)
			if err != nil || readErr != nil {
				code = 0
			}
			r.answer(code)
			if code == http.StatusSwitchingProtocols {
				r.hole("a page of %s opened a WebSocket as the administrator, with the subprotocols %q", origin, cut(protocols, 60))
			}
		}
	}
	return nil
}

// revokedWatch opens watches over HTTP/2 and HTTP/1.1, and a tail of Server-Sent Events if the server has them, as an
// account, and deletes the account. The defence: they end within ten seconds.
type revokedWatch struct{}

func (revokedWatch) Name() string { return "revoked-watch" }

// revokedPatience is the time that a watch may continue without its account.
const revokedPatience = 10 * time.Second

func (revokedWatch) Run(ctx context.Context, t *target, r *report) error {
	// It takes its time, however short the others are.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*revokedPatience)
	defer cancel()
	admin := t.client(t.admin, 1)
	defer admin.CloseIdleConnections()
	token, err := t.account(ctx, admin, tenantNamespace, "revoked")
	if err != nil {
		return err
	}
	binding := object{"apiVersion": rbac, "kind": "RoleBinding", "metadata": object{"name": "revoked"},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
		"subjects": []object{{"kind": "ServiceAccount", "name": "revoked", "namespace": tenantNamespace}}}
	err = t.do(ctx, admin, t.admin, http.MethodPost, "/apis/"+rbac+"/namespaces/"+tenantNamespace+"/rolebindings", binding, nil)
	if err != nil && codeOf(err) != http.StatusConflict {
		return err
	}
	as := credential{name: "revoked", token: token}
	group := t.kind.group()
	if group == "" {
		group = "core"
	}
	version := t.kind.apiVersion[strings.LastIndexByte(t.kind.apiVersion, '/')+1:]
	watch := t.kind.path(tenantNamespace, "") + "?watch=true&fieldSelector=metadata.name=none"
	ended := make(chan string)
	running := map[string]bool{}
	for _, stream := range []struct {
		name, path, accept, protocol string
		optional                     bool
	}{
		{"a watch over HTTP/2", watch, "application/json", "h2", false},
		{"a watch over HTTP/1.1", watch, "application/json", "http/1.1", false},
		{"a tail of events", "/query/" + group + "/" + version + "/" + t.kind.resource + "?watch=true&name=none&namespace=" + tenantNamespace,
			"text/event-stream", "http/1.1", true},
	} {
		client := &http.Client{
			Transport: &http.Transport{TLSClientConfig: t.tls(as, stream.protocol), ForceAttemptHTTP2: stream.protocol == "h2"},
		}
		defer client.CloseIdleConnections()
		answer, err := t.begin(ctx, client, as, stream.path, stream.accept, r)
		if err != nil {
			if stream.optional {
				r.note("%s was not tried: %s", stream.name, reason(err))
				continue
			}
			return err
		}
		defer answer.Body.Close()
		running[stream.name] = true
		go func() { // ends with the stream, at the latest with ctx
			_, _ = io.Copy(io.Discard, answer.Body)
			select {
			case ended <- stream.name:
			case <-ctx.Done():
			}
		}()
	}
	begun := time.Now()
	if err := t.do(
		ctx,
		admin,
		t.admin,
		http.MethodDelete,
		"/api/v1/namespaces/"+tenantNamespace+"/serviceaccounts/revoked",
		nil,
		nil,
	); err != nil {
		return err
	}
	patience := time.NewTimer(revokedPatience)
	defer patience.Stop()
	for len(running) > 0 {
		select {
		case name := <-ended:
			delete(running, name)
			r.note("%s ended after %.1f s", name, time.Since(begun).Seconds())
		case <-patience.C:
			for name := range running {
				r.hole("%s went on for %s after its account was deleted", name, revokedPatience)
			}
			return nil
		}
	}
	return nil
}

// begin sends a request whose response is a stream, repeatedly until the server knows the rights of its caller.
func (t *target) begin(ctx context.Context, client *http.Client, as credential, path, accept string, r *report) (*http.Response, error) {
	for known := time.Now().Add(5 * time.Second); ; {
		request, err := t.request(ctx, as, http.MethodGet, path, nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Accept", accept)
		r.count(1, 0)
		answer, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		r.answer(answer.StatusCode)
		if answer.StatusCode == http.StatusOK {
			return answer, nil
		}
		answer.Body.Close()
		if answer.StatusCode == http.StatusNotFound || time.Now().After(known) || !pause(ctx, 100*time.Millisecond) {
			return nil, &statusError{answer.StatusCode, "a stream as the account that is to be revoked"}
		}
	}
}
