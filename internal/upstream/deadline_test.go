package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pipeListener accepts one end of a pipe, which has no buffer at all.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// connectionKey is where a request has the context of its connection.
type connectionKey struct{}

// onDeadline runs handler on a connection whose client sends the request and then
// nothing more, and reads nothing. Requests have a second. It returns how long the
// handler took.
func onDeadline(t *testing.T, request string, handler http.HandlerFunc) (took time.Duration) {
	client, conn := net.Pipe()
	listener := &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	listener.conns <- conn
	handled := make(chan struct{})
	start := time.Now()
	deadlined := withConnectionDeadline(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(handled)
		handler(w, r)
		took = time.Since(start)
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithDeadline(context.WithValue(r.Context(), connectionKey{}, r.Context()), start.Add(time.Second))
		defer cancel()
		deadlined.ServeHTTP(w, r.WithContext(ctx))
	})}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	if _, err := io.WriteString(client, request); err != nil {
		t.Fatal(err)
	}
	<-handled
	client.Close()
	server.Close()
	<-served
	return took
}

func TestABodyHasToArriveBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := onDeadline(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nthe beginning", func(w http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			if !apierrors.IsTimeout(err) {
				t.Errorf("reading the body: %v", err)
			}
		})
		if took != time.Second {
			t.Errorf("reading took %s", took)
		}
	})
}

func TestAnAnswerHasToBeTakenSoonAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := onDeadline(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(w http.ResponseWriter, r *http.Request) {
			var err error
			for err == nil {
				_, err = w.Write(make([]byte, 1<<10))
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("writing the answer: %v", err)
			}
		})
		if want := time.Second + answerTime; took != want {
			t.Errorf("writing took %s, want %s", took, want)
		}
	})
}

// net/http promises that.
func TestTheBodysDeadlineIsNotTakenForTheClientsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		onDeadline(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nall", func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err != nil || string(body) != "all" {
				t.Errorf("reading the body: %q, %v", body, err)
			}
			<-r.Context().Done()
			synctest.Wait()
			if err := r.Context().Value(connectionKey{}).(context.Context).Err(); err != nil {
				t.Errorf("the connection's context ended, too: %v", err)
			}
		})
	})
}
