package serve

import (
	"fmt"

	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/upstream"
)

// openLogin opens the ways to sign in; nil if there are none. Sessions are in the default storage.
func (m *standalone) openLogin(s *Server) (err error) {
	o := m.plan.Options.Login
	if o.UserFile == "" {
		return nil
	}
	resource := login.Stored()
	sessions, err := s.storages.OfAny(resource.Resource).Open(resource)
	if err != nil {
		return fmt.Errorf("open the storage of sessions: %w", err)
	}
	options := login.Options{
		UserFile:        o.UserFile,
		Awaited:         m.plan.UsersAwaited,
		Issuer:          m.plan.LoginIssuer(),
		PublicURL:       o.PublicURL,
		Audiences:       m.plan.Options.APIAudiences,
		TokenLifetime:   o.TokenLifetime,
		IdleTimeout:     o.IdleTimeout,
		SessionLifetime: o.SessionLifetime,
		Title:           m.plan.Definition.Name,
		Keys:            m.keys,
		Sessions:        sessions,
	}
	if m.callers.configuration != nil {
		options.IDTokens = m.callers.configuration
	}
	m.login, err = login.Open(options)
	s.login = m.login
	return err
}

// loginHandlers returns the handlers for signing in. They need no authentication: a user who signs in has no
// credentials yet.
func (m *standalone) loginHandlers() []upstream.Handler {
	if m.login == nil {
		return nil
	}
	var all []upstream.Handler
	handler := m.login.Handler()
	for _, path := range login.Paths() {
		all = append(all, upstream.Handler{Handler: handler, Definition: &define.Handler{Path: path}, Open: true})
	}
	if m.login.HasUsers() {
		all[0].Definition.OpenAPI = login.Document
	}
	return all
}
