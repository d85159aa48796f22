// Package reads answers reads with what has been encoded before. Whatever else there may be to a request, it leaves to
// upstream's handlers, and what a client gets is the same, byte for byte.
package reads

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/annexapi/annex/internal/convert"
	"github.com/annexapi/annex/internal/direct"
	"github.com/annexapi/annex/internal/push"
	"github.com/annexapi/annex/internal/registry"
	"github.com/annexapi/annex/internal/verbatim"
)

// Lists lets the next handler, which is upstream's, answer lists of the resources without their items, which cost
// it two copies and an encoding each, and puts these in its answer as the storage remembers them.
// The initial events of watches are remembered as a whole. Answers in another form than plain JSON, and those that the
// audit records, are upstream's alone.
//
// items says how a resource is encoded, and makes what a list of it is given its items in. Resources for which it
// returns nil are upstream's alone, too.
func Lists(next http.Handler, items func(*request.RequestInfo) (runtime.NegotiatedSerializer, *registry.EncodedItems)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Subresource != "" || info.Verb != "list" && info.Verb != "watch" {
			next.ServeHTTP(w, r)
			return
		}
		serializer, given := items(info)
		switch {
		case given == nil || !wantsPlainJSON(r, serializer) || info.Verb == "list" && direct.RecordsAnswers(r.Context()):
		case info.Verb == "watch":
			r = r.WithContext(registry.WithRememberedEvents(r.Context()))
		default:
			w = responsewriter.WrapForHTTP1Or2(&listWriter{ResponseWriter: w, req: r, items: given})
			r = r.WithContext(registry.WithEncodedItems(r.Context(), given))
		}
		next.ServeHTTP(w, r)
	})
}

// wantsPlainJSON says whether upstream's negotiation surely ends with JSON that is neither a table
// nor indented.
func wantsPlainJSON(req *http.Request, codecs runtime.NegotiatedSerializer) bool {
	if strings.Contains(req.Header.Get("Accept"), "cbor") { // which needs a feature gate
		return false
	}
	wanted, info, err := negotiation.NegotiateOutputMediaType(req, codecs, anything{})
	return err == nil && info.MediaType == runtime.ContentTypeJSON && info.Serializer == wanted.Accepted.Serializer &&
		wanted.Convert == nil && wanted.Stream == "" && wanted.UseServerVersion == "" && wanted.Profile == "" && !wanted.Export && len(wanted.Unrecognized) == 0
}

// anything allows what any endpoint does, so that what it passes over each of them does.
type anything struct{}

func (anything) AllowsMediaTypeTransform(string, string, *schema.GroupVersionKind) bool { return true }
func (anything) AllowsServerVersion(string) bool                                        { return true }
func (anything) AllowsStreamSchema(string) bool                                         { return true }

// listWriter puts items in a list that has none. Other answers pass.
type listWriter struct {
	http.ResponseWriter
	req   *http.Request
	items *registry.EncodedItems
	held  bool   // the answer is a list that lacks its items
	list  []byte // what there is of it
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *listWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *listWriter) WriteHeader(code int) {
	if w.held = code == http.StatusOK && w.items.Items != nil; !w.held {
		w.ResponseWriter.WriteHeader(code)
	}
}

var (
	noItems    = []byte(`"items":[`)
	errNoItems = errors.New("there is no place for items in the list")
)

// Write implements http.ResponseWriter, except that it returns how many bytes it wrote, with the
// items: upstream's figures of the sizes of answers are sums of these.
func (w *listWriter) Write(p []byte) (int, error) {
	if !w.held {
		return w.ResponseWriter.Write(p)
	}
	w.list = append(w.list, p...)
	if !bytes.HasSuffix(w.list, []byte("}\n")) {
		return 0, nil
	}
	head, tail, ok := bytes.Cut(w.list, noItems)
	if !ok {
		w.held = false
		w.ResponseWriter.WriteHeader(http.StatusInternalServerError)
		return 0, errNoItems
	}
	if c := push.ConnectionOf(w.req); c != nil { // what is written is more than one frame, and each of them two records of TLS
		c.Hold()
		defer c.Release()
	}
	counted := &countingWriter{ResponseWriter: w.ResponseWriter}
	responsewriters.SerializeObject(runtime.ContentTypeJSON, filled{append(head, noItems...), w.items.Items, tail}, counted, w.req, http.StatusOK, nil)
	return counted.written, nil
}

// filled is an encoded list, which upstream compresses and writes as any other.
type filled struct {
	head  []byte
	items []verbatim.Piece
	tail  []byte
}

// Encode implements runtime.Encoder.
func (f filled) Encode(_ runtime.Object, w io.Writer) error {
	return convert.WriteList(w, f.head, f.items, f.tail)
}

// Identifier implements runtime.Encoder.
func (f filled) Identifier() runtime.Identifier { return "encodedItems" }

type countingWriter struct {
	http.ResponseWriter
	written int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.written += n
	return n, err
}
