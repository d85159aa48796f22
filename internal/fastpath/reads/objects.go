package reads

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/fastpath/direct"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/wire/stacks"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// Direct answers requests for one object, and lists as JSON, in the form in which it is served, without routing them, and lets
// other lists and watches remember what they encode. Requests for objects in another form, for one with options, or with an
// error to say, objects that are compressed, and answers that are recorded or traced are upstream's: nothing is written before
// it is known that it is none of that.
type Direct struct {
	// Recorded says that an audit may record answers, Traced that requests are traced.
	Recorded, Traced bool
	// Pretty says whether a client gets JSON to be read by people.
	Pretty func(*http.Request) bool
	// MinWatchTime is for how long watches last at least of which their client says nothing else; they last up to twice as
	// long.
	MinWatchTime time.Duration
	// Answers counts what is answered directly; nil is for nothing.
	Answers *direct.Answers

	of     map[schema.GroupVersionResource]*resource
	pools  *pools
	rooms  *sync.Pool // newRooms
	stacks *stacks.Pool
	ends   *endings
}

// resource is the main endpoint of a kind in one version.
type resource struct {
	schema.GroupVersionResource
	path      direct.Path
	storage   rest.Getter
	encoded   registry.EncodedGetter // nil if objects have to be encoded
	lister    registry.EncodedLister // nil if lists are upstream's
	listBegin func() []byte          // what lists as JSON begin with, up to their metadata; nil if they do not
	// listsMessages is true if lists are encoded as protobuf with their items at the end.
	listsMessages func() bool
	serializer    runtime.NegotiatedSerializer
	json          *form
	protobuf      *form // nil if there is none
	// stored is the version that the objects are stored in.
	stored schema.GroupVersionResource
	// converted says that objects are not what is stored: a conversion may have changed all of them, the metadata, too.
	converted bool
	table     rest.TableConvertor
	kind      schema.GroupVersionKind
	labels    runtime.ObjectConvertor
	// deprecated says that the Go type has a time after which upstream warns of the version.
	deprecated bool
	// messageSizing and partialSizing are for Listed.
	messageSizing, partialSizing verbatim.Sizing
}

// form is how an object is written in a media type.
type form struct {
	mediaType string
	*convert.ObjectEncoder
	events *eventForm // nil if watches are upstream's
}

// Add takes the main endpoint of a kind in a version, if this server stores its objects. It must not be called when
// the server answers.
func (d *Direct) Add(
	k *define.Kind,
	v *define.Version,
	storage rest.Storage,
	serializer runtime.NegotiatedSerializer,
	machinery *convert.Machinery,
) {
	getter, ok := storage.(rest.Getter)
	if primary := k.Primary(); !ok || primary.Source != nil || primary.CustomStorage != nil {
		return
	}
	r := &resource{
		GroupVersionResource: v.GroupVersion.WithResource(k.Resource),
		path:                 direct.PathOf(v.GroupVersion, !k.ClusterScoped),
		storage:              getter,
		serializer:           serializer,
		kind: v.GroupVersion.WithKind(
			k.Name,
		),
		labels:        machinery.Documents(),
		messageSizing: verbatim.NewSizing(),
		partialSizing: verbatim.NewSizing(),
	}
	r.stored = k.Stored().GroupVersion.WithResource(k.Resource)
	r.converted = k.Stored().Type != k.Hub().Type
	r.table, _ = storage.(rest.TableConvertor)
	r.encoded, _ = storage.(registry.EncodedGetter)
	r.lister, _ = storage.(registry.EncodedLister)
	r.deprecated = deprecation.IsDeprecated(v.New(), 0, 0)
	as := func(mediaType string) *form {
		info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), mediaType)
		if !ok {
			return nil
		}
		return &form{
			info.MediaType,
			machinery.ObjectEncoder(serializer.EncoderForVersion(info.Serializer, v.GroupVersion), k, v),
			newEventForm(serializer, info, v.GroupVersion),
		}
	}
	r.json = as(runtime.ContentTypeJSON)
	r.listBegin = sync.OnceValue(func() []byte { return beginOfLists(k.Hub().NewList(), serializer, v.GroupVersion) })
	r.listsMessages = sync.OnceValue(func() bool { return endsWithItems(k.Hub().NewList(), serializer, v.GroupVersion, k.Hub().New()) })
	if v.SpeaksProtobuf() {
		r.protobuf = as(runtime.ContentTypeProtobuf)
	}
	if d.of == nil {
		d.of = map[schema.GroupVersionResource]*resource{}
	}
	d.of[r.GroupVersionResource] = r
}

