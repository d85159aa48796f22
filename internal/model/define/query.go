package define

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// DefaultQueryPrefix is where queries are answered unless the definition or an option says otherwise.
const DefaultQueryPrefix = "/query"

// notForQueries are paths that the server answers by itself, those of pages among them.
var notForQueries = append(slices.Clone(ownPaths), "/console", "/oauth", "/swagger-ui")

// QueryPrefix is where the definition has queries answered; empty is nowhere.
func (s *Server) QueryPrefix() string {
	switch {
	case s.Query.Disabled:
		return ""
	case s.Query.Prefix == "":
		return DefaultQueryPrefix
	}
	return s.Query.Prefix
}

// CheckQueryPrefix says what is wrong with a path as the prefix of queries; nil if nothing is.
// Empty is none.
func CheckQueryPrefix(prefix string) error {
	switch {
	case prefix == "":
		return nil
	case !strings.HasPrefix(prefix, "/") || path.Clean(prefix) != prefix || prefix == "/" || strings.ContainsAny(prefix, "*%?#{} "):
		return fmt.Errorf("%q is no path such as %s", prefix, DefaultQueryPrefix)
	case slices.ContainsFunc(notForQueries, func(own string) bool { return prefix == own || strings.HasPrefix(prefix, own+"/") }):
		return fmt.Errorf("%q is the server's own, as are %s", prefix, strings.Join(notForQueries, ", "))
	}
	return nil
}
