package define

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// DefaultQueryPrefix is the prefix of queries unless the definition or an option sets another one.
const DefaultQueryPrefix = "/query"

// notForQueries are paths of the server itself, including those of pages.
var notForQueries = append(slices.Clone(ownPaths), "/console", "/oauth", "/swagger-ui")

// QueryPrefix returns the prefix of queries in the definition; empty disables queries.
func (s *Server) QueryPrefix() string {
	switch {
	case s.Query.Disabled:
		return ""
	case s.Query.Prefix == "":
		return DefaultQueryPrefix
	}
	return s.Query.Prefix
}

// CheckQueryPrefix reports an error if a path cannot be the prefix of queries. An empty prefix is valid and disables
// queries.
func CheckQueryPrefix(prefix string) error {
	switch {
	case prefix == "":
		return nil
	case !strings.HasPrefix(prefix, "/") || path.Clean(prefix) != prefix || prefix == "/" || strings.ContainsAny(prefix, "*%?#{} "):
		return fmt.Errorf("%q is not a path such as %s", prefix, DefaultQueryPrefix)
	case slices.ContainsFunc(notForQueries, func(own string) bool { return prefix == own || strings.HasPrefix(prefix, own+"/") }):
		return fmt.Errorf("%q is reserved by the server, like %s", prefix, strings.Join(notForQueries, ", "))
	}
	return nil
}
