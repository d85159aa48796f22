package builtin

import (
	"encoding/json"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/e2e/cluster/compare"
)

// both are the two servers: the real one, and ours.
type both struct {
	t            *testing.T
	theirs, ours *compare.Server
}

func connect(t *testing.T, config *rest.Config) *compare.Server {
	t.Helper()
	server, err := compare.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

const (
	asJSON = compare.JSON
	table  = compare.Table
)

// same sends a request to both servers, and reports a difference. It returns the code and the response of the real
// one.
func (b *both) same(what, method, path, contentType string, body any) (int, bool) {
	b.t.Helper()
	theirs, err := b.theirs.Ask(b.t.Context(), method, path, contentType, body)
	if err != nil {
		b.t.Fatal(err)
	}
	ours, err := b.ours.Ask(b.t.Context(), method, path, contentType, body)
	if err != nil {
		b.t.Fatal(err)
	}
	x, y := theirs.Plain(), ours.Plain()
	if x == y {
		return theirs.Code, true
	}
	sent, err := json.Marshal(body)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Errorf("%s: %s %s\n%.1500s\n%s", what, method, path, sent, compare.Difference(x, y))
	return theirs.Code, false
}
