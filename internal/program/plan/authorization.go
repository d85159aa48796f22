package plan

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annexapi/annex/config"
)

// completeAuthorization fills in the authorization options of a standalone server and returns the first mistake.
func completeAuthorization(o *config.Options) error {
	w := &o.AuthorizationWebhook
	if o.AuthorizationConfigFile != "" {
		if len(o.AuthorizationModes) > 0 {
			return errors.New("Options.AuthorizationConfigFile and Options.AuthorizationModes exclude each other: set one of them")
		}
		return inVain("AuthorizationWebhook", *w, "Options.AuthorizationConfigFile configures the webhooks")
	}
	if len(o.AuthorizationModes) == 0 {
		o.AuthorizationModes = []config.AuthorizationMode{config.AuthorizationRBAC}
	}
	for i, mode := range o.AuthorizationModes {
		switch mode {
		case config.AuthorizationRBAC, config.AuthorizationWebhook, config.AuthorizationAlwaysAllow, config.AuthorizationAlwaysDeny:
		default:
			return fmt.Errorf("Options.AuthorizationModes %q: use %s, %s, %s or %s", mode,
				config.AuthorizationRBAC, config.AuthorizationWebhook, config.AuthorizationAlwaysAllow, config.AuthorizationAlwaysDeny)
		}
		if slices.Contains(o.AuthorizationModes[:i], mode) {
			return fmt.Errorf("Options.AuthorizationModes has %s twice", mode)
		}
	}
	if !slices.Contains(o.AuthorizationModes, config.AuthorizationWebhook) {
		return inVain("AuthorizationWebhook", *w, "add Webhook to Options.AuthorizationModes")
	}
	if w.ConfigFile == "" {
		return errors.New("Options.AuthorizationModes has Webhook, which needs Options.AuthorizationWebhook.ConfigFile")
	}
	if w.AuthorizedCacheTTL == 0 {
		w.AuthorizedCacheTTL = 5 * time.Minute
	}
	if w.UnauthorizedCacheTTL == 0 {
		w.UnauthorizedCacheTTL = 30 * time.Second
	}
	return completeVersion("Options.AuthorizationWebhook.Version", &w.Version)
}

// refuseAuthorization returns the first option that conflicts with authorization by the cluster.
func refuseAuthorization(o *config.Options) error {
	const reason = "requires a standalone server: the cluster authorizes requests for an aggregated server"
	switch {
	case len(o.AuthorizationModes) > 0:
		return errors.New("Options.AuthorizationModes " + reason)
	case o.AuthorizationConfigFile != "":
		return errors.New("Options.AuthorizationConfigFile " + reason)
	}
	return inVain("AuthorizationWebhook", o.AuthorizationWebhook, "the cluster authorizes requests for an aggregated server")
}
