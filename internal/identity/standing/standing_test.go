package standing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/internal/identity/credential"
)

// server authenticates callers by tokens, and allows every request that is not denied.
type server struct {
	mu       sync.Mutex
	users    map[string]*user.DefaultInfo // by token
	failing  error                        // of the authenticator
	denied   map[string]bool              // by resource
	erring   error                        // of the authorizer
	asked    int                          // number of authentications
	allowed  int                          // number of authorizations
	remember bool                         // set by a request that is not in a context of credential.WithoutCaches
}

func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// AuthenticateRequest implements authenticator.Request.
func (s *server) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.remember = s.remember || !credential.IsWithoutCaches(r.Context())
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	r.Header.Del("Authorization") // as authenticators do
	if s.failing != nil {
		return nil, false, s.failing
	}
	if u := s.users[token]; u != nil {
		return &authenticator.Response{User: u}, true, nil
	}
	return nil, false, nil
}

func (s *server) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allowed++
	s.remember = s.remember || !credential.IsWithoutCaches(ctx)
	if s.erring != nil {
		return authorizer.DecisionNoOpinion, "", s.erring
	}
	if s.denied[a.GetResource()] {
		return authorizer.DecisionNoOpinion, "no role allows it", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func newServer() *server {
	return &server{users: map[string]*user.DefaultInfo{
		"a": {Name: "jane", UID: "1", Groups: []string{"staff", "system:authenticated"}},
		"b": {Name: "joe", UID: "2"},
	}, denied: map[string]bool{}}
}

func (s *server) checker(kind credential.Kind) *Checker {
	return New(Config{Authenticator: s, Authorizer: authorizer.AuthorizerFunc(s.authorize), ProxiesVouch: kind == credential.Proxy})
}

// begin begins a stream as a server does, and returns it with the context of its request.
func (s *server) begin(t testing.TB, c *Checker, kind credential.Kind, token, resource string) (*Stream, context.Context) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	r = c.Begin(r)
	stream := From(r.Context())
	accepted := credential.From(r.Context())
	s.mu.Lock()
	accepted.Kind, accepted.User = kind, s.users[token]
	s.mu.Unlock()
	ctx, end := stream.Within(r.Context())
	t.Cleanup(end)
	stream.Join(
		Authorization{
			Attributes: []authorizer.Attributes{
				&authorizer.AttributesRecord{User: accepted.User, Verb: "watch", Resource: resource, ResourceRequest: true},
			},
		},
		nil,
	)
	t.Cleanup(stream.Leave)
	return stream, ctx
}

// within runs f in a synctest bubble, together with the checker.
func within(t *testing.T, c *Checker, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	defer running.Wait()
	defer cancel()
	f()
}

