package cluster

import "testing"

func TestNamed(t *testing.T) {
	t.Parallel()
	for _, headers := range [][]string{nil, {}, {""}, {" ", "\t"}} {
		if named(headers) {
			t.Errorf("%q has a name", headers)
		}
	}
	if !named([]string{"", "X-Remote-User"}) {
		t.Error("a header has no name")
	}
}
