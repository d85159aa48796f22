package upstream

import (
	"bytes"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/server/healthz"
)

// withReasons makes /readyz name the reason of a failing check. Upstream withholds reasons because anonymous callers
// may ask. The reasons of these checks reveal nothing confidential.
func withReasons(handler http.Handler, checks []healthz.HealthChecker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w = reasonWriter{w, r, checks}
		}
		handler.ServeHTTP(w, r)
	})
}

type reasonWriter struct {
	http.ResponseWriter
	request *http.Request
	checks  []healthz.HealthChecker
}

func (w reasonWriter) Write(p []byte) (int, error) {
	text := p
	for _, check := range w.checks {
		withheld := fmt.Appendf(nil, "[-]%s failed: reason withheld\n", check.Name())
		if !bytes.Contains(text, withheld) {
			continue
		}
		if err := check.Check(w.request); err != nil {
			text = bytes.Replace(text, withheld, fmt.Appendf(nil, "[-]%s failed: %v\n", check.Name(), err), 1)
		}
	}
	if _, err := w.ResponseWriter.Write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}
