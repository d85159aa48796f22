package push

import (
	"context"
	"net/http"
)

// Rest is the remaining work of a request after its handlers have returned. A watch uses it to wait for events without
// the frames of the handlers on its stack, which are most of the memory of an idle watch. It must not be used
// concurrently.
type Rest struct {
	serve   func()
	dropped bool
}

type restKey struct{}

// WithRest returns a context in which handlers may leave work for the time after they have returned. The server of the
// request must then call Do.
func WithRest(ctx context.Context) (context.Context, *Rest) {
	rest := &Rest{}
	return context.WithValue(ctx, restKey{}, rest), rest
}

// WithoutRest returns a context in which handlers must finish all work before they return. It is for filters that
// cannot run code after the remaining work.
func WithoutRest(ctx context.Context) context.Context {
	if RestFrom(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, restKey{}, (*Rest)(nil))
}

// RestFrom returns the Rest of a context; nil if handlers must not leave work.
func RestFrom(ctx context.Context) *Rest {
	rest, _ := ctx.Value(restKey{}).(*Rest)
	return rest
}

// Leave sets the remaining work, which runs when all handlers have returned. It must be called at most once.
func (r *Rest) Leave(serve func()) {
	r.serve = func() {
		if !r.dropped {
			serve()
		}
	}
}

// Around wraps the remaining work, for a handler that does something around the handlers behind it. It must be called
// after those handlers have returned. It returns false if there is no remaining work: then the caller must do its own
// part now. wrap is called even if the remaining work is dropped.
func (r *Rest) Around(wrap func(serve func())) bool {
	if r == nil || r.serve == nil {
		return false
	}
	serve := r.serve
	r.serve = func() { wrap(serve) }
	return true
}

// Drop cancels the remaining work, because the request has failed meanwhile.
func (r *Rest) Drop() {
	if r != nil {
		r.dropped = true
	}
}

// Do runs the remaining work.
func (r *Rest) Do() {
	if r.serve != nil {
		r.serve()
	}
}

// After calls f when a request is over: when the rest of the request is done if its handlers have left one, else now. A filter whose
// work ends with the request defers it: defer push.After(r.Context(), f).
func After(ctx context.Context, f func()) {
	rest := RestFrom(ctx)
	if rest == nil || rest.serve == nil {
		f() // without a function for Around, which most requests need not allocate
		return
	}
	rest.Around(func(serve func()) {
		defer f()
		serve()
	})
}

// Within returns a handler whose requests are over when it returns. It is for filters that end a request by themselves.
func Within(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if RestFrom(r.Context()) != nil {
			r = r.WithContext(WithoutRest(r.Context()))
		}
		handler.ServeHTTP(w, r)
	})
}
