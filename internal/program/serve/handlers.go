package serve

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/console"
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
	own, err := pages(o)
	return append(all, own...), errors.Join(append(errs, err)...)
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
	told := console.Config{Title: cmp.Or(brand.Title, title), Version: version, Query: o.plan.QueryPrefix, ClientCertificate: o.listeners.secure != nil}
	if users := o.mode.signIn(); users != nil {
		told.LoginNow = func() *console.Login { return loginChoices(users) }
	}
	if o.plan.SwaggerUI.Served {
		told.Swagger = console.SwaggerPath
	}
	if o.plan.Console.Served {
		told.Console = console.Path
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
