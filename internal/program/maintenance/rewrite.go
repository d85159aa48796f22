package maintenance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/store"
)

// Rewriting describes a rewrite of a resource's objects in their current form.
type Rewriting struct {
	Resource schema.GroupResource
	// Storage is the resource's storage; Values yields its stored values.
	Storage storage.Interface
	Values  func(ctx context.Context) iter.Seq2[store.Value, error]
	// New returns an empty object.
	New func() runtime.Object
	// Key is the current encryption key.
	Key encryption.Key
	// Progress is called with the counts so far, about once a second; optional.
	Progress func(Rewritten)
	// As is the description of the resource, for decoding and counting forms; optional.
	As Resource
}

// Rewritten is the result of a rewrite of one resource.
type Rewritten struct {
	// Resource is the resource with its group.
	Resource string `json:"resource"`
	// LookedAt is the number of objects seen. Each of them counts as Written, as Current (stored in its current
	// form already), as Gone (deleted before its turn) or as Failed.
	LookedAt int `json:"lookedAt"`
	Written  int `json:"written"`
	Current  int `json:"current"`
	Gone     int `json:"gone,omitempty"`
	Failed   int `json:"failed,omitempty"`
	// Failures are the first failures, at most mostFailures.
	Failures []Failure `json:"failures,omitempty"`
	// Keys counts the objects by encryption key after the rewrite.
	Keys []KeyCount `json:"keys,omitempty"`
	// StoredAs counts the objects by version and media type after the rewrite.
	StoredAs []FormCount `json:"storedAs,omitempty"`
	// Unfinished is set in intermediate results.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Failure is an object that could not be read or written.
type Failure struct {
	Key   string `json:"key"`
	Error string `json:"error"`
}

// KeyCount is the number of objects that are encrypted with a key. The Provider of objects in plain text is
// identity.
type KeyCount struct {
	Provider string `json:"provider"`
	Name     string `json:"name,omitempty"`
	Objects  int    `json:"objects"`
	// Old is set if it is not the key for new writes.
	Old bool `json:"old,omitempty"`
}

// Old returns the number of objects that are not encrypted with the current key: the failed ones, and objects
// written meanwhile by replicas that have not loaded the key yet.
func (r *Rewritten) Old() int {
	old := 0
	for _, k := range r.Keys {
		if k.Old {
			old += k.Objects
		}
	}
	return old
}

// OldForms returns the number of objects that are not stored in the current form.
func (r *Rewritten) OldForms() int64 {
	var old int64
	for _, c := range r.StoredAs {
		if c.Old && c.MediaType != "" {
			old += c.Objects
		}
	}
	return old
}

const (
	// rewriters is the number of concurrent writes, which share syncs.
	rewriters = 16
	// mostFailures is the number of failures of a resource that are reported with keys.
	mostFailures = 100
)

// Rewrite writes every object whose stored form is not the current one: the current version and media type,
// encrypted with the current key. Only the resource version changes. No admission, validation or strategy runs, and
// uid, generation and managed fields stay. Objects in their current form are not written. Rewrite works beside
// other writers. It may be interrupted at any time; the next call does the rest.
//
// Objects that cannot be read or written are counted as failed. If Rewrite returns an error, it ended early and
// returns the result so far.
func Rewrite(ctx context.Context, r Rewriting) (Rewritten, error) {
	w := &rewriter{Rewriting: r, report: Rewritten{Resource: r.Resource.String()}}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	values := make(chan store.Value)
	defer w.reportProgress(ctx)()
	var working sync.WaitGroup
	for range rewriters {
		working.Go(func() {
			for v := range values {
				if err := w.rewrite(ctx, v); err != nil {
					stop(err)
				}
			}
		})
	}
	err := w.feed(ctx, values)
	close(values)
	working.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err == nil {
		err = w.look(ctx)
	}
	if err != nil {
		err = fmt.Errorf("rewrite %s: %w", r.Resource, err)
	}
	slices.SortFunc(w.report.Failures, func(a, b Failure) int { return cmp.Compare(a.Key, b.Key) })
	return w.report, err
}

// The progress is reported until the returned function is called.
func (w *rewriter) reportProgress(ctx context.Context) (end func()) {
	if w.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var reporting sync.WaitGroup
	reporting.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			w.mu.Lock()
			sofar := w.report
			w.mu.Unlock()
			sofar.Unfinished, sofar.Failures = true, nil
			w.Progress(sofar)
		}
	})
	return func() { cancel(); reporting.Wait() }
}

type rewriter struct {
	Rewriting

	mu     sync.Mutex
	report Rewritten
}

