package loopback

import (
	"io"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
)

func TestAs(t *testing.T) {
	l := start(t, func(w http.ResponseWriter, req *http.Request) { io.WriteString(w, req.Header.Get("Authorization")) })
	all := "Bearer " + l.Token()
	for _, test := range []struct {
		what, method, path string
		config             *rest.Config
		want               string
	}{
		{"the server itself", "GET", "/", l.Config(), all},
		{"a name", "GET", "/", As(l.Config(), "collector"), "Bearer " + l.TokenOf("collector")},
		{"a name that shares reads: a write", "POST", "/?dryRun=All", SharingReads(l.Config(), "reader", "writer"), "Bearer " +
			l.TokenOf("writer")},
		{"a name that shares reads: an object", "GET", "/", SharingReads(l.Config(), "reader", "writer"), "Bearer " + l.TokenOf("writer")},
		{"a name that shares reads: a list", "GET", "/?limit=500", SharingReads(l.Config(), "reader", "writer"), "Bearer " + l.TokenOf("reader")},
	} {
		c, err := rest.HTTPClientFor(test.config)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), test.method, test.config.Host+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if string(body) != test.want {
			t.Errorf("%s: %s, want %s", test.what, body, test.want)
		}
	}
	elsewhere := &rest.Config{Host: "https://127.0.0.1:1", BearerToken: "t"}
	if As(elsewhere, "a") != elsewhere || SharingReads(elsewhere, "a", "b") != elsewhere {
		t.Error("the client of another server is changed")
	}
}
