package plan

import (
	"strings"
	"testing"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
)

func TestCompleteConsole_loopback(t *testing.T) {
	own := []define.Handler{{Path: "/console"}}
	for name, test := range map[string]struct {
		options  config.Options
		disabled bool
		handlers []define.Handler
		served   bool
		from     Source
		refused  string
	}{
		"loopback": {config.Options{Listen: "127.0.0.1:8443"}, false, nil, true, Source{Default, "the server listens only on loopback"}, ""},
		"loopback of IPv6": {config.Options{Listen: "[::1]:8443", ListenInsecure: "127.0.0.1:80"}, false, nil, true,
			Source{Default, "the server listens only on loopback"}, ""},
		"all addresses": {config.Options{Listen: ":8443"}, false, nil, false, Source{Default, "others reach :8443"}, ""},
		"others over HTTP": {config.Options{Listen: "127.0.0.1:8443", ListenInsecure: "0.0.0.0:80"}, false, nil, false,
			Source{Default, "others reach 0.0.0.0:80"}, ""},
		"a socket only": {config.Options{ListenUnix: "/run/x"}, false, nil, false, Source{Default, "the server has no port that browsers " +
			"can reach"}, ""},
		"in a cluster": {config.Options{Listen: "127.0.0.1:8443", Aggregated: true}, false, nil, false, Source{Default, "users of an aggregated server sign in at the cluster"}, ""},
		"left out":     {config.Options{Listen: "127.0.0.1:8443"}, true, nil, false, Source{Developer, "Disabled of Server.Console"}, ""},
		"a path of its own": {config.Options{Listen: "127.0.0.1:8443"}, false, own, false, Source{Developer, "a handler of its own at " +
			"/console/"}, ""},
		"wanted": {config.Options{Listen: ":8443", Console: new(true)}, true, nil, true, Source{Operator, "Options.Console=true"}, ""},
		"not wanted": {config.Options{Listen: "127.0.0.1:8443", Console: new(false)}, false, own, false,
			Source{Operator, "Options.Console=false"}, ""},
		"wanted in a cluster": {config.Options{Console: new(true), Aggregated: true}, false, nil, false, Source{}, "Options.Console requires a standalone server"},
		"wanted and taken": {config.Options{Console: new(true)}, false, own, false, Source{}, "Options.Console: the server has a handler " +
			"of its own at /console/"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Plan{Options: test.options, Definition: &define.Server{Console: define.Console{Disabled: test.disabled}, Handlers: test.handlers}}
			err := p.completeConsole()
			if test.refused != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.refused) {
					t.Fatalf("error %v, want %q", err, test.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := (Page{test.served, test.from}); p.Console != want || *p.Options.Console != test.served {
				t.Errorf("%+v, want %+v", p.Console, want)
			}
		})
	}
}
