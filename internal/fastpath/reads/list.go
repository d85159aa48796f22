package reads

import (
	"bytes"
	"encoding/json"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"

	"github.com/annexapi/annex/internal/fastpath/direct"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// list says whether it has answered a list. If not, nothing has been written, and the list is upstream's: in another form than
// JSON, or for people, with an option that is wrong, or of a storage that does not know its objects as clients get them.
func (d *Direct) list(w http.ResponseWriter, r *http.Request) bool {
	info, read := d.plain(r, "list")
	if read == nil || read.lister == nil || d.Traced || d.Recorded && direct.RecordsAnswers(r.Context()) || d.Pretty(r) {
		return false
	}
	scope, listed := read.path.Scope(info), d.items(info)
	if scope == "" || listed == nil || read.form(r.Header.Get("Accept")) != read.json {
		return false
	}
	options := read.listOptions(r, info)
	if options == nil || options.Watch || options.ShardSelector != "" {
		return false
	}
	begin := read.listBegin()
	if begin == nil {
		return false
	}
	ctx := request.WithNamespace(r.Context(), info.Namespace)
	given := listed.itemsAs(r, nil, plainJSON)
	list, items, err := read.lister.ListEncoded(ctx, options, given.Form, given.Maker)
	if err != nil {
		read.refuse(w, r, scope, err)
		return true
	}
	if items == nil {
		return false
	}
	defer verbatim.Close(items)
	counted := &countingWriter{ResponseWriter: w}
	answer := filled{
		req: r, info: info, serializer: read.serializer, rooms: d.rooms, counted: counted, items: items,
		mayCompress: responsewriters.ContentEncodingSupported(r, features.APIResponseCompression) != "",
	}
	request.TrackTransformResponseObjectLatency(ctx, func() { answer.head, err = appendHead(bytes.Clone(begin), list) })
	if err != nil {
		return false
	}
	answer.tail = []byte(endOfLists)
	d.Answers.Count("list")
	request.TrackSerializeResponseObjectLatency(ctx, answer.write)
	direct.MonitorList(r, read.GroupVersionResource, scope, counted.code, counted.written)
	return true
}

// What is around the items of a list as JSON.
const (
	beginOfItems = `,"items":[`
	endOfLists   = "]}\n"
)

// appendHead appends the metadata of a list and what else comes before its items.
func appendHead(to []byte, list runtime.Object) ([]byte, error) {
	of, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	metadata, err := json.Marshal(metav1.ListMeta{
		//lint:ignore SA1019 upstream encodes it, too
		SelfLink:        of.GetSelfLink(),
		ResourceVersion: of.GetResourceVersion(), Continue: of.GetContinue(), RemainingItemCount: of.GetRemainingItemCount(),
	})
	return append(append(to, metadata...), beginOfItems...), err
}

// beginOfLists returns what comes before the metadata of lists of a type in a version; nil if they are not encoded with that and
// their items at the end.
func beginOfLists(list runtime.Object, serializer runtime.NegotiatedSerializer, gv schema.GroupVersion) []byte {
	info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	of, err := meta.ListAccessor(list)
	if !ok || err != nil || meta.SetList(list, nil) != nil {
		return nil
	}
	remaining := int64(2)
	of.SetResourceVersion("1")
	of.SetContinue("<continue>")
	of.SetRemainingItemCount(&remaining)
	var encoded bytes.Buffer
	if serializer.EncoderForVersion(info.Serializer, gv).Encode(list, &encoded) != nil {
		return nil
	}
	end, err := appendHead(nil, list)
	if err != nil {
		return nil
	}
	begin, ok := bytes.CutSuffix(encoded.Bytes(), append(end, endOfLists...))
	if !ok {
		return nil
	}
	return bytes.Clone(begin)
}
