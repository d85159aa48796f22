package serve

import (
	"fmt"

	"github.com/annexapi/annex/internal/identity/accounts"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
)

// openLogin opens the ways to sign in; nil if there are none. Sessions are in the default storage.
func openLogin(p *plan.Plan, storages Storages, keys *accounts.Keys, known *callers) (*login.Login, error) {
	o := p.Options.Login
	if o.UserFile == "" {
		return nil, nil
	}
	resource := login.Stored()
	sessions, err := storages.OfAny(resource.Resource).Open(resource)
	if err != nil {
		return nil, fmt.Errorf("open the storage of sessions: %w", err)
	}
	options := login.Options{
		UserFile:        o.UserFile,
		Awaited:         p.UsersAwaited,
		Issuer:          p.LoginIssuer(),
		PublicURL:       o.PublicURL,
		Audiences:       p.Options.APIAudiences,
		TokenLifetime:   o.TokenLifetime,
		IdleTimeout:     o.IdleTimeout,
		SessionLifetime: o.SessionLifetime,
		Title:           p.Definition.Name,
		Keys:            keys,
		Sessions:        sessions,
		Clock:           p.Options.Clock,
	}
	if known.configuration != nil {
		options.IDTokens = known.configuration
	}
	return login.Open(options)
}

// loginHandlers returns the handlers for signing in. They need no authentication: a user who signs in has no
// credentials yet.
func loginHandlers(users *login.Login) []upstream.Handler {
	var all []upstream.Handler
	handler := users.Handler()
	for _, path := range login.Paths() {
		all = append(all, upstream.Handler{Handler: handler, Definition: &define.Handler{Path: path}, Open: true})
	}
	if users.HasUsers() {
		all[0].Definition.OpenAPI = login.Document
	}
	return all
}
