package upstream

import (
	"net/url"
	"testing"
)

func TestMaskedURI_credentials(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"/apis":                                  "/apis",
		"/apis?":                                 "/apis?",
		"/apis?limit=1&watch":                    "/apis?limit=1&watch",
		"/a?code=x&codes=y":                      "/a?code=***&codes=y",
		"/a?token=x":                             "/a?token=***",
		"/a?limit=1&access_token=x&watch=1":      "/a?limit=1&access_token=***&watch=1",
		"/a?Access_Token=x&api_key=y&apiKey=z":   "/a?Access_Token=***&api_key=***&apiKey=***",
		"/a?%74oken=x":                           "/a?%74oken=***",
		"/a?client_secret=x;password=y":          "/a?client_secret=***&password=***",
		"/a?token=x=y&a=b":                       "/a?token=***&a=b",
		"/a?%zz=x":                               "/a?%zz=***",
		"/a?authorization=Bearer%20x&x-passwd=y": "/a?authorization=***&x-passwd=***",
		"/a?labelSelector=app%3Dtoken":           "/a?labelSelector=app%3Dtoken",
		"/a%0ab?x=y":                             "/a%0ab?x=y",
	} {
		u, err := url.Parse(given)
		if err != nil {
			t.Fatal(err)
		}
		if got := maskedURI(u); got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
		if u.String() != given {
			t.Errorf("the request's URL has become %s", u)
		}
	}
}
