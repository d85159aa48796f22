package plan

import (
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/standalone/fairness"
	"github.com/annexapi/annex/store/memory"
)

// Tools copy the storages of servers with priority and fairness. A server without it may have its own kinds with
// these names, as a fake cluster does.
func TestEverything_priorityLevels(t *testing.T) {
	t.Parallel()
	resource := flowcontrolv1.Resource("flowschemas")
	options := func(fair *bool) config.Options {
		return config.Options{Storage: memory.Storage(), PriorityAndFairness: fair}
	}
	plain, own := &define.Server{Name: "shop"}, &define.Server{Name: "shop", Groups: []define.Group{fairness.Group()}}
	if err := define.Check(own); err != nil {
		t.Fatal(err)
	}
	for name, definition := range map[string]*define.Server{"none": plain, "its own": own} {
		p, err := Everything(definition, options(nil))
		if err != nil || p.Resource(resource) == nil {
			t.Errorf("all that a server with %s stores: %v, %v", name, p, err)
		}
	}
	for _, test := range []struct {
		definition *define.Server
		fair       *bool
		stored     bool
		wrong      string
	}{
		{plain, nil, false, ""},
		{plain, new(true), true, ""},
		{own, nil, true, ""},
		{own, new(true), false, "kind FlowSchema (flowschemas.flowcontrol.apiserver.k8s.io): every server has " +
			"flowschemas.flowcontrol.apiserver.k8s.io already"},
	} {
		p, err := Resolve(&definition.Definition{Server: test.definition}, options(test.fair), nil)
		if test.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%v, want %s", err, test.wrong)
			}
			continue
		}
		if err != nil || (p.Resource(resource) != nil) != test.stored {
			t.Errorf("%+v: %v", test, err)
		}
	}
}
