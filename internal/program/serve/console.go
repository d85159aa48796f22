package serve

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/console"
	"github.com/annexapi/annex/internal/server/upstream"
)

// pages returns the handlers of the console and of Swagger UI. They need no authentication, because users see them
// before they sign in, and they show no stored data.
func (s *Server) pages() ([]upstream.Handler, error) {
	var all []upstream.Handler
	add := func(path string, handler http.Handler, err error) error {
		if err != nil {
			return err
		}
		all = append(all, upstream.Handler{Handler: handler, Definition: &define.Handler{Path: path}, Open: true})
		return nil
	}
	brand := s.definition.Console
	title, version := upstream.About(s.definition)
	told := console.Config{Title: cmp.Or(brand.Title, title), Version: version, Query: s.plan.QueryPrefix, ClientCertificate: s.secure != nil}
	if s.login != nil {
		told.LoginNow = s.signIn
	}
	if s.plan.SwaggerUI.Served {
		told.Swagger = console.SwaggerPath
	}
	if s.plan.Console.Served {
		told.Console = console.Path
		handler, err := console.Console(told, brand.Logo, brand.LogoType())
		if err := add(console.Path, handler, err); err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
	}
	if s.plan.SwaggerUI.Served {
		handler, err := console.SwaggerUI(told)
		if err := add(console.SwaggerPath, handler, err); err != nil {
			return nil, fmt.Errorf("page of Swagger UI: %w", err)
		}
	}
	return all, nil
}

// ConsoleURL returns the URL of the console; empty if it is not served or the server does not listen.
func (s *Server) ConsoleURL() string {
	if base := cmp.Or(s.URL(), s.InsecureURL()); base != "" && s.plan.Console.Served {
		return base + console.Path
	}
	return ""
}

// signIn returns the ways to sign in at this moment; nil if there are none.
func (s *Server) signIn() *console.Login {
	if !s.login.HasUsers() {
		return nil
	}
	told := &console.Login{Password: true}
	for _, c := range s.login.Choices() {
		told.Providers = append(told.Providers, console.Provider(c))
	}
	return told
}
