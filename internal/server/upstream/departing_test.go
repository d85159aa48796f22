package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/testing/stalled"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// as returns a request for a resource by a user in groups.
func as(r *http.Request, info *request.RequestInfo, name string, groups ...string) *http.Request {
	ctx := request.WithUser(request.WithRequestInfo(r.Context(), info), &user.DefaultInfo{Name: name, Groups: groups})
	return r.WithContext(ctx)
}

func TestCallerOf_class(t *testing.T) {
	leases := &request.RequestInfo{IsResourceRequest: true, Verb: "update", APIGroup: "coordination.k8s.io", Resource: "leases"}
	widgets := &request.RequestInfo{IsResourceRequest: true, Verb: "update", APIGroup: "shop.example.com", Resource: "widgets"}
	health := &request.RequestInfo{Verb: "get", Path: "/readyz"}
	other := &request.RequestInfo{Verb: "get", Path: "/metrics"}
	for name, test := range map[string]struct {
		info   *request.RequestInfo
		groups []string
		want   budget.Class
	}{
		"an object":                     {widgets, []string{"system:authenticated"}, budget.Ordinary},
		"an object of an administrator": {widgets, []string{"system:masters"}, budget.Privileged},
		"a lease":                       {leases, nil, budget.Urgent},
		"health":                        {health, []string{"system:unauthenticated"}, budget.Urgent},
		"another path":                  {other, nil, budget.Ordinary},
	} {
		r := as(httptest.NewRequest(http.MethodPut, "/", nil), test.info, "somebody", test.groups...)
		if got := callerOf(r, test.info); got.Class != test.want || got.User != "somebody" || got.Connection != r.RemoteAddr {
			t.Errorf("%s: %+v, want class %d", name, got, test.want)
		}
	}
}

// A user that has used its share of the places waits, and is refused if too many of its requests wait. Other users
// and administrators are not.
func TestWithFairPlaces_oneUser_leavesPlacesForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memoryConfig()
		c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = 0, 8
		c.LongRunningFunc = func(*http.Request, *request.RequestInfo) bool { return false }
		held := make(chan struct{})
		handler := withFairPlaces(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Hold") != "" {
				<-held
			}
		}), c)
		info := &request.RequestInfo{
			IsResourceRequest: true,
			Verb:              "create",
			APIGroup:          "shop.example.com",
			APIVersion:        "v1",
			Resource:          "widgets",
		}
		call := func(hold, name string, groups ...string) *httptest.ResponseRecorder {
			r := as(httptest.NewRequest(http.MethodPost, "/apis/shop.example.com/v1/widgets", nil), info, name, groups...)
			if hold != "" {
				r.Header.Set("Hold", hold)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w
		}
		defer close(held)
		for range 3 + 4 { // half of the seven places for ordinary requests, and half of the queue
			go call("yes", "greedy")
			synctest.Wait()
		}
		if w := call("", "greedy"); w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "maximum of requests in flight") {
			t.Errorf("one too many: %d %s", w.Code, w.Body)
		}
		if w := call("", "other"); w.Code != http.StatusOK {
			t.Errorf("another user: %d", w.Code)
		}
		for range 12 {
			go call("yes", "root", "system:masters")
			synctest.Wait()
		}
		if w := call("", "root", "system:masters"); w.Code != http.StatusOK {
			t.Errorf("an administrator: %d", w.Code)
		}
	})
}

// http2Server serves a handler behind withDeparture on our listener. Requests have a deadline of one minute.
func http2Server(t *testing.T, handler http.Handler) net.Listener {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(nil)
	s.Listener.Close()
	connections := newConnections(plain, 0)
	s.Listener = connections
	s.EnableHTTP2 = true
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		handler.ServeHTTP(w, r.WithContext(ctx))
	})
	s.StartTLS()
	t.Cleanup(func() {
		connections.cut()
		s.Close()
	})
	return plain
}

