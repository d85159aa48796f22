package scaffold

import "testing"

func TestUnexported(t *testing.T) {
	for kind, want := range map[string]string{
		"Cat": "cat", "JenkinsService": "jenkinsService", "HTTPRoute": "httpRoute", "DNS": "dns", "A1": "a1", "X": "x", "V2Ray": "v2Ray",
	} {
		if got := unexported(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}
