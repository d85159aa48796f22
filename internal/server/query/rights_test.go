package query

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// mayIn allows everything in some namespaces; "" stands for all namespaces.
type mayIn struct {
	mu         sync.Mutex
	namespaces []string
}

func (m *mayIn) set(namespaces ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.namespaces = namespaces
}

func (m *mayIn) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.namespaces, "") || slices.Contains(m.namespaces, a.GetNamespace()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no role says so", nil
}

func (m *mayIn) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(m.Authorize(ctx, a))
}

func (m *mayIn) EvaluateConditions(
	context.Context,
	authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// tails serves tails of pizzas with one initial object, for a caller whose rights change.
func tails(t *testing.T, may *mayIn) *httptest.Server {
	t.Helper()
	api := New(Config{
		Prefix: "/query", Resources: func() []*Resource { return []*Resource{pizzas()} }, Authorizer: may, Union: 10,
		Namespaces: func(context.Context) ([]string, error) { return []string{"a", "b", "c"}, nil }, Heartbeat: 5 * time.Millisecond,
	})
	watched := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(
			w,
			`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n",
		)
		<-r.Context().Done()
	})
	answered := api.Wrap(watched)
	// As the server does for all long-running requests.
	checked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attributes, err := filters.GetAuthorizerAttributes(r.Context())
		if err != nil {
			t.Error(err)
		}
		check, _ := api.StillMay(r)
		if check == nil { // a tail of one namespace
			check = func(ctx context.Context, a authorizer.Attributes) error {
				if decision, reason, _ := may.Authorize(ctx, a); decision != authorizer.DecisionAllow {
					return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("you may no longer watch the resource: "+reason))
				}
				return nil
			}
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		var checks sync.WaitGroup
		defer checks.Wait()
		defer cancel(nil)
		checks.Go(func() {
			ticker := time.NewTicker(5 * time.Millisecond)
			defer ticker.Stop()
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-ticker.C:
					if err := check(ctx, attributes); err != nil {
						cancel(err)
					}
				}
			}
		})
		answered.ServeHTTP(w, r.WithContext(ctx))
	})
	denied := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "denied", http.StatusForbidden) })
	authorized := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := request.RequestInfoFrom(r.Context())
		if decision, _, _ := may.Authorize(
			r.Context(),
			authorizer.AttributesRecord{Namespace: info.Namespace},
		); decision == authorizer.DecisionAllow {
			checked.ServeHTTP(w, r)
			return
		}
		denied.ServeHTTP(w, r)
	})
	handler := api.Authorize(authorized, checked)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := &request.RequestInfo{}
		api.RequestInfo(r, info)
		ctx := request.WithRequestInfo(
			request.WithUser(r.Context(), &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}),
			info,
		)
		handler.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(server.Close)
	return server
}

// follow reads a tail until it ends, and calls begun after the initial objects.
func follow(t *testing.T, url, last string, begun func()) (id, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", eventStream)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var all strings.Builder
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		line := lines.Text()
		all.WriteString(line + "\n")
		if version, ok := strings.CutPrefix(line, "id: "); ok {
			id = version
		}
		if strings.HasPrefix(line, "event: BOOKMARK") {
			begun()
		}
	}
	if ctx.Err() != nil {
		t.Fatalf("%s does not end: %s", url, all.String())
	}
	return id, all.String()
}

func TestTail_changedRights_ends(t *testing.T) {
	t.Parallel()
	const everywhere, inA = "/query/example.com/v1/pizzas?watch=true", "/query/example.com/v1/namespaces/a/pizzas?watch=true"
	for name, test := range map[string]struct {
		path          string
		before, after []string
		code          string
	}{
		"none any more":           {everywhere, []string{""}, nil, `"code":403`},
		"in a namespace":          {inA, []string{"a"}, []string{"b"}, `"code":403`},
		"fewer namespaces":        {everywhere, []string{"a", "b"}, []string{"b"}, `"code":410`},
		"more namespaces":         {everywhere, []string{"a"}, []string{"a", "c"}, `"code":410`},
		"all namespaces":          {everywhere, []string{"a"}, []string{""}, `"code":410`},
		"no namespaces":           {everywhere, []string{"a", "b"}, nil, `"code":403`},
		"some instead of all":     {everywhere, []string{""}, []string{"a"}, `"code":410`},
		"others, as many as were": {everywhere, []string{"a", "b"}, []string{"b", "c"}, `"code":410`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			may := &mayIn{namespaces: test.before}
			_, text := follow(t, tails(t, may).URL+test.path, "", func() { may.set(test.after...) })
			if !strings.Contains(text, "event: ERROR\n") || !strings.Contains(text, test.code) {
				t.Errorf("the tail was\n%s", text)
			}
			if expired := strings.Contains(text, "\nid\n"); expired != strings.Contains(test.code, "410") {
				t.Errorf("whether its id is forgotten: %v\n%s", expired, text)
			}
		})
	}
}

// A tail that continued in another union would miss earlier objects of it.
func TestTail_otherUnion_beginsAnew(t *testing.T) {
	t.Parallel()
	may := &mayIn{namespaces: []string{"a", "b"}}
	url := tails(t, may).URL + "/query/example.com/v1/pizzas?watch=true"
	id, _ := follow(t, url, "", func() { may.set("b") })
	if !strings.HasPrefix(id, "7.") {
		t.Fatalf("the id of a union is %q", id)
	}
	_, text := follow(t, url, id, func() { t.Error("it goes on") })
	if !strings.Contains(text, `"code":410`) || !strings.Contains(text, "\nid\n") && !strings.HasPrefix(text, "id\n") {
		t.Errorf("a tail that goes on in another union is\n%s", text)
	}
	may.set("a", "b")
	begun := false
	if _, text = follow(t, url, id, func() { begun = true; may.set() }); !begun {
		t.Errorf("a tail that goes on in the same union is\n%s", text)
	}
}