// Responses that clients do not read hold only their bytes, and only the share of their own user.
func TestDeparture_unreadResponses_holdOnlyTheirBytes(t *testing.T) {
	b := budget.New(budget.Minimum)
	c := memoryConfig()
	answer := strings.Repeat("x", 9<<10)
	served := make(chan struct{}, 200)
	inner := accounted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if account := budget.From(r.Context()); account.Held() < 200<<10 {
			t.Errorf("a body of a quarter of a megabyte holds %d bytes while it is handled", account.Held())
		}
		_, _ = io.WriteString(w, answer)
		served <- struct{}{}
	}), b, c)
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "shop.example.com", APIVersion: "v1", Resource: "widgets"}
	handler := withDeparture(inner)
	l := http2Server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, as(r, info, "slow"))
	}))
	body := `"` + strings.Repeat("x", 2<<10) + `"` + strings.Repeat(",", 1<<10)
	const streams = 40 // fewer than one user may have waiting
	client, err := stalled.Dial(l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range streams {
		if err := client.Send(
			http.MethodPost,
			"/apis/shop.example.com/v1/widgets",
			[]byte(body),
			false,
			"content-type",
			"application/json",
		); err != nil {
			t.Fatal(err)
		}
	}
	for range streams {
		<-served
	}
	testwait.Until(t, "only bytes of answers are held", func() bool {
		s := b.Stats()
		return s.Used == s.Wire && s.Wire == int64(streams*len(answer))
	})
	other := b.Account(budget.Caller{User: "other"}, nil)
	defer other.Close()
	if !other.TryHold(8 << 20) {
		t.Error("another user finds no memory")
	}
	client.Close()
	testwait.Until(t, "nothing is held when the client has gone", func() bool { return b.Stats().Wire == 0 })
}

// onDeparture lets a client send a request and read nothing. It returns the time after which the response was given
// up.
func onDeparture(t *testing.T, verb string, handler http.HandlerFunc) (took time.Duration) {
	t.Helper()
	client, conn := net.Pipe()
	listener := &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	listener.conns <- conn
	gone := make(chan struct{})
	departure := withDeparture(handler)
	start := time.Now()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			took = time.Since(start)
			close(gone)
		}()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		departure.ServeHTTP(w, resourceRequest(verb, r.WithContext(ctx)))
	})}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-gone
	client.Close()
	server.Close()
	<-done
	return took
}

func TestDeparture_unreadResponse_isGivenUp(t *testing.T) {
	for name, test := range map[string]struct {
		verb string
		size int
	}{
		"an object":    {"get", 1 << 20},
		"a list":       {"list", 1 << 20},
		"a short list": {"list", 20 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var handled time.Duration
				took := onDeparture(t, test.verb, func(w http.ResponseWriter, _ *http.Request) {
					began := time.Now()
					for range test.size >> 10 {
						if _, err := w.Write(make([]byte, 1<<10)); err != nil {
							break
						}
					}
					handled = time.Since(began)
				})
				if took != pieceTime {
					t.Errorf("the answer was given up after %s, want %s", took, pieceTime)
				}
				if streams := test.verb == "list" && test.size > mostOfList; (handled > 0) != streams {
					t.Errorf("the handler waited %s for the client", handled)
				}
			})
		})
	}
}

// The timer of a piece does not run between two writes of a slow handler.
func TestDeparture_slowHandler_keepsResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		withDeparture(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				if _, err := w.Write(make([]byte, mostOfList)); err != nil {
					t.Error(err)
				}
				time.Sleep(2 * pieceTime)
			}
		})).ServeHTTP(w, resourceRequest("list", r.WithContext(ctx)))
		if w.Body.Len() != 3*mostOfList {
			t.Errorf("%d bytes", w.Body.Len())
		}
	})
}

