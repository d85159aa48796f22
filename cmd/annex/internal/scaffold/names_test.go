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

func TestPluralOf_equalsControllerTools(t *testing.T) {
	for kind, want := range map[string]struct {
		resource string
		guessed  bool // by generated clients
	}{
		"Cat": {"cats", true}, "Policy": {"policies", true}, "JenkinsService": {"jenkinsservices", true}, "Ingress": {"ingresses", true},
		"Data": {"data", false}, "Series": {"series", false}, "Person": {"people", false},
	} {
		resource := pluralOf(kind)
		if guessed := clientsGuess(kind, resource); resource != want.resource || guessed != want.guessed {
			t.Errorf("%s: %s, guessed by clients: %v; want %+v", kind, resource, guessed, want)
		}
	}
}
