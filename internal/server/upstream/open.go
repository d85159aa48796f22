package upstream

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// ifOpen sends requests for open handlers one way, and all others another. withHandlers finds the
// same handler for a path, so that an open path leads nowhere else.
func (all handlers) ifOpen(open, others http.Handler) http.Handler {
	var some bool
	for _, h := range all {
		some = some || h.Open
	}
	if !some {
		return others
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := all.of(r); h != nil && h.Open {
			open.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// withUnknownCallers finds out who sends a request, and takes a caller that is not known for
// system:anonymous, whatever the reason: an error is about credentials that are wrong, or about a
// cluster that does not answer.
func withUnknownCallers(handler http.Handler, known authenticator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var caller user.Info = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
		if response, ok, err := known.AuthenticateRequest(r); err == nil && ok {
			caller = response.User
		}
		handler.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), caller)))
	})
}
