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

func TestLinks(t *testing.T) {
	local, users := "127.0.0.1:8443", config.LoginOptions{UserFile: "users"}
	for name, test := range map[string]struct {
		options         config.Options
		links           bool
		onTerminal, any bool // whether a start prints one
		refused         string
	}{
		"loopback":      {config.Options{Listen: local, Login: users}, true, true, false, ""},
		"all addresses": {config.Options{Listen: ":8443", Login: users}, false, false, false, ""},
		"console on all addresses": {config.Options{Listen: ":8443", Console: new(true), Login: users},
			true, false, false, ""},
		"wanted there":    {config.Options{Listen: ":8443", Console: new(true), ConsoleLink: new(true), Login: users}, true, true, true, ""},
		"wanted":          {config.Options{Listen: local, ConsoleLink: new(true), Login: users}, true, true, true, ""},
		"not wanted":      {config.Options{Listen: local, ConsoleLink: new(false), Login: users}, false, false, false, ""},
		"without console": {config.Options{Listen: local, Console: new(false), Login: users}, false, false, false, ""},
		"no sessions":     {config.Options{Listen: local}, false, false, false, ""},
		"wanted without console": {config.Options{Listen: ":8443", ConsoleLink: new(true), Login: users},
			false, false, false, "Options.ConsoleLink requires the console, which is not served: others reach :8443"},
		"wanted without sessions": {config.Options{Listen: local, ConsoleLink: new(true)}, false, false, false, "Options.ConsoleLink requires sessions"},
	} {
		p := &Plan{Options: test.options, Definition: &define.Server{}}
		err := p.completeConsole()
		if test.refused != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.refused) {
				t.Errorf("%s: %v, want %q", name, err, test.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if p.Links() != test.links || p.PrintsLink(true) != test.onTerminal || p.PrintsLink(false) != test.any {
			t.Errorf("%s: links %t, printed on a terminal %t, elsewhere %t", name, p.Links(), p.PrintsLink(true), p.PrintsLink(false))
		}
	}
}