func TestChecker_whatEndsStreams(t *testing.T) {
	unavailable := credential.Unavailable(errors.New("no answer"))
	for name, test := range map[string]struct {
		kind   credential.Kind
		change func(s *server)
		// is matches the cause; nil if the stream must continue
		is func(error) bool
	}{
		"nothing":                      {credential.Token, func(*server) {}, nil},
		"the token is gone":            {credential.Token, func(s *server) { delete(s.users, "a") }, apierrors.IsUnauthorized},
		"the token is refused":         {credential.Token, func(s *server) { s.failing = errors.New("revoked") }, apierrors.IsUnauthorized},
		"the certificate is refused":   {credential.Certificate, func(s *server) { s.failing = errors.New("revoked") }, apierrors.IsUnauthorized},
		"the token cannot be verified": {credential.Token, func(s *server) { s.failing = unavailable }, nil},
		"the token is of another":      {credential.Token, func(s *server) { s.users["a"] = s.users["b"] }, apierrors.IsUnauthorized},
		"the user was made anew": {credential.Token,
			func(s *server) { s.users["a"] = &user.DefaultInfo{Name: "jane", UID: "3", Groups: s.users["a"].Groups} }, apierrors.IsUnauthorized},
		"the user has lost a group": {credential.Token, func(s *server) {
			s.users["a"] = &user.DefaultInfo{Name: "jane", UID: "1", Groups: s.users["a"].Groups[1:]}
		}, apierrors.IsUnauthorized},
		"the groups come in other order": {credential.Token, func(s *server) {
			s.users["a"] = &user.DefaultInfo{Name: "jane", UID: "1", Groups: []string{"system:authenticated", "staff"}}
		}, nil},
		"the right is gone":               {credential.Token, func(s *server) { s.denied["widgets"] = true }, apierrors.IsForbidden},
		"another right is gone":           {credential.Token, func(s *server) { s.denied["shelves"] = true }, nil},
		"rights cannot be told":           {credential.Token, func(s *server) { s.erring = errors.New("no answer") }, nil},
		"a proxy vouches for the caller":  {credential.Proxy, func(s *server) { delete(s.users, "a") }, nil},
		"a proxy's caller loses a right":  {credential.Proxy, func(s *server) { s.denied["widgets"] = true }, apierrors.IsForbidden},
		"another caller's token is gone":  {credential.Token, func(s *server) { delete(s.users, "b") }, nil},
		"a caller without a credential":   {credential.None, func(*server) {}, nil},
		"an error that is no word of one": {credential.Token, func(s *server) { s.failing = fmt.Errorf("several: %w", unavailable) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				c := s.checker(test.kind)
				within(t, c, func() {
					stream, ctx := s.begin(t, c, test.kind, "a", "widgets")
					time.Sleep(3 * DefaultPeriod)
					synctest.Wait()
					if ctx.Err() != nil {
						t.Fatalf("it has ended before: %v", context.Cause(ctx))
					}
					s.change(func() { test.change(s) })
					time.Sleep(DefaultPeriod + DefaultPeriod/2 + together)
					synctest.Wait()
					cause := context.Cause(ctx)
					if test.is == nil && cause != nil || test.is != nil && !test.is(cause) || stream.Cause() != cause {
						t.Errorf("the stream ended with %v, its context with %v", stream.Cause(), cause)
					}
					if s.change(func() {}); s.remember {
						t.Error("a memory was asked")
					}
				})
			})
		})
	}
}

// Each group is authorized once for all its streams, and each credential is authenticated once for all its groups.
func TestChecker_streamsAreGrouped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := s.checker(credential.Token)
		within(t, c, func() {
			for i := range 1000 {
				s.begin(t, c, credential.Token, "a", []string{"widgets", "shelves"}[i%2])
			}
			time.Sleep(20 * DefaultPeriod)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			// A period is shorter by up to a quarter, and two groups share an authentication for half a period.
			if s.allowed < 2*20 || s.allowed > 2*28 || s.asked > s.allowed {
				t.Errorf("in 20 periods, %d credentials and %d rights", s.asked, s.allowed)
			}
		})
	})
}

func TestChecker_nothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := s.checker(credential.Token)
		within(t, c, func() {
			var streams []*Stream
			for i := range 100 {
				stream, _ := s.begin(t, c, credential.Token, []string{"a", "b"}[i%2], fmt.Sprint("resource", i%7))
				streams = append(streams, stream)
			}
			s.change(func() { delete(s.users, "a") })
			time.Sleep(2 * DefaultPeriod)
			synctest.Wait()
			for i, stream := range streams {
				if (stream.Cause() != nil) != (i%2 == 0) {
					t.Errorf("stream %d: %v", i, stream.Cause())
				}
				stream.Leave()
				stream.Leave() // a second call does nothing
			}
			time.Sleep(2 * DefaultPeriod)
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.groups)+len(c.bearers)+len(c.due) > 0 {
				t.Errorf("left are %d groups, %d bearers, %d due", len(c.groups), len(c.bearers), len(c.due))
			}
		})
	})
}

// After the credential is valid again, new streams form a new group and do not end with the old one.
func TestChecker_afterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := s.checker(credential.Token)
		within(t, c, func() {
			first, _ := s.begin(t, c, credential.Token, "a", "widgets")
			s.change(func() { s.denied["widgets"] = true })
			time.Sleep(2 * DefaultPeriod)
			synctest.Wait()
			s.change(func() { s.denied["widgets"] = false })
			second, ctx := s.begin(t, c, credential.Token, "a", "widgets")
			time.Sleep(4 * DefaultPeriod)
			synctest.Wait()
			if first.Cause() == nil || second.Cause() != nil || ctx.Err() != nil {
				t.Errorf("the first: %v, the second: %v", first.Cause(), second.Cause())
			}
			called := false
			if first.OnEnd(func() { called = true }) || called {
				t.Error("a second function ends a stream")
			}
		})
	})
}

