// Package past lets ordinary reads of an object or a list ask the storage for the history. A request of the history is a get or
// a list that passes through the regular handlers with a Request in its context, which the storage answers.
package past

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/store"
)

// The types of answers are those of package store.
type (
	// Point is a moment.
	Point = store.Point
	// Revision is a revision of an object.
	Revision = store.PastRevision
	// NotKeptError reports a moment that the history no longer reaches.
	NotKeptError = store.NotKeptError
	// FutureError reports a moment that is not reached yet.
	FutureError = store.FutureError
)

// ParsePoint parses a revision, a time as in RFC 3339, or an age such as -10m.
func ParsePoint(text string, now time.Time) (store.Point, error) {
	if revision, err := strconv.ParseUint(text, 10, 64); err == nil && revision > 0 {
		return store.Point{Revision: revision}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return store.Point{Time: at.UTC()}, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age < 0 {
		return store.Point{Time: now.Add(age).UTC()}, nil
	}
	return store.Point{}, fmt.Errorf("%q is not a point of the history: use a revision, a time such as %s, or an age such as -10m", text,
		"2026-11-28T06:30:00Z")
}

// Request is a question to the history. A get asks for the object At a point or, if At is nil, for a page of its
// revisions. A list asks for the objects at a point or, if At is nil, for deletions.
type Request struct {
	At     *store.Point
	Before uint64
	Limit  int

	// Answered is set by a storage that has a history. Then either Err is set, or Page unless the request has a point.
	Answered bool
	Page     store.PastPage
	Err      error
}

type requestKey struct{}

// NewContext returns a context in which a get or a list is a question to the history.
func NewContext(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Answering wraps outer, and answers questions to the history by inner, if that is a Historian.
func Answering(outer, inner storage.Interface) storage.Interface {
	historian, ok := inner.(store.Historian)
	if !ok {
		return outer
	}
	return answering{outer, historian}
}

type answering struct {
	storage.Interface
	historian store.Historian
}

// Below implements store.Layer. Only questions to the history are answered here.
func (a answering) Below() storage.Interface { return a.Interface }

// Get implements storage.Interface.
func (a answering) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	r := requestOf(ctx)
	if r == nil {
		return a.Interface.Get(ctx, key, opts, out)
	}
	r.Answered = true
	if r.At != nil {
		r.Err = a.historian.Past(ctx, key, *r.At, out)
		return r.answer(key)
	}
	r.Page, r.Err = a.historian.History(ctx, key, r.Before, r.Limit)
	if r.Err == nil {
		for _, revision := range r.Page.Revisions {
			if revision.Object != nil {
				reflect.ValueOf(out).Elem().Set(reflect.ValueOf(revision.Object.DeepCopyObject()).Elem())
				return nil
			}
		}
	}
	return storage.NewKeyNotFoundError(key, 0) // the caller does not read it
}

// answer returns the error for the handlers, which end the request with it. The caller reads Err instead.
func (r *Request) answer(key string) error {
	if r.Err != nil {
		return storage.NewKeyNotFoundError(key, 0)
	}
	return nil
}

// GetList implements storage.Interface.
func (a answering) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	r := requestOf(ctx)
	if r == nil {
		return a.Interface.GetList(ctx, key, opts, list)
	}
	r.Answered = true
	if r.At != nil {
		revision, err := a.historian.RevisionAt(ctx, *r.At)
		var notKept *store.NotKeptError
		if errors.As(err, &notKept) {
			// Watches do not need it, but the kind may keep it.
			if r.Err = a.historian.PastList(ctx, key, *r.At, opts.Predicate, list); r.Err != nil {
				return r.answer(key)
			}
			return ordered.FromList(ctx, a.Versioner(), list)
		}
		if r.Err = err; err != nil {
			return r.answer(key)
		}
		opts.ResourceVersion, opts.ResourceVersionMatch = strconv.FormatUint(revision, 10), metav1.ResourceVersionMatchExact
		return a.Interface.GetList(ctx, key, opts, list)
	}
	r.Page, r.Err = a.historian.Deletions(ctx, key, r.Before, r.Limit)
	return r.answer(key)
}
