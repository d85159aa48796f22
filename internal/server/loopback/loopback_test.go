package loopback

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/testing/testwait"
)

func start(t testing.TB, handler http.HandlerFunc) *Loopback {
	t.Helper()
	l := New()
	l.Serve(handler)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func client(t testing.TB, l *Loopback) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(l.Config())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func request(t testing.TB, ctx context.Context, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://loopback"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestConfig_sendsToken(t *testing.T) {
	l := start(t, func(w http.ResponseWriter, req *http.Request) {
		io.WriteString(w, req.Header.Get("Authorization")+" "+req.URL.Path)
	})
	response, err := client(t, l).Do(request(t, t.Context(), "/apis"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if want := "Bearer " + l.Token() + " /apis"; string(body) != want {
		t.Errorf("got %q, want %q", body, want)
	}
	if other := New(); other.Token() == l.Token() {
		t.Error("two loopbacks have one token")
	}
}

func TestServe_flush(t *testing.T) {
	next := make(chan struct{})
	l := start(t, func(w http.ResponseWriter, req *http.Request) {
		for i := 0; ; i++ {
			select {
			case <-next:
				fmt.Fprintf(w, "event %d\n", i)
				w.(http.Flusher).Flush()
			case <-req.Context().Done():
				return
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	advance := func() { next <- struct{}{} }
	go advance()
	response, err := client(t, l).Do(request(t, ctx, "/watch"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for i := range 3 {
		line, err := lines.ReadString('\n')
		if err != nil || line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("event %d: %q, %v", i, line, err)
		}
		if i < 2 {
			advance()
		}
	}
}

func TestServe_cancelledRequest_endsHandler(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	l := start(t, func(w http.ResponseWriter, req *http.Request) {
		w.(http.Flusher).Flush()
		close(began)
		<-req.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	response, err := client(t, l).Do(request(t, ctx, "/watch"))
	if err != nil {
		t.Fatal(err)
	}
	<-began
	cancel()
	<-ended
	if _, err := io.ReadAll(response.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("body: %v", err)
	}
	response.Body.Close()
}

// The end of a server cancels the requests of its own controllers, whose handlers must not log that.
func TestServe_cancelledRequest_writesAreLost(t *testing.T) {
	wrote := make(chan error, 1)
	begun := make(chan struct{})
	l := start(t, func(w http.ResponseWriter, req *http.Request) {
		close(begun)
		<-req.Context().Done()
		_, err := w.Write(make([]byte, 1<<20))
		wrote <- err
	})
	c, err := rest.HTTPClientFor(l.Config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, Host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-begun
		cancel()
	}()
	if response, err := c.Do(req); err == nil {
		response.Body.Close()
		t.Error("the request was not cancelled")
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

func TestServe_concurrentRequests(t *testing.T) {
	const n = 200
	var inside sync.WaitGroup
	inside.Add(n)
	l := start(t, func(w http.ResponseWriter, req *http.Request) {
		inside.Done()
		inside.Wait() // until all requests are in progress
		io.Copy(w, req.Body)
	})
	c := client(t, l)
	large := bytes.Repeat([]byte("annex"), 1<<16)
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			response, err := c.Post("http://loopback/", "text/plain", bytes.NewReader(large))
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if body, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(body, large) {
				t.Errorf("%d bytes back, %v", len(body), err)
			}
		})
	}
	clients.Wait()
}

func TestServe_earlyRequests_wait(t *testing.T) {
	l := New()
	defer l.Close()
	c := client(t, l)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Do(request(t, ctx, "/")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while waiting: %v", err)
	}

	got := make(chan error, 1)
	go func() {
		response, err := c.Do(request(t, t.Context(), "/"))
		if err == nil {
			response.Body.Close()
		}
		got <- err
	}()
	l.Serve(http.NotFoundHandler())
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	ended := make(chan struct{})
	l := New()
	l.Serve(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/watch" {
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			close(ended)
		}
	}))
	c := client(t, l)
	for range 3 {
		response, err := c.Do(request(t, t.Context(), "/"))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	watch, err := c.Do(request(t, t.Context(), "/watch"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if _, err := io.ReadAll(watch.Body); err == nil {
		t.Error("the watch ended as if complete")
	}
	watch.Body.Close()
	if _, err := c.Do(request(t, t.Context(), "/")); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	l.Serve(http.NotFoundHandler())

	testwait.NoError(t, "goroutines", func(context.Context) error {
		if runtime.NumGoroutine() > before {
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("left behind:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
		return nil
	})
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		l := New()
		l.Serve(http.NotFoundHandler())
		l.Close()
	}
}

func BenchmarkRequest(b *testing.B) {
	l := start(b, func(w http.ResponseWriter, req *http.Request) { io.WriteString(w, "ok") })
	c := client(b, l)
	req := request(b, b.Context(), "/")
	for b.Loop() {
		response, err := c.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
}
