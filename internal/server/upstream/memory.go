package upstream

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/base/yamlsize"
	"github.com/annexapi/annex/internal/wire/push"
)

// withBody gives every request for resources of this server a memory account, and reads the body before the request
// takes a place in flight or a seat: a client that sends its body slowly must not keep either from other clients. The
// bytes of the body count while they arrive. No caller is exempt: requests of the loopback and of administrators have
// accounts as well.
//
// Connections and handlers beside the API read their bodies by themselves, and have no account.
func withBody(
	handler http.Handler,
	memory *budget.Budget,
	routes connectRoutes,
	beside handlers,
	aggregation Aggregation,
	c *server.Config,
) http.Handler {
	limit := int(c.MaxRequestBodyBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || routes.find(info) != nil || beside.find(r) != nil || aggregation != nil && aggregation.Elsewhere(info) {
			handler.ServeHTTP(w, r)
			return
		}
		account := memory.Account(callerOf(r, info), func() budget.Price { return answerPrice(r, c.Serializer) })
		if d := bufferedResponseFrom(r.Context()); d != nil {
			d.account = account
		}
		defer push.After(r.Context(), account.Close)
		r = r.WithContext(budget.NewContext(r.Context(), account))
		if mutates(info.Verb) {
			if err := takeBody(r, account, limit); err != nil {
				answerError(w, r, err, c)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// withMemory waits for the turn of a request with a large body, holds the memory that decoding the body may need, and
// refuses YAML that expands beyond the size limit of bodies. The storage, which knows the size of a response, holds
// the memory for the response. The account is empty when the handlers return; the response leaves after that: see
// withDeparture.
func withMemory(handler http.Handler, turns turns, c *server.Config) http.Handler {
	limit := int(c.MaxRequestBodyBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := r.Body.(*bufferedBody)
		if !ok {
			handler.ServeHTTP(w, r)
			return
		}
		need, err := needOf(body.whole, strings.ToLower(r.Header.Get("Content-Type")), limit)
		if err == nil {
			var end func()
			if end, err = turns.begin(r, len(body.whole), need.elements); err == nil {
				defer end()
				err = apierr.NoMemory(budget.From(r.Context()).Hold(r.Context(), need.bytes))
			}
		}
		if err != nil {
			answerError(w, r, err, c)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// mutates reports whether requests with a verb may change objects. The bodies of all other requests are not read, as
// in upstream.
func mutates(verb string) bool {
	switch verb {
	case "get", "list", "watch":
		return false
	}
	return true
}

// takeBody reads the body of a request.
func takeBody(r *http.Request, account *budget.Account, limit int) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	tooLarge := func() error {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	}
	if r.ContentLength > int64(limit) {
		return tooLarge()
	}
	if r.ContentLength < 0 || r.ContentLength > mostBelieved {
		length := r.ContentLength
		if length < 0 {
			length = int64(limit)
		}
		if err := account.Wire(r.Context(), length); err != nil {
			return apierr.NoMemory(err)
		}
	}
	body, err := readAll(io.LimitReader(r.Body, int64(limit)+1), r.ContentLength)
	switch {
	case err != nil:
		return err
	case len(body) > limit:
		return tooLarge()
	}
	if len(body) == 0 {
		account.Close()
		r.Body = http.NoBody // the empty buffer must not live as long as the request
		return nil
	}
	r.Body = &bufferedBody{*bytes.NewReader(body), r.Body, body}
	return nil
}

// mostBelieved is the largest buffer that is allocated for a body on the word of its Content-Length.
const mostBelieved = 16 << 10

// readAll reads from until EOF. length is the Content-Length that the client has sent, negative if it is unknown. A
// length of 0 is mostly true, so no buffer is allocated before the first byte arrives.
func readAll(from io.Reader, length int64) ([]byte, error) {
	if length == 0 {
		first := make([]byte, 1)
		if _, err := io.ReadFull(from, first); err == io.EOF {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		from = io.MultiReader(bytes.NewReader(first), from)
	}
	body := bytes.NewBuffer(make([]byte, 0, min(max(length, 0), mostBelieved)+bytes.MinRead))
	_, err := body.ReadFrom(from)
	return body.Bytes(), err
}

// bufferedBody is a body that has been read.
type bufferedBody struct {
	bytes.Reader
	io.Closer
	whole []byte
}

// Whole implements fastpath.Body.
func (b *bufferedBody) Whole() []byte { return b.whole }

// The memory that a body needs while it is decoded, defaulted, converted, compared and encoded again, per byte, and
// per field or element. In the worst case, 3 MiB of elements of two bytes each, JSON and YAML need 200 MB. The
// elements of protobuf cannot be counted; each has at least two bytes.
const (
	byteNeed  = 8
	fieldNeed = 200
	// plainNeed is the need up to which separators are counted even inside strings.
	plainNeed = 128 << 10
)

// bodyNeed is the memory in bytes that processing a body needs, and the number of its fields and elements.
type bodyNeed struct{ bytes, elements int64 }

// needFor returns the need of a body of sent bytes, size of which are not white space.
func needFor(sent, size, elements int) bodyNeed {
	return bodyNeed{int64(sent) + byteNeed*int64(size) + fieldNeed*int64(elements), int64(elements)}
}

// needOf returns the need of a body of a media type. An error is the error response.
func needOf(body []byte, media string, limit int) (bodyNeed, error) {
	isYAML := strings.Contains(media, "yaml")
	switch {
	case strings.Contains(media, "protobuf"):
		return bodyNeed{fieldNeed / 2 * int64(len(body)), int64(len(body)) / 2}, nil
	case isYAML:
		// Handlers differ in how strictly they parse the Content-Type.
		size, err := yamlsize.Of(body)
		switch {
		case err != nil:
			return bodyNeed{}, apierrors.NewBadRequest(err.Error())
		case size > limit:
			return bodyNeed{}, apierrors.NewRequestEntityTooLargeError((&yamlsize.TooLargeError{Limit: limit}).Error())
		case size > len(body):
			return bodyNeed{fieldNeed * int64(size), int64(size)}, nil
		}
	}
	elements := 0
	for _, separator := range []byte(",[{\n") {
		elements += bytes.Count(body, []byte{separator})
	}
	if need := needFor(0, len(body), elements); need.bytes <= plainNeed {
		return need, nil
	}
	if isYAML {
		return yamlNeed(body), nil
	}
	return jsonNeed(body), nil
}

// jsonNeed counts bytes other than white space, and elements. A repeated key is decoded each time and counts each
// time. An escape sequence counts with the bytes that it consists of.
func jsonNeed(body []byte) bodyNeed {
	size, elements, inString := 0, 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString:
			size++
			switch c {
			case '\\':
				i++
				size++
			case '"':
				inString = false
			}
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
		default:
			size++
			switch c {
			case '"':
				inString = true
			case ',', '[', '{':
				elements++
			}
		}
	}
	return needFor(len(body), size, elements)
}

// yamlNeed counts bytes and elements of lines that hold more than white space and comments. A line has one element,
// and one more for each character that may begin an element in flow style or in a sequence.
func yamlNeed(body []byte) bodyNeed {
	var size, elements int
	for line := range bytes.Lines(body) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		size += len(line)
		elements++
		for _, separator := range []byte(",[{-") {
			elements += bytes.Count(line, []byte{separator})
		}
	}
	return needFor(len(body), size, elements)
}

// The memory that responses need per object and per stored byte, measured with objects of 2 KB: the list that is
// read, the objects that it is converted to, and the buffers into which they are encoded. Lists as protobuf and plain
// JSON are encoded piece by piece. The storage has prices of its own for responses that it can write from stored
// bytes alone, rows of tables included.
var (
	plainPrice  = budget.Price{Object: 1 << 10, Byte: 2}
	prettyPrice = budget.Price{Object: 1 << 10, Byte: 7}
	tablePrice  = budget.Price{Object: 3 << 10, Byte: 4}
	yamlPrice   = budget.Price{Object: 4 << 10, Byte: 26}
)

// answerPrice returns the price of the response to a request. If it depends on whether the kind has protobuf, the
// higher price applies. Requests for a media type that is not served get a price as well; upstream's negotiation
// refuses them soon afterwards.
func answerPrice(r *http.Request, s runtime.NegotiatedSerializer) budget.Price {
	accept := r.Header.Get("Accept")
	price := priceOf(r, accept, s)
	if strings.Contains(accept, "protobuf") {
		text := priceOf(r, accept, withoutProtobuf{s})
		price = budget.Price{Object: max(price.Object, text.Object), Byte: max(price.Byte, text.Byte)}
	}
	return price
}

func priceOf(r *http.Request, accept string, s runtime.NegotiatedSerializer) budget.Price {
	media, ok := negotiation.NegotiateMediaTypeOptions(accept, s.SupportedMediaTypes(), anyEndpoint{})
	price := plainPrice
	switch {
	case !ok:
	case media.Accepted.MediaType == runtime.ContentTypeYAML:
		return yamlPrice
	case media.Convert != nil:
		price = tablePrice
	}
	if ok && media.Accepted.MediaType == runtime.ContentTypeJSON && (media.Pretty || isPretty(r)) {
		price.Byte += prettyPrice.Byte - plainPrice.Byte
	}
	return price
}

// isPretty reports whether a client gets indented JSON, by upstream's rules. A query in which the name pretty is
// escaped is not parsed.
func isPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if pretty := r.URL.Query().Get("pretty"); pretty != "" {
			is, _ := strconv.ParseBool(pretty)
			return is
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// anyEndpoint allows all conversions that upstream allows for any request.
type anyEndpoint struct{}

func (anyEndpoint) AllowsMediaTypeTransform(_, subtype string, form *schema.GroupVersionKind) bool {
	switch {
	case form == nil:
		return true
	case form.GroupVersion() != metav1.SchemeGroupVersion && form.GroupVersion() != metav1beta1.SchemeGroupVersion:
		return false
	case form.Kind == "Table":
		return subtype == "json" || subtype == "yaml"
	}
	return form.Kind == "PartialObjectMetadata" || form.Kind == "PartialObjectMetadataList"
}

func (anyEndpoint) AllowsServerVersion(version string) bool { return version == "v1" }
func (anyEndpoint) AllowsStreamSchema(schema string) bool   { return schema == "watch" }