// Form is how objects of a resource are read as JSON by itself if they are stored like that; nil if they never are.
func (d *Direct) Form(resource schema.GroupVersionResource) *verbatim.Form {
	if r := d.of[resource]; r != nil && r.json != nil {
		return r.json.Form()
	}
	return nil
}

func (d *Direct) resource(info *request.RequestInfo) *resource {
	return d.of[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
}

// Wrap answers what can be answered directly, and gives the rest to the next handler.
func (d *Direct) Wrap(next http.Handler) http.Handler {
	d.pools, d.rooms, d.stacks, d.ends = newPools(), newRooms(), stacks.New(), &endings{}
	next = lists(next, d.items, d.Answers, d.rooms)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.answer(w, r) && !d.list(w, r) && !d.watch(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

func (d *Direct) items(info *request.RequestInfo) *Listed {
	read := d.resource(info)
	if read == nil || read.json.Form() == nil {
		return nil
	}
	listed := &Listed{
		Serializer:    read.serializer,
		Form:          read.json.Form(),
		RowForm:       d.Form(read.stored),
		Item:          read.json.AppendItem,
		Converted:     read.converted,
		Table:         read.table,
		MessageSizing: read.messageSizing,
		PartialSizing: read.partialSizing,
	}
	if listed.RowForm == nil { // it is not served
		listed.RowForm = listed.Form
	}
	if read.protobuf != nil && read.listsMessages() {
		listed.Message = read.protobuf.WriteObject
	}
	return listed
}

// answer says whether it has answered. If not, nothing has been written.
func (d *Direct) answer(w http.ResponseWriter, r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Method != http.MethodGet || info.Verb != "get" || info.Name == "" || info.Subresource != "" || r.URL.RawQuery != "" ||
		r.URL.RawPath != "" {
		return false
	}
	read := d.resource(info)
	if read == nil || read.deprecated || !read.path.Of(info) || d.Traced || d.Recorded && direct.RecordsAnswers(r.Context()) || d.Pretty(r) {
		return false
	}
	form := read.form(r.Header.Get("Accept"))
	if form == nil {
		return false
	}
	ctx := request.WithNamespace(r.Context(), info.Namespace)
	if stored := read.asStored(ctx, info.Name, form); !stored.IsZero() {
		buffer := d.pools.buffer()
		*buffer = stored.AppendWhole(*buffer)
		// A connection that has failed may still be writing it.
		if d.write(w, r, read, form, *buffer) == nil {
			d.pools.giveBack(buffer)
		}
		return true
	}
	body := read.body(ctx, info.Name, form)
	if body == nil || len(body) > direct.CompressedSize && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return false
	}
	// A client that has gone is no error of the server's, and there is no way left to report one.
	_ = d.write(w, r, read, form, body)
	return true
}

// write answers a request for an object.
func (d *Direct) write(w http.ResponseWriter, r *http.Request, read *resource, form *form, body []byte) error {
	d.Answers.Count("get")
	w.Header().Set("Content-Type", form.mediaType)
	w.WriteHeader(http.StatusOK)
	n, err := w.Write(body)
	direct.Monitor(r, http.MethodGet, read.GroupVersionResource, http.StatusOK, n)
	return err
}

// form returns how clients that accept some media types are answered; nil if upstream has to find out.
func (r *resource) form(accept string) *form {
	switch accept {
	case "", "*/*", runtime.ContentTypeJSON, runtime.ContentTypeJSON + ", */*":
		return r.json
	case runtime.ContentTypeProtobuf:
		return r.protobuf
	case runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON:
		return cmp.Or(r.protobuf, r.json)
	}
	return nil
}

// asStored returns an object that is stored as it is served, and small; nothing if it has to be encoded.
func (r *resource) asStored(ctx context.Context, name string, form *form) verbatim.Piece {
	as := form.Form()
	if as == nil || r.encoded == nil {
		return verbatim.Piece{}
	}
	return r.encoded.GetEncoded(ctx, name, as)
}

// body returns an encoded object; nil if there is none, or there is anything else to say about it.
func (r *resource) body(ctx context.Context, name string, form *form) []byte {
	object, err := r.storage.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil
	}
	body, err := form.Object(object)
	if err != nil {
		return nil
	}
	return body
}
