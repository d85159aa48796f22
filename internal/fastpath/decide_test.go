package fastpath

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
)

var infos = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// testGate knows config maps, nodes without protobuf, bindings in a deprecated version, and pods that cannot be written.
func testGate(config Config) *Gate {
	config.Pretty = func(r *http.Request) bool { return strings.HasPrefix(r.UserAgent(), "curl") }
	g := New(config)
	add := func(resource string, namespaced, protobuf, deprecated bool, routes Route) {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: resource}
		g.kinds[gvr] = &Kind{
			Resource: gvr, Protobuf: protobuf, path: PathOf(corev1.SchemeGroupVersion, namespaced), routes: routes, deprecated: deprecated,
		}
	}
	add("configmaps", true, true, false, all|Items)
	add("nodes", false, false, false, all|Items)
	add("bindings", true, true, true, all|Items)
	add("pods", true, true, false, reads|Items)
	return g
}

const (
	maps = "/api/v1/namespaces/default/configmaps"
	one  = maps + "/m"
)

// decisions are requests and the decisions of the gate. Each reason has one at least.
var decisions = map[string]struct {
	method, path string // GET, and one
	headers      []string
	config       Config
	audit        auditinternal.Level
	route        Route
	reason       Reason
}{
	"object":                     {route: Get},
	"object as JSON":             {headers: []string{"Accept", "application/json"}, route: Get},
	"object as anything":         {headers: []string{"Accept", "*/*"}, route: Get},
	"object as protobuf":         {headers: []string{"Accept", runtime.ContentTypeProtobuf}, route: Get},
	"object of no namespace":     {path: "/api/v1/nodes/n", route: Get},
	"object without protobuf":    {path: "/api/v1/nodes/n", headers: []string{"Accept", runtime.ContentTypeProtobuf}, reason: OddMedia},
	"object as table":            {headers: []string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}, reason: OddMedia},
	"object as YAML":             {headers: []string{"Accept", "application/yaml"}, reason: OddMedia},
	"object as stream":           {headers: []string{"Accept", "application/json;stream=watch"}, reason: OddMedia},
	"object with option":         {path: one + "?resourceVersion=0", reason: OddOptions},
	"object for a person":        {headers: []string{"User-Agent", "curl/8"}, reason: ForPeople},
	"object by HEAD":             {method: http.MethodHead, reason: NoRoute},
	"node in a namespace":        {path: "/api/v1/namespaces/default/nodes/n", reason: OddPath},
	"map in no namespace":        {path: "/api/v1/configmaps/m", reason: OddPath},
	"unknown resource":           {path: "/api/v1/namespaces/default/secrets/m", reason: NoKind},
	"unknown version":            {path: "/api/v2/namespaces/default/configmaps/m", reason: NoKind},
	"unknown group":              {path: "/apis/x/v1/namespaces/default/configmaps/m", reason: NoKind},
	"deprecated version":         {path: "/api/v1/namespaces/default/bindings/b", reason: Deprecated},
	"subresource":                {path: one + "/status", reason: Subresource},
	"slash at the end":           {path: one + "/", reason: OddPath},
	"doubled slash":              {path: "/api/v1//namespaces/default/configmaps/m", reason: Subresource},
	"escaped name":               {path: maps + "/%6D", reason: OddPath},
	"discovery":                  {path: "/api/v1", reason: NoRoute},
	"traced":                     {config: Config{Traced: true}, reason: Traced},
	"turned off":                 {config: Config{Off: true}, reason: TurnedOff},
	"answer recorded":            {config: Config{Audited: true}, audit: auditinternal.LevelRequestResponse, reason: Audited},
	"request recorded":           {config: Config{Audited: true}, audit: auditinternal.LevelRequest, route: Get},
	"list":                       {path: maps, route: List},
	"list of all namespaces":     {path: "/api/v1/configmaps", route: List},
	"list with options":          {path: maps + "?limit=1", route: List},
	"list as table":              {path: maps, headers: []string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}, route: Items},
	"list as protobuf":           {path: maps, headers: []string{"Accept", runtime.ContentTypeProtobuf}, route: Items},
	"list for a person":          {path: maps, headers: []string{"User-Agent", "curl/8"}, route: Items},
	"list traced":                {path: maps, config: Config{Traced: true}, route: Items},
	"list of deprecated version": {path: "/api/v1/namespaces/default/bindings", route: Items},
	"list recorded":              {path: maps, config: Config{Audited: true}, audit: auditinternal.LevelRequestResponse, reason: Audited},
	"watch":                      {path: maps + "?watch=1", route: Watch},
	"watch of one object":        {path: maps + "?watch=1&fieldSelector=metadata.name=m", route: Watch},
	"watch as stream":            {path: maps + "?watch=1", headers: []string{"Accept", "application/json;stream=watch"}, route: Watch},
	"watch for a person":         {path: maps + "?watch=1", headers: []string{"User-Agent", "curl/8"}, route: Watch},
	"watch recorded": {path: maps + "?watch=1", config: Config{Audited: true}, audit: auditinternal.LevelRequestResponse,
		route: Watch},
	"watch by the old path": {path: "/api/v1/watch/namespaces/default/configmaps/m", reason: OddPath},
	"watch of a WebSocket": {path: maps + "?watch=1", reason: WebSocket,
		headers: []string{"Connection", "Upgrade", "Upgrade", "websocket"}},
	"create":              {method: http.MethodPost, path: maps, route: Create},
	"create with options": {method: http.MethodPost, path: maps + "?fieldManager=me&fieldValidation=Strict", route: Create},
	"create for a look":   {method: http.MethodPost, path: maps + "?dryRun=All", reason: OddOptions},
	"create from YAML": {method: http.MethodPost, path: maps, headers: []string{"Content-Type", "application/yaml"},
		reason: OddBodyMedia},
	"create as protobuf": {method: http.MethodPost, path: maps, headers: []string{"Accept", runtime.ContentTypeProtobuf},
		reason: OddMedia},
	"create of what is read": {method: http.MethodPost, path: "/api/v1/namespaces/default/pods", reason: Unsupported},
	"create at a name":       {method: http.MethodPost, path: one, reason: NoRoute},
	"create with two types": {method: http.MethodPost, path: maps, headers: []string{"Content-Type", "", "Content-Type", ""},
		reason: OddBodyMedia},
	"update":          {method: http.MethodPut, route: Update},
	"update by force": {method: http.MethodPut, path: one + "?force=true", reason: OddOptions},
	"merge patch":     {method: http.MethodPatch, headers: []string{"Content-Type", "application/merge-patch+json"}, route: Patch},
	"strategic merge patch": {method: http.MethodPatch, headers: []string{"Content-Type", "application/strategic-merge-patch+json"},
		reason: OddBodyMedia},
	"apply": {method: http.MethodPatch, path: one + "?fieldManager=me&force=true",
		headers: []string{"Content-Type", "application/apply-patch+yaml"}, route: Patch},
	"apply without manager": {method: http.MethodPatch, headers: []string{"Content-Type", "application/apply-patch+yaml"},
		reason: OddBodyMedia},
	"delete":             {method: http.MethodDelete, route: Delete},
	"delete with option": {method: http.MethodDelete, path: one + "?gracePeriodSeconds=0", reason: OddOptions},
	"delete of all":      {method: http.MethodDelete, path: maps, reason: NoRoute},
}

