package apidocument

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// StatusError is the answer of a server that did not send a document.
type StatusError struct {
	URL    string
	Code   int
	Status string // such as "403 Forbidden"
	Body   []byte // its first 200 bytes
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %s: %s", e.URL, e.Status, e.Body) }

// Reader returns a function that reads paths of the server at base, a URL without a slash at its end, with GET. It returns a
// *StatusError for each answer but 200. It may be called concurrently, until ctx is done.
func Reader(ctx context.Context, client *http.Client, base string) func(path string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
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
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if response.StatusCode != http.StatusOK {
			body = bytes.TrimSpace(body)
			return nil, &StatusError{base + path, response.StatusCode, response.Status, body[:min(len(body), 200)]}
		}
		return body, nil
	}
}
