package serve

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/base/apidocument"
)

// Reader returns a function that reads paths of a server that is not run, such as its OpenAPI documents. It works until
// Close, and Run must not be called.
func (s *Server) Reader(ctx context.Context) (func(path string) ([]byte, error), error) {
	config := s.opened.loopback.Config()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of the server itself: %w", err)
	}
	s.opened.loopback.Serve(s.machinery.api.Handler)
	return apidocument.Reader(ctx, client, config.Host), nil
}
