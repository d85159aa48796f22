package upstream

import (
	"net/http"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/client-go/kubernetes/scheme"
)

// FuzzPretty compares isPretty with upstream's choice.
func FuzzPretty(f *testing.F) {
	for _, query := range []string{"", "pretty", "pretty=", "pretty=1", "pretty=true", "pretty=0", "pretty=x", "pretty=false&pretty=true",
		"a=pretty", "pr%65tty=true", "pr%65tty=false", "pretty=t;a=b", "%zz&pretty=1", "Pretty=1"} {
		for _, agent := range []string{"", "curl/8", "Wget", "Mozilla/5.0 (X11)", "Mozilla/4.0", "kubectl"} {
			f.Add(query, agent)
		}
	}
	f.Fuzz(func(t *testing.T, query, agent string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}, Header: http.Header{"User-Agent": {agent}, "Accept": {runtime.ContentTypeJSON}}}
		wanted, info, err := negotiation.NegotiateOutputMediaType(r, scheme.Codecs, negotiation.DefaultEndpointRestrictions)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := isPretty(r), info.Serializer == wanted.Accepted.PrettySerializer; got != want {
			t.Errorf("%q of %q: %t, want %t", query, agent, got, want)
		}
	})
}
