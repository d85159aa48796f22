package plan

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/console"
)

// Page is the decision to serve a web page, with its source.
type Page struct {
	Served bool
	From   Source
}

// completeConsole decides which pages are served, and returns the first mistake.
func (p *Plan) completeConsole() error {
	o := &p.Options
	for _, page := range []struct {
		field, path string
		given       **bool
		to          *Page
	}{
		{"Options.Console", console.Path, &o.Console, &p.Console},
		{"Options.SwaggerUI", console.SwaggerPath, &o.SwaggerUI, &p.SwaggerUI},
	} {
		own := slices.ContainsFunc(p.Definition.Handlers, func(h define.Handler) bool {
			return strings.TrimSuffix(h.Path, "/") == strings.TrimSuffix(page.path, "/")
		})
		if given := *page.given; given != nil {
			switch {
			case *given && o.Aggregated:
				return fmt.Errorf("%s requires a standalone server: users of an aggregated server sign in at the cluster", page.field)
			case *given && own:
				return fmt.Errorf("%s: the server has a handler of its own at %s", page.field, page.path)
			}
			*page.to = Page{*given, Source{Operator, fmt.Sprintf("%s=%t", page.field, *given)}}
		} else if *page.to = p.usualPage(); own {
			*page.to = Page{false, Source{Developer, "a handler of its own at " + page.path}}
		}
		*page.given = new(page.to.Served)
	}
	if link := o.ConsoleLink; link != nil && *link {
		switch {
		case !p.Console.Served:
			return fmt.Errorf("Options.ConsoleLink requires the console, which is not served: %s", p.Console.From.Setting)
		case o.Login.UserFile == "":
			return errors.New("Options.ConsoleLink requires sessions: set Options.DataDir or Options.Login.UserFile")
		}
	}
	return nil
}

// Links reports whether callers may make one-time links for signing in at the console.
func (p *Plan) Links() bool {
	link := p.Options.ConsoleLink
	return p.Console.Served && p.Options.Login.UserFile != "" && (link == nil || *link)
}

// PrintsLink reports whether a program prints a link of the administrator when it starts. terminal is set if only the
// person at a terminal reads the output.
func (p *Plan) PrintsLink(terminal bool) bool {
	return p.Links() && (p.Options.ConsoleLink != nil || terminal && p.reachable() == "")
}

// reachable returns an address that others reach; empty if the server listens on loopback addresses only.
func (p *Plan) reachable() string {
	for _, address := range []string{p.Options.Listen, p.Options.ListenInsecure} {
		if address != "" && !isLoopback(address) {
			return address
		}
	}
	return ""
}

// usualPage returns the decision about a page for which no option is given.
func (p *Plan) usualPage() Page {
	no := func(level Level, why string) Page { return Page{false, Source{level, why}} }
	o := &p.Options
	if p.Definition.Console.Disabled {
		return no(Developer, "Disabled of Server.Console")
	}
	if o.Aggregated {
		return no(Default, "users of an aggregated server sign in at the cluster")
	}
	if o.Listen == "" && o.ListenInsecure == "" {
		return no(Default, "the server has no port that browsers can reach")
	}
	if address := p.reachable(); address != "" {
		return no(Default, "others reach "+address)
	}
	return Page{true, Source{Default, "the server listens only on loopback"}}
}

// isLoopback reports whether an address is reachable from this machine only. An address without an IP is reachable
// from everywhere.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && net.ParseIP(host).IsLoopback()
}
