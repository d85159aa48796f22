// Package apiexts serves plain REST endpoints beside a Kubernetes-style API: packages with a function Register each,
// by Echo, behind the API's authentication, authorization and audit. The endpoints run in the process of the server,
// or in that of its controllers, to which the server then forwards requests.
package apiexts

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v5"
	"github.com/spf13/cobra"

	"github.com/annexapi/annex"
)

// Register adds the endpoints of a package to its group of paths. Endpoints are called with a context from which
// annex.Caller returns the caller; clients made with env.CallerConfig act as that caller.
type Register func(group *echo.Group, env *annex.Env) error

// Extensions are the packages of a server, with the place where they are served.
type Extensions struct {
	prefix   string
	packages map[string]Register

	url         backend // of the process that serves them; empty for this one
	secretFile  string  // file with the shared secret of the server and that process
	bindAddress string  // of that process
}

// New returns extensions for packages, by the path element of each behind the prefix.
func New(prefix string, packages map[string]Register) *Extensions {
	return &Extensions{prefix: prefix, packages: packages}
}

// AddFlags adds flags to the verbs serve and controllers.
func (e *Extensions) AddFlags(root *cobra.Command) {
	secret := fmt.Sprintf("file with what the server and the process that serves %s know each other by; the first of them makes it", e.prefix)
	if serve, _, err := root.Find([]string{"serve"}); err == nil {
		serve.Flags().Var(&e.url, "apiext-url", fmt.Sprintf("URL of the process of controllers that serves %s, https or of this machine "+
			"(default: the server itself)", e.prefix))
		serve.Flags().StringVar(&e.secretFile, "apiext-secret-file", "", secret)
	}
	if controllers, _, err := root.Find([]string{"controllers"}); err == nil {
		controllers.Flags().StringVar(&e.bindAddress, "apiext-bind-address", "", fmt.Sprintf("loopback address and port at which %s is "+
			"served for a server with --apiext-url (default: not here)", e.prefix))
		controllers.Flags().StringVar(&e.secretFile, "apiext-secret-file", "", secret)
	}
}

// Handler returns the server's handler for the paths.
func (e *Extensions) Handler() annex.Handler {
	return annex.Handler{Path: e.prefix, New: func(env *annex.Env) (http.Handler, error) {
		if e.url.URL == nil {
			return e.echo(env)
		}
		secret, err := e.secret()
		if err != nil {
			return nil, err
		}
		return newProxy(e.url.URL, secret), nil
	}}
}

// Controller serves the paths in the leading process of the controllers, if its flags set an address. In the server
// it does nothing.
func (e *Extensions) Controller(name string) annex.Controller {
	return annex.Controller{Name: name, Run: func(ctx context.Context, env *annex.Env) error {
		if e.bindAddress == "" {
			return nil
		}
		handler, err := e.echo(env)
		if err != nil {
			return err
		}
		secret, err := e.secret()
		if err != nil {
			return err
		}
		return serve(ctx, e.bindAddress, behindProxy(handler, secret))
	}}
}

// echo returns the handler of all packages.
func (e *Extensions) echo(env *annex.Env) (http.Handler, error) {
	router := echo.New()
	router.HTTPErrorHandler = answerEcho
	for _, name := range slices.Sorted(maps.Keys(e.packages)) {
		if err := e.packages[name](router.Group(strings.TrimSuffix(e.prefix, "/")+"/"+name), env); err != nil {
			return nil, fmt.Errorf("package %s of %s: %w", name, e.prefix, err)
		}
	}
	return router, nil
}
