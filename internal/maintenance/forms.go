package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/convert"
	"github.com/annexapi/annex/store"
)

// FormCount is how many objects of a resource are stored in one form.
type FormCount struct {
	// Version is the version, with its group if that is not the resource's. It and
	// MediaType are empty for what cannot be decrypted, or is no object.
	Version string `json:"version"`
	// Kind is what the objects say they are, if that is no kind of the resource.
	Kind      string `json:"kind,omitempty"`
	MediaType string `json:"mediaType"`
	Objects   int64  `json:"objects"`
	// Old says that objects are not written like that any more.
	Old bool `json:"old,omitempty"`
	// Undecodable says that this server does not have the version, or not in this
	// media type.
	Undecodable bool `json:"undecodable,omitempty"`
}

// String is the form in words.
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

// Forms says in which forms the objects of a resource are stored, by version.
type Forms struct {
	Resource schema.GroupResource
	Counts   []FormCount
}

// forms counts the objects of one resource. What an object is stored as stands at the
// front of it, so that it need not be decoded; a hundred thousand take about 0.1 s. Counting
// when somebody asks costs writers nothing, and holds for every backend and for what
// other replicas write. What is encrypted is decrypted.
type forms struct {
	resource Resource
	counts   map[convert.Form]int64
}

func newForms(resource Resource) *forms {
	return &forms{resource: resource, counts: map[convert.Form]int64{}}
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
	form, _ := convert.FormOf(data)
	f.counts[form]++
}

// list returns what has been counted.
func (f *forms) list() []FormCount {
	list := []FormCount{}
	for form, objects := range f.counts {
		count := FormCount{MediaType: form.MediaType, Objects: objects}
		if form.MediaType != "" {
			count.Version = form.Version
			if form.Group != f.resource.Resource.Group {
				count.Version = form.GroupVersion().String()
			}
			count.Undecodable = f.resource.Decodes != nil && !f.resource.Decodes(form)
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

func (f *forms) of(ctx context.Context, values iter.Seq2[store.Value, error]) ([]FormCount, error) {
	for v, err := range values {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		f.add(ctx, v)
	}
	return f.list(), nil
}

// Forms counts the objects of every resource by the forms that they are stored in. A
// storage that does not give what is stored has none.
func (l *Local) Forms(ctx context.Context) ([]Forms, error) {
	var all []Forms
	for _, r := range l.Resources {
		at := slices.IndexFunc(l.Storages, func(s Storage) bool { return s.Name == r.In })
		if at < 0 {
			continue
		}
		reader, ok := l.Storages[at].Backend.(store.ValueReader)
		if !ok {
			continue
		}
		counts, err := newForms(r).of(ctx, reader.Values(ctx, r.Prefix))
		if err != nil {
			return nil, fmt.Errorf("count stored %s: %w", r.Resource, err)
		}
		all = append(all, Forms{r.Resource, counts})
	}
	return all, nil
}
