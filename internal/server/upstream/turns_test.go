package upstream

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/base/budget"
)

// largeRequest returns a create request with a body of many elements, by a user over a connection.
func largeRequest(name, connection string) *http.Request {
	body := `{"a":[` + strings.Repeat(`"bbbbbbbbbbbbbbbbbbbb",`, manyElements) + `""]}`
	r := httptest.NewRequest(http.MethodPost, "/apis/shop.example.com/v1/widgets", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr = connection
	return resourceRequest("create", r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name})))
}

func TestTurns_users_alternate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := turns{budget.NewPlaces(1, mostWaitingForTurns)}
		var mu sync.Mutex
		working, most, order := 0, 0, ""
		handler := withBody(withMemory(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			u, _ := request.UserFrom(r.Context())
			mu.Lock()
			working++
			most = max(most, working)
			order += u.GetName()
			mu.Unlock()
			time.Sleep(longestTurn / 2)
			mu.Lock()
			defer mu.Unlock()
			working--
		}), turns, memoryConfig()), budget.New(1<<30), nil, nil, nil, memoryConfig())
		for i := range 6 {
			go handler.ServeHTTP(httptest.NewRecorder(), largeRequest("a", fmt.Sprint(i)))
			synctest.Wait()
		}
		for range 2 {
			go handler.ServeHTTP(httptest.NewRecorder(), largeRequest("b", "b"))
			synctest.Wait()
		}
		small := resourceRequest("create", httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}")))
		small = small.WithContext(request.WithUser(small.Context(), &user.DefaultInfo{Name: "c"}))
		go handler.ServeHTTP(httptest.NewRecorder(), small)
		synctest.Wait()
		mu.Lock()
		if order != "ac" {
			t.Errorf("%s work at first, want a, and c, whose body is small", order)
		}
		mu.Unlock()
		time.Sleep(8 * longestTurn / 2)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if most != 2 || len(order) != 9 || strings.Count(order[:6], "b") != 2 {
			t.Errorf("%d work at once, in the order %s: want the two of b among the first four that waited", most, order)
		}
	})
}

// A request that waits for a webhook delays other requests no longer than a turn.
func TestTurns_blockedRequest_losesTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began atomic.Int32
		handler := withBody(withMemory(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			began.Add(1)
			time.Sleep(time.Hour)
		}), turns{budget.NewPlaces(1, mostWaitingForTurns)}, memoryConfig()), budget.New(1<<30), nil, nil, nil, memoryConfig())
		for i := range 3 {
			go handler.ServeHTTP(httptest.NewRecorder(), largeRequest(fmt.Sprint(i), ""))
			synctest.Wait()
		}
		for want := int32(1); want <= 3; want++ {
			if began := began.Load(); began != want {
				t.Errorf("%d requests work after %d turns, want %d", began, want-1, want)
			}
			time.Sleep(longestTurn)
			synctest.Wait()
		}
		time.Sleep(time.Hour)
	})
}

func TestTurns_queueFull_isRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := budget.NewPlaces(1, 1)
		handler := withBody(withMemory(http.NotFoundHandler(), turns{places}, memoryConfig()), budget.New(1<<30), nil, nil, nil, memoryConfig())
		places.TryEnter(budget.Caller{User: "other"})
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, largeRequest("a", ""))
		if body, _ := io.ReadAll(
			w.Body,
		); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" ||
			!strings.Contains(string(body), "large bodies") {
			t.Errorf("got %d, %s, %v", w.Code, body, w.Header())
		}
		places.Leave(budget.Caller{User: "other"})
		w = httptest.NewRecorder()
		if handler.ServeHTTP(w, largeRequest("a", "")); w.Code != http.StatusNotFound {
			t.Errorf("got %d when the turn is to be had", w.Code)
		}
		if !places.TryEnter(budget.Caller{User: "other"}) {
			t.Error("the turn of a request that was answered is not given back")
		}
	})
}