// feed sends all values until the context ends.
func (w *rewriter) feed(ctx context.Context, values chan<- store.Value) error {
	for v, err := range w.Values(ctx) {
		if err != nil {
			return err
		}
		select {
		case values <- v:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// rewrite writes one object in its current form. It counts an error of this object, and returns only errors that
// affect the other objects, too.
func (w *rewriter) rewrite(ctx context.Context, v store.Value) error {
	out := w.New()
	err := w.Storage.GuaranteedUpdate(ctx, v.Key, out, false, nil, unchanged, nil)
	revision := uint64(0)
	if err == nil {
		revision, err = w.Storage.Versioner().ObjectResourceVersion(out)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.LookedAt++
	switch {
	case storage.IsNotFound(err):
		w.report.Gone++
	case apierrors.IsServiceUnavailable(err):
		w.fail(v.Key, err)
		return err
	case err != nil:
		w.fail(v.Key, err)
	case revision == v.Revision:
		w.report.Current++
	default:
		w.report.Written++
	}
	return nil
}

// unchanged is an update that changes nothing. It passes on the remaining TTL, which some storages would otherwise
// drop.
func unchanged(object runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
	if meta.TTL <= 0 {
		return object, nil, nil
	}
	left := uint64(meta.TTL)
	return object, &left, nil
}

func (w *rewriter) fail(key string, err error) {
	if w.report.Failed++; len(w.report.Failures) < mostFailures {
		w.report.Failures = append(w.report.Failures, Failure{key, err.Error()})
	}
}

// look counts the objects by encryption key and by stored form.
func (w *rewriter) look(ctx context.Context) error {
	counts, forms := map[encryption.Key]int{}, newForms(w.As)
	for v, err := range w.Values(ctx) {
		if err != nil {
			return err
		}
		envelope := encryption.ParseEnvelope(v.Data)
		counts[encryption.Key{Provider: envelope.Provider, Name: envelope.Key}]++
		if w.As.Form.MediaType != "" {
			forms.add(ctx, v)
		}
	}
	now := w.Key
	if now.Provider == "" {
		now.Provider = "identity"
	}
	for _, key := range slices.SortedFunc(maps.Keys(counts), func(a, b encryption.Key) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Name, b.Name))
	}) {
		w.report.Keys = append(w.report.Keys, KeyCount{Provider: key.Provider, Name: key.Name, Objects: counts[key], Old: key != now})
	}
	if w.As.Form.MediaType != "" {
		w.report.StoredAs = forms.list()
	}
	return nil
}

// ErrUnreadable matches the error of a rewrite whose encryption configuration cannot decrypt all stored values.
var ErrUnreadable = encryption.ErrUnreadable

// Rewrite implements Tools.
func (l *Local) Rewrite(ctx context.Context, names []string, report func(Rewritten)) error {
	if l.Readable != nil {
		if err := l.Readable(ctx); err != nil {
			return err
		}
	}
	custom, err := l.custom(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(slices.Concat(l.Resources, custom), func(r Resource) bool { return r.Resource.String() == name }) {
			return fmt.Errorf("this server stores no %s", name)
		}
	}
	rewrite := func(resource Resource, own bool) error {
		if len(names) > 0 && !slices.Contains(names, resource.Resource.String()) {
			return nil
		}
		return l.rewrite(ctx, resource, own, report)
	}
	for _, resource := range l.Resources {
		if err := rewrite(resource, false); err != nil {
			return err
		}
	}
	for _, resource := range custom {
		if err := rewrite(resource, true); err != nil {
			return err
		}
	}
	return nil
}

// rewrite calls Rewrite for a resource if its storage is among the tools' storages. If own is set, the opened
// storage belongs to this call, and is closed at the end.
func (l *Local) rewrite(ctx context.Context, resource Resource, own bool, report func(Rewritten)) error {
	at := slices.IndexFunc(l.Storages, func(s Storage) bool { return s.Name == resource.In })
	if at < 0 {
		return nil
	}
	reader, ok := l.Storages[at].Backend.(store.ValueReader)
	if !ok {
		return fmt.Errorf("storage %s does not list its objects", resource.In)
	}
	opened, err := resource.Open()
	if err != nil {
		return err
	}
	if view, ok := opened.(store.Closer); ok && own {
		defer view.Close()
	}
	r := Rewriting{
		Resource: resource.Resource,
		Storage:  opened,
		Values:   func(ctx context.Context) iter.Seq2[store.Value, error] { return reader.Values(ctx, resource.Prefix) },
		New:      resource.New,
		As:       resource,
		Progress: report,
	}
	if l.Key != nil {
		r.Key = l.Key(resource.Resource)
	}
	done, err := Rewrite(ctx, r)
	report(done)
	return err
}

// rewriteLine is a line of the response to a rewrite. Only the last line has Ended.
type rewriteLine struct {
	Rewritten *Rewritten `json:"rewritten,omitempty"`
	Ended     *ended     `json:"ended,omitempty"`
}

// ended is the result of a rewrite as a whole.
type ended struct {
	Error string `json:"error,omitempty"`
	// Unreadable is set if the error matches ErrUnreadable.
	Unreadable bool `json:"unreadable,omitempty"`
}

// unreadable is a server's error that matches ErrUnreadable.
type unreadable struct{ error }

func (unreadable) Is(target error) bool { return target == ErrUnreadable }

func serveRewrite(l *Local, w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	encoder, last := json.NewEncoder(w), ended{}
	err := l.Rewrite(r.Context(), r.URL.Query()["resource"], func(done Rewritten) {
		_ = encoder.Encode(rewriteLine{Rewritten: &done}) // a failure shows at the next write
		_ = http.NewResponseController(w).Flush()         // on failure it is sent at the end
	})
	if err != nil {
		last.Error, last.Unreadable = err.Error(), errors.Is(err, ErrUnreadable)
	}
	return encoder.Encode(rewriteLine{Ended: &last})
}

// Rewrite implements Tools.
func (r *Remote) Rewrite(ctx context.Context, names []string, report func(Rewritten)) error {
	body, err := r.do(ctx, http.MethodPost, "rewrite", url.Values{"resource": names})
	if err != nil {
		return err
	}
	defer body.Close()
	for decoder := json.NewDecoder(body); ; {
		line := rewriteLine{}
		switch err := decoder.Decode(&line); {
		case err != nil:
			return fmt.Errorf("the server aborted the rewrite: %w; run storage rewrite again to continue", err)
		case line.Rewritten != nil:
			report(*line.Rewritten)
		case line.Ended != nil && line.Ended.Unreadable:
			return unreadable{errors.New(line.Ended.Error)}
		case line.Ended != nil && line.Ended.Error != "":
			return errors.New(line.Ended.Error)
		case line.Ended != nil:
			return nil
		}
	}
}
