package plan

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/annexapi/annex/config"
)

// completeCallers fills in the authentication options of a standalone server and returns the first mistake.
func completeCallers(o *config.Options) error {
	if err := completeRequestHeader(o.RequestHeader); err != nil {
		return err
	}
	w := &o.TokenWebhook
	if w.ConfigFile == "" {
		return inVain("TokenWebhook", *w, "add Options.TokenWebhook.ConfigFile")
	}
	if err := completeVersion("Options.TokenWebhook.Version", &w.Version); err != nil {
		return err
	}
	if w.CacheTTL == 0 {
		w.CacheTTL = 2 * time.Minute
	}
	return nil
}

// completeVersion checks the version of the reviews that are sent to a webhook; the default is upstream's.
func completeVersion(field string, version *string) error {
	switch *version {
	case "":
		*version = "v1beta1"
	case "v1", "v1beta1":
	default:
		return fmt.Errorf("%s %q: choose v1 or v1beta1", field, *version)
	}
	return nil
}

// refuseCallers returns the first option that conflicts with authentication by the cluster.
func refuseCallers(o *config.Options) error {
	switch {
	case o.TokenAuthFile != "":
		return errors.New("Options.TokenAuthFile requires a standalone server: the cluster authenticates tokens for an aggregated server")
	case o.AuthenticationConfigFile != "":
		return errors.New("Options.AuthenticationConfigFile requires a standalone server: the cluster authenticates users for an " +
			"aggregated server")
	case len(o.ClientCA) > 0:
		return errors.New("client authorities in memory require a standalone server: use Options.ClientCAFile, which replaces the " +
			"authorities of the cluster")
	case o.AllowLocalhost:
		return errors.New("Options.AllowLocalhost requires a standalone server: an aggregated server has no administrator")
	}
	if err := completeRequestHeader(o.RequestHeader); err != nil {
		return err
	}
	if uids := o.RequestHeader.UIDHeaders; len(uids) > 0 &&
		!slices.ContainsFunc(uids, func(h string) bool { return strings.EqualFold(h, "X-Remote-Uid") }) {
		return errors.New("Options.RequestHeader.UIDHeaders lacks X-Remote-Uid, the header that the cluster sends")
	}
	return inVain("TokenWebhook", o.TokenWebhook, "the cluster authenticates tokens for an aggregated server")
}

// completeRequestHeader returns the first mistake in the options of the authenticating proxy.
func completeRequestHeader(o config.RequestHeaderOptions) error {
	for _, header := range []struct {
		field  string
		values []string
	}{
		{"Options.RequestHeader.AllowedNames", o.AllowedNames},
		{"Options.RequestHeader.UsernameHeaders", o.UsernameHeaders},
		{"Options.RequestHeader.UIDHeaders", o.UIDHeaders},
		{"Options.RequestHeader.GroupHeaders", o.GroupHeaders},
		{"Options.RequestHeader.ExtraHeadersPrefix", o.ExtraHeadersPrefix},
	} {
		if len(header.values) > 0 && o.ClientCAFile == "" {
			return fmt.Errorf("%s requires Options.RequestHeader.ClientCAFile, the certificate authorities of clients that may send "+
				"the headers", header.field)
		}
		for _, value := range header.values {
			if strings.TrimSpace(value) == "" {
				return fmt.Errorf("%s has an empty value", header.field)
			}
		}
	}
	return nil
}

// inVain rejects the first non-zero field of options that have no effect in this configuration.
func inVain(field string, given any, reason string) error {
	value := reflect.ValueOf(given)
	for i := range value.NumField() {
		if !value.Field(i).IsZero() {
			return fmt.Errorf("%s.%s has no effect: %s", "Options."+field, value.Type().Field(i).Name, reason)
		}
	}
	return nil
}
