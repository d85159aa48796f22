package upstream

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// ifOpen sends requests for open handlers to open, and all other requests to others. withHandlers finds the same
// handler for a path, so an open path leads nowhere else.
func (all handlers) ifOpen(open, others http.Handler) http.Handler {
	var some bool
	for _, h := range all {
		some = some || h.Open
	}
	if !some {
		return others
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := all.find(r); h != nil && h.Open {
			open.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// withUnknownCallers authenticates requests. Any caller that is not authenticated becomes system:anonymous: an error
// means either wrong credentials or a cluster that does not respond.
func withUnknownCallers(handler http.Handler, known authenticator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var caller user.Info = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
		asked := r.WithContext(r.Context())
		asked.Header = r.Header.Clone() // authenticators remove credentials from the header
		if response, ok, err := known.AuthenticateRequest(asked); err == nil && ok {
			caller = response.User
		}
		handler.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), caller)))
	})
}