// A function that is registered after the end is called at once.
func TestStream_onEndAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := s.checker(credential.Token)
		within(t, c, func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer a")
			stream := From(c.Begin(r).Context())
			stream.accepted = credential.Credential{Kind: credential.Token, User: s.users["a"]}
			stream.Join(Authorization{}, nil)
			defer stream.Leave()
			s.change(func() { delete(s.users, "a") })
			time.Sleep(2 * DefaultPeriod)
			synctest.Wait()
			called := false
			if !stream.OnEnd(func() { called = true }) || !called {
				t.Error("not called")
			}
		})
	})
}

// deadlines is a response writer with deadlines.
type deadlines struct {
	http.ResponseWriter
	mu    sync.Mutex
	write time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.write = at
	return nil
}

func (d *deadlines) cut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.write.IsZero() && d.write.Before(time.Now())
}

func TestChecker_clientsThatDoNotReadAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := s.checker(credential.Token)
		within(t, c, func() {
			var written [2]deadlines
			var streams [2]*Stream
			for i := range streams {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
				r.Header.Set("Authorization", "Bearer a")
				streams[i] = From(c.Begin(r).Context())
				streams[i].accepted = credential.Credential{Kind: credential.Token, User: s.users["a"]}
				streams[i].OnEnd(func() {})
				streams[i].Join(Authorization{}, &written[i])
			}
			s.change(func() { delete(s.users, "a") })
			time.Sleep(DefaultPeriod + together)
			synctest.Wait()
			streams[0].Leave() // the first client reads
			time.Sleep(farewell + together)
			synctest.Wait()
			if streams[1].Cause() == nil || written[0].cut() || !written[1].cut() {
				t.Errorf("ended for %v; cut off: %t and %t", streams[1].Cause(), written[0].cut(), written[1].cut())
			}
			streams[1].Leave()
		})
	})
}

func TestChecker_requestsOfTheServerItself(t *testing.T) {
	t.Parallel()
	c := New(Config{})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if got := c.Begin(r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, pipe{}))); From(got.Context()) != nil {
		t.Error("a request within the process is checked")
	}
}

type pipe struct{}

func (pipe) Network() string { return "pipe" }
func (pipe) String() string  { return "pipe" }

// A server has to support ten thousand idle watches.
func TestStream_memory(t *testing.T) {
	s := newServer()
	c := s.checker(credential.Token)
	const streams = 10_000
	all := make([]*Stream, 0, streams)
	requests := make([]*http.Request, 0, streams)
	for range streams {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer a")
		requests = append(requests, r)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, r := range requests {
		stream := From(c.Begin(r).Context())
		stream.accepted = credential.Credential{Kind: credential.Token, User: s.users["a"]}
		stream.Join(Authorization{}, nil)
		all = append(all, stream)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / streams
	if each > 200 {
		t.Errorf("%.0f bytes a stream", each)
	}
	runtime.KeepAlive(requests)
	for _, stream := range all {
		stream.Leave()
	}
}

// BenchmarkCheck measures one period of a server with ten thousand watches.
func BenchmarkCheck(b *testing.B) {
	for _, credentials := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(credentials, " credentials"), func(b *testing.B) {
			s := newServer()
			c := s.checker(credential.Token)
			for i := range 10_000 {
				token := fmt.Sprint("t", i%credentials)
				s.users[token] = &user.DefaultInfo{Name: token}
				s.begin(b, c, credential.Token, token, "widgets")
			}
			var groups []*group
			for _, g := range c.groups {
				groups = append(groups, g)
			}
			b.ResetTimer()
			for range b.N {
				for _, g := range groups {
					g.bearer.current = nil
					if err := c.refusal(credential.WithoutCaches(context.Background()), g); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/period")
		})
	}
}
