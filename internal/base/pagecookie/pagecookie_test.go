package pagecookie_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/annexapi/annex/internal/base/pagecookie"
)

func TestHidden_keepsOtherCookies(t *testing.T) {
	for _, test := range []struct{ sent, want []string }{
		{nil, nil},
		{[]string{"a=b;  c=d"}, []string{"a=b;  c=d"}},
		{[]string{"__Host-annex-session=x"}, nil},
		{[]string{"a=b; __Host-annex-session=x; c=annex-session=1"}, []string{"a=b; c=annex-session=1"}},
		{[]string{"annex-session=x;a=b"}, []string{"a=b"}},
		{[]string{"annex-session", "annex-authorize=1; __Host-annex-provider=2 ;", "b=1"}, []string{"b=1"}},
		{[]string{"__Host-annex-session-8443=x; annex-provider-80=y; annex-session-a=z"}, []string{"annex-session-a=z"}},
		{[]string{" annex-session =x; my-annex-session=1"}, []string{"my-annex-session=1"}},
		{[]string{"ANNEX-SESSION=x"}, []string{"ANNEX-SESSION=x"}}, // names are case-sensitive
	} {
		r := &http.Request{Header: http.Header{"Accept": {"x"}}}
		if test.sent != nil {
			r.Header["Cookie"] = slices.Clone(test.sent)
		}
		hidden := pagecookie.Hidden(r)
		if got := hidden.Header["Cookie"]; !slices.Equal(got, test.want) || hidden.Header.Get("Accept") != "x" {
			t.Errorf("%q: left are %q, want %q", test.sent, got, test.want)
		}
		if !slices.Equal(r.Header["Cookie"], test.sent) {
			t.Errorf("%q: the request itself has been changed", test.sent)
		}
	}
}

func TestRefuse_removesOwnCookies(t *testing.T) {
	h := http.Header{"Set-Cookie": {"__Host-annex-session=x; Path=/; Secure", "a=annex-session", " annex-session=x"}}
	pagecookie.Refuse(h)
	if got := h["Set-Cookie"]; !slices.Equal(got, []string{"a=annex-session"}) {
		t.Errorf("left are %q", got)
	}
	h = http.Header{"Set-Cookie": {"annex-authorize="}}
	if pagecookie.Refuse(h); len(h) > 0 {
		t.Errorf("left are %q", h)
	}
}
