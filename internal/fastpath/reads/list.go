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

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// list answers a list as plain JSON. It declines before it writes anything: if an option is invalid, or if the
// storage cannot give its objects in the form that is served.
func (r *Kind) list(w http.ResponseWriter, req *http.Request, d *fastpath.Decision) fastpath.Reason {
	config := r.listConfig()
	if r.lister == nil || config == nil {
		return fastpath.OddList
	}
	options := r.listOptions(req, d.Info)
	if options == nil || options.Watch || options.ShardSelector != "" {
		return fastpath.NoAnswer
	}
	begin := r.listBegin()
	if begin == nil {
		return fastpath.OddList
	}
	ctx := request.WithNamespace(req.Context(), d.Info.Namespace)
	given := config.itemsAs(req, nil, plainJSON)
	list, items, err := r.lister.ListEncoded(ctx, options, given.Encoding, given.Maker)
	if err != nil {
		r.refuse(w, req, d, err)
		return ""
	}
	if items == nil {
		return fastpath.OddList
	}
	defer verbatim.Close(items)
	writer := &countingWriter{ResponseWriter: w}
	answer := encodedList{
		req: req, info: d.Info, serializer: r.serializer, buffers: r.buffers, writer: writer, items: items,
		mayCompress: responsewriters.ContentEncodingSupported(req, features.APIResponseCompression) != "",
	}
	request.TrackTransformResponseObjectLatency(ctx, func() { answer.head, err = appendHead(bytes.Clone(begin), list) })
	if err != nil {
		return fastpath.NoAnswer
	}
	answer.tail = []byte(endOfLists)
	d.CountAnswer()
	request.TrackSerializeResponseObjectLatency(ctx, answer.write)
	d.Monitor(req, writer.code, writer.size)
	return ""
}

// The texts around the items of a list as JSON.
const (
	beginOfItems = `,"items":[`
	endOfLists   = "]}\n"
)

// appendHead appends the metadata of a list and the beginning of its items.
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

// beginOfLists returns the bytes before the metadata of lists of a type in a version. It returns nil if such a list
// is not encoded with its metadata and its items at the end.
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
