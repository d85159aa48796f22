package push

import "context"

// Rest is what is left to do of a request when its handlers have returned: a watch then waits for events without their
// frames on its stack, which are most of what an idle watch holds. It is for one goroutine at a time.
type Rest struct {
	serve   func()
	dropped bool
}

type restKey struct{}

// WithRest returns a context in which handlers may leave something to do when they have returned. What serves the
// request calls Do then.
func WithRest(ctx context.Context) (context.Context, *Rest) {
	rest := &Rest{}
	return context.WithValue(ctx, restKey{}, rest), rest
}

// WithoutRest returns a context in which handlers must have done everything when they return. It is for handlers that
// cannot do something when what is left has been done.
func WithoutRest(ctx context.Context) context.Context {
	if RestFrom(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, restKey{}, (*Rest)(nil))
}

// RestFrom returns where handlers may leave something to do; nil if they may not.
func RestFrom(ctx context.Context) *Rest {
	rest, _ := ctx.Value(restKey{}).(*Rest)
	return rest
}

// Leave leaves something to do when all handlers have returned. It is called once.
func (r *Rest) Leave(serve func()) {
	r.serve = func() {
		if !r.dropped {
			serve()
		}
	}
}

// Around does what a handler does around those behind it around what they have left, too; it is called when they have
// returned. It is false if they have left nothing: then the handler's own has to be done now. What wrap does is done even
// if what was left is dropped.
func (r *Rest) Around(wrap func(serve func())) bool {
	if r == nil || r.serve == nil {
		return false
	}
	serve := r.serve
	r.serve = func() { wrap(serve) }
	return true
}

// Drop has what was left not be done, because the request has failed since.
func (r *Rest) Drop() {
	if r != nil {
		r.dropped = true
	}
}

// Do does what was left.
func (r *Rest) Do() {
	if r.serve != nil {
		r.serve()
	}
}
