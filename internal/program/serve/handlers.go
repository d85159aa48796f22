package serve

import (
	"errors"
	"fmt"

	"github.com/annexapi/annex/internal/server/upstream"
)

// handlers returns the definition's handlers for paths outside the API.
func (s *Server) handlers() ([]upstream.Handler, error) {
	var all []upstream.Handler
	var errs []error
	for _, h := range s.definition.Handlers {
		handler, err := h.New(s.env)
		if err == nil && handler == nil {
			err = errors.New("there is no handler: New returned none")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("handler %q: %w", h.Path, err))
			continue
		}
		all = append(all, upstream.Handler{Handler: handler, Definition: &h})
	}
	pages, err := s.pages()
	return append(all, pages...), errors.Join(append(errs, err)...)
}
