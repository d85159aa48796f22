package serve

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
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
	return func(path string) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Accept", "application/json")
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s: %s: %.200s", path, response.Status, body)
		}
		return body, nil
	}, nil
}
