package upstream

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"

	"github.com/annexapi/annex/internal/model/define"
)

var widgetLog = connectedKey{schema.GroupResource{Group: "shop.example.com", Resource: "widgets"}, "log"}

func logRequest(method, query string) (*http.Request, *request.RequestInfo) {
	r := httptest.NewRequest(method, "/apis/shop.example.com/v1/namespaces/default/widgets/w/log"+query, nil)
	return r, &request.RequestInfo{
		IsResourceRequest: true,
		APIGroup:          "shop.example.com",
		APIVersion:        "v1",
		Resource:          "widgets",
		Subresource:       "log",
		Namespace:         "default",
		Name:              "w",
		Verb:              map[string]string{"GET": "get", "POST": "create"}[method],
	}
}

type followOptions struct {
	metav1.TypeMeta
	Follow bool `json:"follow"`
	Lines  int  `json:"lines"`
}

func (o *followOptions) DeepCopyObject() runtime.Object { return &followOptions{Follow: o.Follow} }

func TestConnectRoutes_longRunning(t *testing.T) {
	t.Parallel()
	all := connectRoutes{widgetLog: {Methods: []string{"GET"}}}
	some := connectRoutes{
		widgetLog: {
			Methods:     []string{"GET"},
			Object:      reflect.TypeFor[followOptions](),
			LongRunning: func(o runtime.Object) bool { return o.(*followOptions).Follow },
		},
	}
	for _, test := range []struct {
		routes connectRoutes
		method string
		query  string
		want   bool
	}{
		{all, "GET", "", true},
		{all, "POST", "", false}, // not a connection; answered with 405
		{some, "GET", "", false},
		{some, "GET", "?follow=true", true},
		{some, "GET", "?follow=1&lines=x", false},
		{connectRoutes{}, "GET", "", false},
	} {
		r, info := logRequest(test.method, test.query)
		if got := test.routes.longRunning(r, info); got != test.want {
			t.Errorf("%s %s: %v", test.method, test.query, got)
		}
		info.Subresource = "status"
		if test.routes.longRunning(r, info) {
			t.Error("another subresource is long-running, too")
		}
	}
}

func TestWithUpgradePermission_webSocket_needsCreate(t *testing.T) {
	t.Parallel()
	codecs := serializer.NewCodecFactory(runtime.NewScheme())
	for _, test := range []struct {
		methods []string
		may     []string
		upgrade bool
		want    int
	}{
		{[]string{"GET", "POST"}, []string{"get"}, false, 200},
		{[]string{"GET", "POST"}, []string{"get"}, true, 403},
		{[]string{"GET", "POST"}, []string{"get", "create"}, true, 200},
		{[]string{"GET", "POST"}, []string{"create"}, true, 403},
		{[]string{"GET"}, []string{"get"}, true, 200},
		// Permissions for the main resource do not count for the subresource.
		{[]string{"GET", "POST"}, []string{"get main", "create main", "update main"}, false, 403},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			c := &server.Config{Serializer: codecs.WithoutConversion()}
			c.Authorization.Authorizer = authorizer.AuthorizerFunc(
				func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
					asked := a.GetVerb()
					if a.GetSubresource() == "" {
						asked += " main"
					}
					if slices.Contains(test.may, asked) && a.GetUser().GetName() == "jane" && a.GetName() == "w" && a.GetNamespace() == "default" {
						return authorizer.DecisionAllow, "", nil
					}
					return authorizer.DecisionNoOpinion, "", nil
				},
			)
			reached := false
			handler := filters.WithAuthorization(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				info, _ := request.RequestInfoFrom(r.Context())
				reached = info.Verb == "get"
			}), c.Authorization.Authorizer, c.Serializer)
			handler = withUpgradePermission(handler, connectRoutes{widgetLog: &define.Subresource{Methods: test.methods}}, c)
			r, info := logRequest("GET", "")
			if test.upgrade {
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", "websocket")
			}
			ctx := audit.WithAuditContext(request.WithUser(request.WithRequestInfo(r.Context(), info), &user.DefaultInfo{Name: "jane"}))
			recorded := audit.AuditContextFrom(ctx)
			if err := recorded.Init(audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}, nil); err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r.WithContext(ctx))
			if w.Code != test.want || reached != (test.want == 200) {
				t.Errorf("%d, reached %v: %s", w.Code, reached, w.Body)
			}
			decision := map[int]string{200: "allow", 403: "forbid"}[test.want]
			if got, _ := recorded.GetEventAnnotation("authorization.k8s.io/decision"); got != decision {
				t.Errorf("the audit log says %q, not %q", got, decision)
			}
		})
	}
}
