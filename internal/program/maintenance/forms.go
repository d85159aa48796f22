package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/store"
)

// FormCount counts the objects of a resource that are stored in one form.
type FormCount struct {
	// Version is the stored version, with its group if that differs from the resource's. Version and MediaType are
	// empty for values that cannot be decrypted or are no objects.
	Version string `json:"version"`
	// Kind is the stored kind, if the resource has no such kind.
	Kind      string `json:"kind,omitempty"`
	MediaType string `json:"mediaType"`
	Objects   int64  `json:"objects"`
	// Old is set if the server no longer writes this form.
	Old bool `json:"old,omitempty"`
	// Undecodable is set if this server cannot decode the version in this media type.
	Undecodable bool `json:"undecodable,omitempty"`
	// Problem names an object that cannot be decoded although the server has its form, with the reason: a field may
	// have changed its type. Only a sample is decoded: the first objects, and then ever fewer.
	Problem string `json:"problem,omitempty"`
}

// String returns the form for display.
func (c FormCount) String() string {
	if c.MediaType == "" {
		return "unreadable"
	}
	text := c.Version
	if c.Kind != "" {
		text += " " + c.Kind
	}
	return text + ", " + c.MediaType
}

// Forms counts the objects of a resource by stored form.
type Forms struct {
	Resource schema.GroupResource
	Counts   []FormCount
}

// forms counts the objects of one resource. The form is visible at the start of a value, so objects need not be
// decoded; a hundred thousand objects take about 0.1 s. Counting on demand costs writers nothing, and it works with
// every backend and with objects that other replicas write. Encrypted values are decrypted.
type forms struct {
	resource Resource
	stored   convert.FormReader
	counts   map[convert.Form]int64
	problems map[convert.Form]string
}

func newForms(resource Resource) *forms {
	return &forms{resource: resource, counts: map[convert.Form]int64{}, problems: map[convert.Form]string{}}
}

func (f *forms) add(ctx context.Context, v store.Value) {
	data := v.Data
	if f.resource.Transformer != nil {
		plain, _, err := f.resource.Transformer.TransformFromStorage(ctx, data, v.Context)
		if err != nil {
			plain = nil
		}
		data = plain
	}
	form, _ := f.stored.FormOf(data)
	f.counts[form]++
	if n := f.counts[form]; n&(n-1) == 0 && form.MediaType != "" && f.problems[form] == "" && f.decodes(form) {
		if err := f.resource.decode(data); err != nil {
			f.problems[form] = fmt.Sprintf("%s: %v", v.Key, err)
		}
	}
}

// decodes reports whether the server can decode a form.
func (f *forms) decodes(form convert.Form) bool {
	return f.resource.Decodes == nil || f.resource.Decodes(form)
}

// decode tries to decode the output of a codec. It runs users' conversions and defaults, and turns their panics
// into errors.
func (r Resource) decode(data []byte) (err error) {
	if r.Codec == nil || r.New == nil {
		return nil
	}
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	_, _, err = r.Codec.Decode(data, nil, r.New())
	return err
}

// list returns the counts, sorted.
func (f *forms) list() []FormCount {
	list := []FormCount{}
	for form, objects := range f.counts {
		count := FormCount{MediaType: form.MediaType, Objects: objects}
		if form.MediaType != "" {
			count.Version = form.Version
			if form.Group != f.resource.Resource.Group {
				count.Version = form.GroupVersion().String()
			}
			count.Undecodable, count.Problem = !f.decodes(form), f.problems[form]
			if count.Undecodable && form.Kind != f.resource.Form.Kind {
				count.Kind = form.Kind
			}
			count.Old = form != f.resource.Form
		}
		list = append(list, count)
	}
	slices.SortFunc(list, func(a, b FormCount) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.MediaType, b.MediaType))
	})
	return list
}

// Unserved counts objects that belong to no resource of the server, because their kind has been removed or renamed.
type Unserved struct {
	Storage string
	// Prefix is the prefix of the objects' keys.
	Prefix  string
	Objects int64
}

// UnreadableDefinition is the error about a stored CustomResourceDefinition that cannot be decrypted or decoded.
type UnreadableDefinition struct {
	// Key is the definition's key in the storage.
	Key string
	Err error
}

func (u *UnreadableDefinition) Error() string {
	return fmt.Sprintf("the definition %s cannot be read, so its kind is unknown: %v", u.Key, u.Err)
}

func (u *UnreadableDefinition) Unwrap() error { return u.Err }

// Forms counts the objects of every resource by stored form, but for those of custom resources, and the objects that belong to no
// resource. It skips storages whose stored values cannot be read. With an error that is an UnreadableDefinition, the results are
// complete, but for objects of the unknown kind, which seem to belong to no resource.
func (l *Local) Forms(ctx context.Context) (all []Forms, unserved []Unserved, err error) {
	custom, unreadable := l.custom(ctx)
	if unreadable != nil && !errors.As(unreadable, new(*UnreadableDefinition)) {
		return nil, nil, unreadable
	}
	for _, s := range l.Storages {
		reader, ok := s.Backend.(store.ValueReader)
		if !ok {
			continue
		}
		if unserved, err = l.formsIn(ctx, s.Name, reader, custom, &all, unserved); err != nil {
			return nil, nil, fmt.Errorf("count the objects in %s: %w", s.Name, err)
		}
	}
	return all, unserved, unreadable
}

// unordered is a storage that yields values faster if their order does not matter. Their data is valid until the next value.
type unordered interface {
	ValuesInAnyOrder(ctx context.Context, prefix string) iter.Seq2[store.Value, error]
}

func (l *Local) formsIn(
	ctx context.Context,
	storage string,
	reader store.ValueReader,
	custom []Resource,
	all *[]Forms,
	unserved []Unserved,
) ([]Unserved, error) {
	counts := map[schema.GroupResource]*forms{}
	for _, r := range l.Resources {
		if r.In == storage {
			counts[r.Resource] = newForms(r)
		}
	}
	resources, customs := ownersOf(l.Resources), ownersOf(custom)
	values := reader.Values
	if quick, ok := reader.(unordered); ok {
		values = quick.ValuesInAnyOrder
	}
	for v, err := range values(ctx, "") {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		if r := resources.of(v.Key); r != nil && counts[r.Resource] != nil {
			counts[r.Resource].add(ctx, v)
			continue
		}
		if customs.of(v.Key) != nil {
			continue
		}
		prefix := unknownPrefix(v.Key)
		at := slices.IndexFunc(unserved, func(u Unserved) bool { return u.Storage == storage && u.Prefix == prefix })
		if at < 0 {
			at, unserved = len(unserved), append(unserved, Unserved{Storage: storage, Prefix: prefix})
		}
		unserved[at].Objects++
	}
	for _, r := range l.Resources {
		if counted := counts[r.Resource]; counted != nil {
			*all = append(*all, Forms{r.Resource, counted.list()})
		}
	}
	return unserved, nil
}