func TestDecide(t *testing.T) {
	t.Parallel()
	seen := map[Reason]bool{}
	for name, test := range decisions {
		seen[test.reason] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.method == "" {
				test.method = http.MethodGet
			}
			if test.path == "" {
				test.path = one
			}
			r := httptest.NewRequest(test.method, test.path, nil)
			for i := 0; i+1 < len(test.headers); i += 2 {
				r.Header.Add(test.headers[i], test.headers[i+1])
			}
			info, err := infos.NewRequestInfo(r)
			if err != nil {
				t.Fatal(err)
			}
			ctx := audit.WithAuditContext(request.WithRequestInfo(r.Context(), info))
			if test.audit != "" {
				if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: test.audit}, nil); err != nil {
					t.Fatal(err)
				}
			}
			d := testGate(test.config).Decide(r.WithContext(ctx))
			if d.Route != test.route || d.Reason != test.reason {
				t.Errorf("route %s, reason %q; want %s, %q", d.Route, d.Reason, test.route, test.reason)
			}
		})
	}
	for _, c := range conditions {
		if !seen[c.reason] {
			t.Errorf("no request is declined for %q", c.reason)
		}
	}
}

// A kind whose objects are elsewhere never gets through the gate, whatever its answerers.
func TestGate_kindStoredElsewhere_isNotAdded(t *testing.T) {
	t.Parallel()
	own := &define.Version{GroupVersion: corev1.SchemeGroupVersion, Type: reflect.TypeFor[corev1.ConfigMap](),
		ListType: reflect.TypeFor[corev1.ConfigMapList]()}
	elsewhere := func(any, *define.Kind, rest.TableConvertor) (rest.Storage, error) { return nil, nil }
	for name, test := range map[string]struct {
		kind *define.Kind
		want bool
	}{
		"stored":         {&define.Kind{Resource: "configmaps"}, true},
		"virtual":        {&define.Kind{Resource: "configmaps", Source: &define.Source{}}, false},
		"custom storage": {&define.Kind{Resource: "configmaps", CustomStorage: elsewhere}, false},
	} {
		g := New(Config{})
		g.Add(test.kind, own, nil, nil, nil)
		if got := len(g.kinds) == 1; got != test.want {
			t.Errorf("%s: added %t, want %t", name, got, test.want)
		}
	}
}

func TestConditions_haveReasons(t *testing.T) {
	t.Parallel()
	seen := map[Reason]bool{}
	for i, c := range conditions {
		if c.reason == "" || seen[c.reason] || c.why == "" || c.holds == nil {
			t.Errorf("condition %d: %+v", i, reflect.ValueOf(c))
		}
		seen[c.reason] = true
	}
}
