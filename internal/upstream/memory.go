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

	"github.com/annexapi/annex/internal/apierr"
	"github.com/annexapi/annex/internal/budget"
	"github.com/annexapi/annex/internal/push"
	"github.com/annexapi/annex/internal/yamlsize"
)

// withMemory gives every request for resources an account of the server's memory. It
// reads their bodies before anything decodes them, holds what they may become, and refuses
// YAML that would be larger than a body may be. What the answer needs is held where its
// size is known, in the storage. No caller is exempt: the loopback's requests and those of
// administrators have accounts like all others.
//
// Connections are long-running, read their bodies by themselves, and have none.
func withMemory(handler http.Handler, memory *budget.Budget, routes connectRoutes, c *server.Config) http.Handler {
	limit := int(c.MaxRequestBodyBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || routes.of(info) != nil {
			handler.ServeHTTP(w, r)
			return
		}
		account := memory.Account(func() budget.Price { return answerPrice(r, c.Serializer) })
		rest := push.RestFrom(r.Context())
		defer func() {
			if !rest.Around(func(serve func()) { defer account.Close(); serve() }) {
				account.Close()
			}
		}()
		r = r.WithContext(budget.NewContext(r.Context(), account))
		if err := takeBody(r, account, limit); err != nil {
			answerError(w, r, err, c)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// takeBody reads a request's body, and makes sure that it may be decoded.
func takeBody(r *http.Request, account *budget.Account, limit int) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	body, err := readAll(io.LimitReader(r.Body, int64(limit)+1), r.ContentLength)
	switch {
	case err != nil:
		return err
	case len(body) > limit:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	}
	if len(body) == 0 {
		r.Body = http.NoBody // what it was read into is not kept for as long as the request takes
		return nil
	}
	need := bodyNeed(body)
	switch media := strings.ToLower(r.Header.Get("Content-Type")); {
	case strings.Contains(media, "protobuf"):
		need = fieldNeed / 2 * int64(len(body))
	case strings.Contains(media, "yaml"):
		// Handlers do not agree on how strictly they read the header.
		size, err := yamlsize.Of(body)
		switch {
		case err != nil:
			return apierrors.NewBadRequest(err.Error())
		case size > limit:
			return apierrors.NewRequestEntityTooLargeError((&yamlsize.TooLargeError{Limit: limit}).Error())
		case size > len(body):
			need = fieldNeed * int64(size)
		}
	}
	if err := account.Hold(r.Context(), need); err != nil {
		return apierr.NoMemory(err)
	}
	r.Body = &readAlready{*bytes.NewReader(body), r.Body, body}
	return nil
}

// mostBelieved is how much of a body is made room for before any of it has come.
const mostBelieved = 16 << 10

// readAll reads all that there is, which may be of a length. That is what a client says, or unknown if negative; 0 is most often
// true, and nothing is made room for then before there is something.
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

// readAlready is a body that has been read.
type readAlready struct {
	bytes.Reader
	io.Closer
	whole []byte
}

// Whole implements direct.Body.
func (b *readAlready) Whole() []byte { return b.whole }

// What a body needs while it is decoded, defaulted, converted, compared and encoded again:
// so much for each byte, and for each field or element. At their worst, 3 MiB of elements
// of two bytes, JSON and YAML take 200 MB. Protobuf does not show its elements, which take
// two bytes at least.
const (
	byteNeed  = 8
	fieldNeed = 200
)

func bodyNeed(body []byte) int64 {
	fields := 0
	for _, separator := range []byte(",[{\n") {
		fields += bytes.Count(body, []byte{separator})
	}
	return byteNeed*int64(len(body)) + fieldNeed*int64(fields)
}

// What answers need for each object and each byte stored, as measured with objects of
// 2 KB: the list as it is read, what it is turned into, and the buffers in which all that
// is encoded. Lists as protobuf and plain JSON are encoded piece by piece, and what the storage
// knows to be written of stored bytes alone, in rows of tables, too, has a price of its own there.
var (
	plainPrice  = budget.Price{Object: 1 << 10, Byte: 2}
	prettyPrice = budget.Price{Object: 1 << 10, Byte: 7}
	tablePrice  = budget.Price{Object: 3 << 10, Byte: 4}
	yamlPrice   = budget.Price{Object: 4 << 10, Byte: 26}
)

// answerPrice is what the answer to a request needs: the dearest one, if it depends on
// whether the kind has protobuf. A request for a media type that is not served is priced,
// too: upstream's negotiation refuses it soon after.
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
	media, ok := negotiation.NegotiateMediaTypeOptions(accept, s.SupportedMediaTypes(), anyForm{})
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

// isPretty says whether a client gets JSON to be read by people, as upstream decides that: a query in which pretty is not
// spelled plainly is not read.
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

// anyForm lets clients ask for all forms that upstream has for some request.
type anyForm struct{}

func (anyForm) AllowsMediaTypeTransform(_, subtype string, form *schema.GroupVersionKind) bool {
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

func (anyForm) AllowsServerVersion(version string) bool { return version == "v1" }
func (anyForm) AllowsStreamSchema(schema string) bool   { return schema == "watch" }
