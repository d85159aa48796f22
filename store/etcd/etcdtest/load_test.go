package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// load writes to replicas of a server, any of which may be down at any time, and keeps the state that must exist
// afterwards. Each object except the counters has one writer, so that its next state is certain as soon as the last
// one is.
type load struct {
	t        testing.TB
	replicas []dynamic.ResourceInterface

	acknowledged atomic.Int64 // writes
	lists        atomic.Int64
	increments   atomic.Int64

	mu sync.Mutex
	// versions are the resource versions of acknowledged writes, by object.
	versions map[string][]int64
	// latest is the state after the acknowledged writes; nil means deleted.
	latest map[string]*state
	// deleting holds the objects that their writer has begun to delete.
	deleting map[string]bool
	// refusals counts the errors that clients saw, by kind.
	refusals map[string]int
	// wrong lists the violations.
	wrong []string
}

// state is the known state of an object.
type state struct {
	sequence int
	version  int64
}

// sequenceOption is the option of a widget in which its writer counts its writes.
const sequenceOption = "sequence"

// requestTimeout is the time that a client waits for a response. A connection that is cut does not end by itself.
const requestTimeout = 3 * time.Second

func newLoad(t testing.TB, configs []*rest.Config) *load {
	t.Helper()
	l := &load{t: t, versions: map[string][]int64{}, latest: map[string]*state{}, deleting: map[string]bool{}, refusals: map[string]int{}}
	for _, config := range configs {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		l.replicas = append(l.replicas, client.Resource(widgets).Namespace("default"))
	}
	return l
}

func (l *load) any() dynamic.ResourceInterface { return l.replicas[rand.IntN(len(l.replicas))] }

func (l *load) mistake(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// retryable counts an error and reports whether a client may retry after it. All other errors are violations.
func (l *load) retryable(what string, err error) bool {
	if errors.Is(err, context.Canceled) {
		return true // by the end of the load
	}
	kind := errorKind(err)
	l.mu.Lock()
	l.refusals[kind]++
	l.mu.Unlock()
	if kind == "" {
		l.mistake("%s: %v", what, err)
	}
	return kind != ""
}

// errorKind returns "" for errors that a client cannot handle by retrying.
func errorKind(err error) string {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		switch code := status.Status().Code; code {
		case http.StatusConflict,
			http.StatusTooManyRequests,
			http.StatusInternalServerError,
			http.StatusServiceUnavailable,
			http.StatusGatewayTimeout:
			return strconv.Itoa(int(code))
		}
		return ""
	}
	network, dial := net.Error(nil), (*url.Error)(nil)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.As(err, &network), errors.As(err, &dial), utilnet.IsHTTP2ConnectionLost(err):
		return "connection"
	}
	return ""
}

// until retries until it is done or the context has ended.
func (l *load) until(ctx context.Context, done func(ctx context.Context, replica dynamic.ResourceInterface) bool) bool {
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 100*time.Millisecond) {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		finished := done(attempt, l.any())
		cancel()
		if finished {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return false
}

// store records a write that was acknowledged, or that a read has revealed.
func (l *load) store(object *unstructured.Unstructured) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, version := object.GetName(), versionOf(object)
	if versions := l.versions[name]; len(versions) > 0 && versions[len(versions)-1] >= version {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: version %d after %d", name, version, versions[len(versions)-1]))
	}
	l.versions[name] = append(l.versions[name], version)
	l.latest[name] = &state{sequence: sequenceOf(object), version: version}
	l.acknowledged.Add(1)
}

func (l *load) remove(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest[name] = nil
	l.acknowledged.Add(1)
}

// write is one of the writers: it creates objects, changes them, and deletes some, until stop is closed. It finishes
// a sequence that it has begun, unless the context ends.
func (l *load) write(ctx context.Context, stop <-chan struct{}, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-stop:
			return
		default:
		}
		name := fmt.Sprintf("w%d-%d", writer, n)
		object, certain := l.create(ctx, name)
		for range 3 {
			if object == nil {
				return
			}
			object = l.update(ctx, object)
			l.increment(ctx, writer, n%counters)
		}
		// An unanswered attempt to create may still arrive, after the deletion.
		if n%3 == 0 && certain && object != nil {
			l.delete(ctx, name)
		}
	}
}

func (l *load) create(ctx context.Context, name string) (created *unstructured.Unstructured, certain bool) {
	certain = true
	l.until(ctx, func(ctx context.Context, replica dynamic.ResourceInterface) bool {
		object := newWidget(name)
		setOption(object, sequenceOption, "1")
		got, err := replica.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) && !certain {
			got, err = replica.Get(ctx, name, metav1.GetOptions{})
		}
		if err != nil {
			if apierrors.IsAlreadyExists(err) && certain {
				l.mistake("create %s, which no replica has created: %v", name, err)
			}
			certain = false
			return !l.retryable("create "+name, err)
		}
		created = got
		l.store(got)
		return true
	})
	return created, certain
}

