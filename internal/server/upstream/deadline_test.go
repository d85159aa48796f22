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

	"github.com/annexapi/annex/internal/fastpath"
)

// pipeListener accepts one end of a pipe, which has no buffer.
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

// connectionKey is the key of the connection's context in the context of a request.
type connectionKey struct{}

// onDeadline runs handler on a connection whose client sends the request, sends nothing more and reads nothing.
// Requests have a deadline of one second. It returns the time that the handler took.
func onDeadline(t *testing.T, request string, handler http.HandlerFunc) (took time.Duration) {
	client, conn := net.Pipe()
	listener := &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	listener.conns <- conn
	handled := make(chan struct{})
	start := time.Now()
	deadlined := withDeparture(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

func TestDeadline_slowBody_timesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := onDeadline(
			t,
			"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nthe beginning",
			func(w http.ResponseWriter, r *http.Request) {
				_, err := io.ReadAll(r.Body)
				if !apierrors.IsTimeout(err) {
					t.Errorf("reading the body: %v", err)
				}
			},
		)
		if took != time.Second {
			t.Errorf("reading took %s", took)
		}
	})
}

func TestDeadline_unreadResponse_endsAfterGrace(t *testing.T) {
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

// net/http promises that a read deadline does not end the context once the body has been read.
func TestDeadline_bodyRead_doesNotEndContext(t *testing.T) {
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

func TestRequestDeadline_equalsPackageContext(t *testing.T) {
	type key struct{}
	for name, test := range map[string]struct {
		// parent may end a context after two seconds; requests have five.
		parent func(context.Context) (context.Context, context.CancelFunc)
		// asked makes a goroutine wait for the end from the beginning on.
		asked bool
		ends  time.Duration // when the request is answered; 0 is never
	}{
		"passes":                       {parent: context.WithCancel},
		"passes, waited for":           {parent: context.WithCancel, asked: true},
		"answered":                     {parent: context.WithCancel, ends: time.Second},
		"answered, waited for":         {parent: context.WithCancel, ends: time.Second, asked: true},
		"answered late":                {parent: context.WithCancel, ends: 6 * time.Second},
		"the client goes":              {parent: twoSeconds(context.Canceled)},
		"the client goes, waited for":  {parent: twoSeconds(context.Canceled), asked: true},
		"the client goes after":        {parent: twoSeconds(context.Canceled), ends: time.Second},
		"parent has less":              {parent: withTimeout(3 * time.Second)},
		"parent has less, waited for":  {parent: withTimeout(3 * time.Second), asked: true},
		"parent has more":              {parent: withTimeout(9 * time.Second)},
		"parent has ended with reason": {parent: twoSeconds(errors.New("gone"))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := test.parent(context.WithValue(t.Context(), key{}, "value"))
				defer cancel()
				at := time.Now().Add(5 * time.Second)
				got := newDeadline(parent, at)
				want, end := context.WithDeadline(parent, at)
				defer end()
				defer got.end()
				if test.asked {
					got.Done()
				}
				var child, wantChild context.Context
				for second := range 8 {
					if test.ends > 0 && second == int(test.ends/time.Second) {
						end()
						got.end()
					}
					synctest.Wait()
					gotAt, _ := got.Deadline()
					wantAt, _ := want.Deadline()
					if !gotAt.Equal(wantAt) || got.Err() != want.Err() || context.Cause(got) != context.Cause(want) || got.Value(key{}) != "value" {
						t.Errorf(
							"after %d s: until %s, %v, %v, %v; want %s, %v, %v",
							second,
							gotAt,
							got.Err(),
							context.Cause(got),
							got.Value(key{}),
							wantAt,
							want.Err(),
							context.Cause(want),
						)
					}
					if second == 0 && test.asked || second == 7 {
						var done context.CancelFunc
						child, done = context.WithCancel(got)
						defer done()
						wantChild, done = context.WithCancel(want)
						defer done()
					}
					if child != nil && (child.Err() != wantChild.Err() || ended(got) != ended(want) || ended(child) != ended(wantChild)) {
						t.Errorf(
							"after %d s: one made of it %v, ended %t %t; want %v, %t %t",
							second,
							child.Err(),
							ended(got),
							ended(child),
							wantChild.Err(),
							ended(want),
							ended(wantChild),
						)
					}
					time.Sleep(time.Second) // in the time of the bubble
				}
			})
		})
	}
}

func ended(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

func withTimeout(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
	return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
}

// twoSeconds ends a context with a reason.
func twoSeconds(reason error) func(context.Context) (context.Context, context.CancelFunc) {
	return func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		timer := time.AfterFunc(2*time.Second, func() { cancel(reason) })
		return ctx, func() { timer.Stop(); cancel(nil) }
	}
}

func TestRequestDeadline_shorten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadline(t.Context(), time.Now().Add(time.Minute))
		defer d.end()
		ctx := context.WithValue(d, connectionKey{}, "a value in between")
		soon := time.Now().Add(time.Second)
		if !fastpath.ShortenDeadline(ctx, soon) || !fastpath.ShortenDeadline(ctx, soon.Add(time.Hour)) {
			t.Fatal("a deadline that nothing waits for cannot be shortened")
		}
		if at, ok := ctx.Deadline(); !ok || !at.Equal(soon) {
			t.Errorf("the deadline is %s, want %s", at, soon)
		}
		if err := ctx.Err(); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		if !time.Now().Equal(soon) || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("it ended at %s with %v", time.Now(), ctx.Err())
		}
		if fastpath.ShortenDeadline(ctx, time.Now()) {
			t.Error("shortened after its end")
		}

		waited := newDeadline(t.Context(), time.Now().Add(time.Minute))
		waited.Done()
		ended := newDeadline(t.Context(), time.Now().Add(time.Minute))
		ended.end()
		waited.end()
		for name, ctx := range map[string]context.Context{"awaited": waited, "ended": ended, "other": t.Context()} {
			if fastpath.ShortenDeadline(ctx, time.Now()) {
				t.Errorf("%s: shortened", name)
			}
		}
	})
}
