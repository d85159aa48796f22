package serve

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/console"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/requestlog"
	"github.com/annexapi/annex/internal/server/upstream"
)

// handlers returns the handlers for paths outside the API: those of the definition, and the pages.
func handlers(o *opened, env any) ([]upstream.Handler, error) {
	var all []upstream.Handler
	var errs []error
	for _, h := range o.plan.Definition.Handlers {
		handler, err := h.New(env)
		if err == nil && handler == nil {
			err = errors.New("New returned no handler")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("handler %q: %w", h.Path, err))
			continue
		}
		all = append(all, upstream.Handler{Handler: handler, Definition: &h})
	}
	if ring := o.recorders.requests; ring != nil {
		all = append(all, upstream.Handler{
			Handler:    requestlog.Handler(ring),
			Definition: &define.Handler{Path: requestlog.Path, LongRunning: requestlog.Streams},
		})
	}
	own, err := pages(o)
	if led := doors(o.plan); led != nil {
		all = append([]upstream.Handler{*led}, all...)
	}
	return append(all, own...), errors.Join(append(errs, err)...)
}

// doors returns a handler that leads browsers from the addresses that people type to the pages; nil without pages. Other
// clients, and paths of the definition's handlers, are none of its business.
func doors(p *plan.Plan) *upstream.Handler {
	first := ""
	to := map[string]string{}
	if p.SwaggerUI.Served {
		first = console.SwaggerPath
		to["/docs"], to["/docs/"], to[strings.TrimSuffix(console.SwaggerPath, "/")] = first, first, first
	}
	if p.Console.Served {
		first = console.Path
		to[strings.TrimSuffix(console.Path, "/")] = first
	}
	if first == "" {
		return nil
	}
	to["/"] = first
	maps.DeleteFunc(to, func(path, _ string) bool {
		return slices.ContainsFunc(p.Definition.Handlers, func(h define.Handler) bool { return h.Answers(path) })
	})
	longest := 0
	for path := range to {
		longest = max(longest, len(path))
	}
	return &upstream.Handler{
		Handler:    console.Doors(to),
		Definition: &define.Handler{Path: "/"},
		Takes: func(r *http.Request) bool {
			// Every request asks; most paths are longer.
			return len(r.URL.Path) <= longest && to[r.URL.Path] != "" && console.IsBrowser(r)
		},
		Open: true,
	}
}

// pages returns the handlers of the console and of Swagger UI. They need no authentication, because users see them
// before they sign in, and they show no stored data.
func pages(o *opened) ([]upstream.Handler, error) {
	var all []upstream.Handler
	add := func(path string, handler http.Handler, err error) error {
		if err != nil {
			return err
		}
		all = append(all, upstream.Handler{Handler: handler, Definition: &define.Handler{Path: path}, Open: true})
		return nil
	}
	brand := o.plan.Definition.Console
	title, version := upstream.About(o.plan.Definition)
	told := console.Config{
		Title: cmp.Or(brand.Title, title), Version: version, Query: o.plan.QueryPrefix, ClientCertificate: o.listeners.secure != nil,
	}
	if users := o.mode.signIn(); users != nil {
		told.LoginNow = func() *console.Login { return loginChoices(users) }
		if o.plan.Links() {
			told.Link = users.LinkCommand()
		}
	}
	if o.plan.SwaggerUI.Served {
		told.Swagger = console.SwaggerPath
	}
	if o.plan.Console.Served {
		told.Console, told.Requests = console.Path, requestlog.Path
		handler, err := console.Console(told, brand.Logo, brand.LogoType())
		if err := add(console.Path, handler, err); err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
	}
	if o.plan.SwaggerUI.Served {
		handler, err := console.SwaggerUI(told)
		if err := add(console.SwaggerPath, handler, err); err != nil {
			return nil, fmt.Errorf("page of Swagger UI: %w", err)
		}
	}
	return all, nil
}

// loginChoices returns the ways to sign in at this moment; nil if there are none.
func loginChoices(users *login.Login) *console.Login {
	if !users.HasUsers() {
		return nil
	}
	told := &console.Login{Password: true}
	for _, c := range users.Choices() {
		told.Providers = append(told.Providers, console.Provider(c))
	}
	return told
}