// update raises the sequence of an object that has no other writer.
func (l *load) update(ctx context.Context, object *unstructured.Unstructured) (updated *unstructured.Unstructured) {
	next, certain := sequenceOf(object)+1, true
	l.until(ctx, func(ctx context.Context, replica dynamic.ResourceInterface) bool {
		if !certain { // the last attempt may have happened
			got, err := replica.Get(ctx, object.GetName(), metav1.GetOptions{})
			if err != nil {
				return !l.retryable("get "+object.GetName(), err)
			}
			switch sequenceOf(got) {
			case next:
				updated = got
				l.store(got)
				return true
			case next - 1:
			default:
				l.mistake("%s is %d, should be %d or %d", object.GetName(), sequenceOf(got), next-1, next)
				return true
			}
			object = got
		}
		changed := object.DeepCopy()
		setOption(changed, sequenceOption, strconv.Itoa(next))
		got, err := replica.Update(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			if apierrors.IsConflict(err) && certain {
				l.mistake("a conflict over %s, which has one writer: %v", object.GetName(), err)
			}
			certain = false
			return !l.retryable("update "+object.GetName(), err)
		}
		updated = got
		l.store(got)
		return true
	})
	return updated
}

func (l *load) delete(ctx context.Context, name string) {
	l.mu.Lock()
	l.deleting[name] = true
	l.mu.Unlock()
	certain := true
	deleted := l.until(ctx, func(ctx context.Context, replica dynamic.ResourceInterface) bool {
		err := replica.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) && !certain {
			return true
		}
		if err != nil {
			certain = false
			return !l.retryable("delete "+name, err)
		}
		return true
	})
	if deleted {
		l.remove(name)
	}
}

// Counters are objects that all writers increment. Each writer has a number of its own in them, which reveals whether
// an unanswered attempt has happened; the total reveals lost increments.
const (
	counters    = 3
	totalOption = "total"
)

func counterName(n int) string { return fmt.Sprintf("counter-%d", n) }

func (l *load) increment(ctx context.Context, writer, counter int) {
	name, own := counterName(counter), fmt.Sprintf("writer-%d", writer)
	before := -1
	l.until(ctx, func(ctx context.Context, replica dynamic.ResourceInterface) bool {
		got, err := replica.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return !l.retryable("get "+name, err)
		}
		mine := intOption(got, own)
		if before < 0 {
			before = mine
		}
		switch mine {
		case before + 1: // an earlier attempt has happened
			l.increments.Add(1)
			return true
		case before:
		default:
			l.mistake("%s of %s is %d, was %d before one increment", own, name, mine, before)
			return true
		}
		setOption(got, own, strconv.Itoa(mine+1))
		setOption(got, totalOption, strconv.Itoa(intOption(got, totalOption)+1))
		got, err = replica.Update(ctx, got, metav1.UpdateOptions{})
		if err != nil {
			return !l.retryable("update "+name, err)
		}
		l.increments.Add(1)
		l.acknowledged.Add(1)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.versions[name] = append(l.versions[name], versionOf(got))
		return true
	})
}

// known returns the state after the acknowledged writes.
func (l *load) known() map[string]*state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.latest)
}

// read lists the objects again and again: everything acknowledged before a list began must be in it, at least as new.
func (l *load) read(ctx context.Context) {
	for ctx.Err() == nil {
		before := l.known()
		l.until(ctx, func(ctx context.Context, replica dynamic.ResourceInterface) bool {
			list, err := replica.List(ctx, metav1.ListOptions{})
			if err != nil {
				return !l.retryable("list", err)
			}
			l.lists.Add(1)
			l.compare(before, list.Items, "a list")
			return true
		})
		read := 0
		for name := range before { // in any order
			if read++; read > 20 {
				break
			}
			l.get(ctx, name, l.known()[name])
		}
	}
}

func (l *load) get(ctx context.Context, name string, known *state) {
	l.until(ctx, func(ctx context.Context, replica dynamic.ResourceInterface) bool {
		got, err := replica.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			if known != nil && !l.isDeleted(name) {
				l.mistake("%s exists, but is not found", name)
			}
			return true
		case err != nil:
			return !l.retryable("get "+name, err)
		case known == nil:
			l.mistake("%s was deleted, but is there", name)
		case versionOf(got) < known.version:
			l.mistake("%s is at version %d, was at %d", name, versionOf(got), known.version)
		}
		return true
	})
}

// isDeleted reports whether a deletion may have happened meanwhile.
func (l *load) isDeleted(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deleting[name]
}

// compare finds objects that are missing from a list or older than their state known before.
func (l *load) compare(before map[string]*state, items []unstructured.Unstructured, where string) (lost int) {
	there := map[string]int64{}
	for _, item := range items {
		there[item.GetName()] = versionOf(&item)
	}
	for name, known := range before {
		version, found := there[name]
		switch {
		case known == nil && found:
			l.mistake("%s was deleted, but is in %s", name, where)
		case known == nil:
		case !found && !l.isDeleted(name), found && version < known.version:
			l.mistake("%s was acknowledged at version %d, but %s has it at %d (0 is not at all)", name, known.version, where, version)
			lost++
		}
	}
	return lost
}

func (l *load) refused() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(l.refusals)) {
		all = append(all, fmt.Sprintf("%s: %d", kind, l.refusals[kind]))
	}
	return strings.Join(all, ", ")
}

func setOption(object *unstructured.Unstructured, name, value string) {
	if err := unstructured.SetNestedField(object.Object, value, "spec", "options", name); err != nil {
		panic(err) // the object is not a widget
	}
}

func intOption(object *unstructured.Unstructured, name string) int {
	text, _, _ := unstructured.NestedString(object.Object, "spec", "options", name)
	n, _ := strconv.Atoi(text) // a missing option is 0
	return n
}

func sequenceOf(object *unstructured.Unstructured) int { return intOption(object, sequenceOption) }

func versionOf(object metav1.Object) int64 {
	version, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err) // no comparison of versions can continue
	}
	return version
}
