package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"

	"github.com/annexapi/annex/internal/yamlsize"
)

// withBodies reads the bodies of requests for resources before anything decodes them, and
// refuses YAML that would be larger than a body may be. Connections read theirs by
// themselves.
func withBodies(handler http.Handler, connected connected, c *server.Config) http.Handler {
	limit := int(c.MaxRequestBodyBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || r.Body == nil || r.Body == http.NoBody || !speaksYAML(r) || connected.of(info) != nil {
			handler.ServeHTTP(w, r)
			return
		}
		body, err := readBody(r, limit)
		if err == nil {
			err = checkYAML(body, limit)
		}
		if err != nil {
			responsewriters.ErrorNegotiated(err, c.Serializer, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
			return
		}
		r = r.WithContext(r.Context())
		r.Body = readAlready{bytes.NewReader(body), r.Body}
		handler.ServeHTTP(w, r)
	})
}

// speaksYAML errs on the side of YAML: handlers do not agree on how strictly they read
// the header.
func speaksYAML(r *http.Request) bool {
	return strings.Contains(strings.ToLower(r.Header.Get("Content-Type")), "yaml")
}

// readBody reads a body of limit bytes at most, the answers to others being upstream's.
func readBody(r *http.Request, limit int) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(body) > limit {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	}
	return body, nil
}

func checkYAML(body []byte, limit int) error {
	err := yamlsize.Check(body, limit)
	var large *yamlsize.TooLargeError
	switch {
	case errors.As(err, &large):
		return apierrors.NewRequestEntityTooLargeError(large.Error())
	case err != nil:
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// readAlready is a body that has been read.
type readAlready struct {
	*bytes.Reader
	io.Closer
}
