package console

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// IsBrowser reports whether a request is that of a person who types an address: it reads, prefers HTML by name, and has no
// credentials in a header, which browsers do not send by themselves.
func IsBrowser(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Authorization") != "" {
		return false
	}
	for _, value := range r.Header.Values("Accept") {
		for one := range strings.SplitSeq(value, ",") {
			media, parameters, err := mime.ParseMediaType(one)
			if err != nil || media != "text/html" {
				continue
			}
			weight, given := parameters["q"]
			if q, err := strconv.ParseFloat(weight, 64); !given || err == nil && q > 0 {
				return true
			}
		}
	}
	return false
}

// Doors returns a handler that redirects from paths to others.
func Doors(to map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, ok := to[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		header := w.Header()
		header.Set("Cache-Control", "no-store") // what another client gets here is different
		header.Set("Vary", "Accept, Authorization")
		header.Set("Referrer-Policy", "no-referrer")
		http.Redirect(w, r, target, http.StatusFound)
	})
}