// A handler's calls have the same effect on a response, whether it is kept or not.
func TestDeparture_responses_equalHandlers(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"nothing": func(http.ResponseWriter, *http.Request) {},
		"a code":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"the first code": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			w.WriteHeader(http.StatusOK)
		},
		"a header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Of", "handler")
			_, _ = io.WriteString(w, "{}")
		},
		"more than kept": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, strings.Repeat("a", mostOfList))
			_, _ = io.WriteString(w, strings.Repeat("b", mostOfObject))
		},
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "second")
		},
	} {
		for _, verb := range []string{"get", "list"} {
			t.Run(name+", "+verb, func(t *testing.T) {
				answer := func(handler http.Handler) *http.Response {
					s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
						defer cancel()
						handler.ServeHTTP(w, resourceRequest(verb, r.WithContext(ctx)))
					}))
					defer s.Close()
					response, err := s.Client().Get(s.URL)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(response.Body)
					if err != nil {
						t.Fatal(err)
					}
					response.Body = io.NopCloser(bytes.NewReader(body))
					response.Header.Del("Date")
					return response
				}
				want, got := answer(handler), answer(withDeparture(handler))
				wantBody, _ := io.ReadAll(want.Body)
				gotBody, _ := io.ReadAll(got.Body)
				if got.StatusCode != want.StatusCode || !bytes.Equal(gotBody, wantBody) || got.Header.Get("X-Of") != want.Header.Get("X-Of") ||
					got.Header.Get("Content-Type") != want.Header.Get("Content-Type") {
					t.Errorf(
						"%d, %d bytes, %v; want %d, %d bytes, %v",
						got.StatusCode,
						len(gotBody),
						got.Header,
						want.StatusCode,
						len(wantBody),
						want.Header,
					)
				}
			})
		}
	}
}

// A list for which the budget has no room on the wire is refused before any of it is written.
func TestDeparture_listWithoutRoomOnTheWire_isRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(budget.Minimum)
		first := b.Account(budget.Caller{User: "first"}, nil)
		if err := first.Wire(t.Context(), budget.Minimum); err != nil {
			t.Fatal(err)
		}
		handler := withDeparture(accounted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := budget.From(r.Context()).Hold(r.Context(), 1<<20); err != nil {
				t.Error(err)
			}
			if _, err := w.Write(make([]byte, mostOfList+1)); err == nil {
				t.Error("it was written")
			}
		}), b, memoryConfig()))
		r := httptest.NewRequest(http.MethodGet, "/apis/shop.example.com/v1/widgets", nil)
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, resourceRequest("list", r.WithContext(ctx)))
		if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "memory budget") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// A connection whose client takes no bytes at all is closed: no frame can end its streams.
func TestHeldConn_stalledClient_isClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		c := &heldConn{Conn: server}
		began := time.Now()
		if _, err := c.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("writing: %v", err)
		}
		if took := time.Since(began); took != stallTime {
			t.Errorf("it took %s", took)
		}
	})
}

// seats is priority and fairness with a single seat.
func seats(handler http.Handler) http.Handler {
	seat := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seat <- struct{}{}
		defer func() { <-seat }()
		handler.ServeHTTP(w, r)
	})
}

// A long list that its client does not read gives up its seat.
func TestSeats_unreadList_isGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := withDeparture(withSeatsGivenUp(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				if _, err := w.Write(make([]byte, mostOfList)); err != nil {
					return
				}
			}
		}), seats))
		ask := func(w http.ResponseWriter) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			handler.ServeHTTP(w, resourceRequest("list", httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)))
		}
		reads := make(chan struct{})
		slow := &slowWriter{httptest.NewRecorder(), reads}
		done := make(chan struct{})
		go func() {
			defer close(done)
			ask(slow)
		}()
		synctest.Wait() // until the list waits for its client
		other := httptest.NewRecorder()
		ask(other)
		if other.Body.Len() != 10*mostOfList {
			t.Errorf("another list has %d bytes", other.Body.Len())
		}
		close(reads)
		<-done
		if slow.Body.Len() != 10*mostOfList {
			t.Errorf("the list has %d bytes in the end", slow.Body.Len())
		}
	})
}

func TestSeats_listThatPanics_panicsOutsideWithItsStack(t *testing.T) {
	handler := withDeparture(withSeatsGivenUp(http.HandlerFunc(listThatPanics), seats))
	defer func() {
		reason := fmt.Sprint(recover())
		if !strings.HasPrefix(reason, "of the handler\n") || !strings.Contains(reason, ".listThatPanics(") {
			t.Errorf("recovered %s", reason)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	handler.ServeHTTP(httptest.NewRecorder(), resourceRequest("list", httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)))
}

func listThatPanics(http.ResponseWriter, *http.Request) { panic("of the handler") }

// slowWriter blocks until its client reads.
type slowWriter struct {
	*httptest.ResponseRecorder
	reads chan struct{}
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.reads
	return w.ResponseRecorder.Write(p)
}
