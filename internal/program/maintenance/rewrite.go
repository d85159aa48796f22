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

// Rewriting is a resource whose objects are to be stored as they would be if they
// were written now.
type Rewriting struct {
	Resource schema.GroupResource
	// Storage is the resource's, Values what it has stored.
	Storage storage.Interface
	Values  func(ctx context.Context) iter.Seq2[store.Value, error]
	// New returns an empty object.
	New func() runtime.Object
	// Key is what values are encrypted with now.
	Key encryption.Key
	// Progress is told the figures so far, about once in a second; optional.
	Progress func(Rewritten)
	// As is what else is known of the resource; optional.
	As Resource
}

// Rewritten says what became of a resource's objects.
type Rewritten struct {
	// Resource is the resource with its group.
	Resource string `json:"resource"`
	// LookedAt is how many objects there were: Written anew, Current already, Gone
	// before their turn came, or Failed.
	LookedAt int `json:"lookedAt"`
	Written  int `json:"written"`
	Current  int `json:"current"`
	Gone     int `json:"gone,omitempty"`
	Failed   int `json:"failed,omitempty"`
	// Failures are the first of those that failed.
	Failures []Failure `json:"failures,omitempty"`
	// Keys say with what the objects are encrypted that are there afterwards.
	Keys []KeyCount `json:"keys,omitempty"`
	// StoredAs says in which versions and media types they are then.
	StoredAs []FormCount `json:"storedAs,omitempty"`
	// Unfinished says that these are the figures so far, and others follow.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Failure is an object that could not be read or written.
type Failure struct {
	Key   string `json:"key"`
	Error string `json:"error"`
}

// KeyCount is how many objects are encrypted with a key. Provider is identity for
// those in plain text.
type KeyCount struct {
	Provider string `json:"provider"`
	Name     string `json:"name,omitempty"`
	Objects  int    `json:"objects"`
	// Old says that it is not the key that objects are written with now.
	Old bool `json:"old,omitempty"`
}

// Old is how many objects are still encrypted with something else than they would
// be now: those that failed, and what others wrote meanwhile who have not heard of
// the key yet.
func (r *Rewritten) Old() int {
	old := 0
	for _, k := range r.Keys {
		if k.Old {
			old += k.Objects
		}
	}
	return old
}

// OldForms is how many objects are still stored in another form than they would be
// now.
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
	// rewriters is how many objects are written at once, for them to share syncs.
	rewriters = 16
	// mostFailures is how many failures of a resource are told with names.
	mostFailures = 100
)

// Rewrite stores every object anew that is not stored as it would be now: in the
// current version and media type, encrypted with the current key. Nothing else
// changes but the resource version: no admission, validation or strategy sees it,
// and uid, generation and managed fields stay. Objects that are stored so already
// are not written. It works beside other writers, may be interrupted at any time,
// and does the rest when it is called again.
//
// Objects that cannot be read or written are counted. An error means that it
// ended early; what it reports then is what it has done so far.
func Rewrite(ctx context.Context, r Rewriting) (Rewritten, error) {
	w := &rewriter{Rewriting: r, report: Rewritten{Resource: r.Resource.String()}}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	values := make(chan store.Value)
	defer w.tell(ctx)()
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

// tell reports the progress until the function that it returns is called.
func (w *rewriter) tell(ctx context.Context) (end func()) {
	if w.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
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
	return func() { cancel(); telling.Wait() }
}

type rewriter struct {
	Rewriting

	mu     sync.Mutex
	report Rewritten
}

// feed hands out all values until the context ends.
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

// rewrite has one object stored as it would be now. An error is one that concerns
// the other objects, too.
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

// unchanged is an update that changes nothing. The time that an object has left has
// to be told, or some storages forget it.
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

// look counts what the objects are encrypted with, and in which forms they are.
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

// ErrUnreadable is matched by the error of a rewrite that the encryption's
// configuration has no way to read everything for.
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

// rewrite is Rewrite for a resource in one of the storages to work on. What is opened for it is
// closed if it is its own.
func (l *Local) rewrite(ctx context.Context, resource Resource, own bool, report func(Rewritten)) error {
	at := slices.IndexFunc(l.Storages, func(s Storage) bool { return s.Name == resource.In })
	if at < 0 {
		return nil
	}
	reader, ok := l.Storages[at].Backend.(store.ValueReader)
	if !ok {
		return fmt.Errorf("storage %s does not tell what is stored", resource.In)
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

// rewriteLine is a line of the answer about a rewrite. The last one, and only that,
// has Ended.
type rewriteLine struct {
	Rewritten *Rewritten `json:"rewritten,omitempty"`
	Ended     *ended     `json:"ended,omitempty"`
}

// ended says how a rewrite ended.
type ended struct {
	Error string `json:"error,omitempty"`
	// Unreadable says that the error matches ErrUnreadable.
	Unreadable bool `json:"unreadable,omitempty"`
}

// unreadable is an error of the server's that matches ErrUnreadable.
type unreadable struct{ error }

func (unreadable) Is(target error) bool { return target == ErrUnreadable }

func serveRewrite(l *Local, w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	encoder, last := json.NewEncoder(w), ended{}
	err := l.Rewrite(r.Context(), r.URL.Query()["resource"], func(done Rewritten) {
		_ = encoder.Encode(rewriteLine{Rewritten: &done}) // that it fails shows below
		_ = http.NewResponseController(w).Flush()         // or it is sent at the end
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
			return fmt.Errorf("the server broke off: %w; run it again to do the rest", err)
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
