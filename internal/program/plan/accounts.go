package plan

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/annexapi/annex/config"
)

const (
	// TokenExpiration is the default maximum lifetime of service account tokens.
	TokenExpiration = 365 * 24 * time.Hour
	// minTokenExpiration and maxTokenExpiration are kube-apiserver's bounds for the maximum lifetime.
	minTokenExpiration, maxTokenExpiration = time.Hour, (1 << 32) * time.Second
)

// completeAccounts fills in defaults and returns the first mistake.
func (p *Plan) completeAccounts() error {
	o := &p.Options.ServiceAccounts
	if len(o.Issuers) == 0 {
		o.Issuers = []string{"https://" + p.Definition.Name}
	}
	for i, issuer := range o.Issuers {
		switch _, err := url.Parse(issuer); {
		case issuer == "":
			return errors.New("Options.ServiceAccounts.Issuers has an empty issuer")
		case strings.Contains(issuer, ":") && err != nil:
			return fmt.Errorf("Options.ServiceAccounts.Issuers %q contains a colon, but is not a URL: %w", issuer, errors.Unwrap(err))
		case slices.Contains(o.Issuers[:i], issuer):
			return fmt.Errorf("Options.ServiceAccounts.Issuers %q is set twice", issuer)
		}
	}
	if len(p.Options.APIAudiences) == 0 {
		p.Options.APIAudiences = slices.Clone(o.Issuers)
	}
	if slices.Contains(p.Options.APIAudiences, "") {
		return errors.New("Options.APIAudiences has an empty audience")
	}
	if slices.Contains(o.KeyFiles, "") {
		return errors.New("Options.ServiceAccounts.KeyFiles has an empty name")
	}
	if u, err := url.Parse(o.JWKSURI); o.JWKSURI != "" && (err != nil || u.Scheme != "https" || u.Host == "") {
		return fmt.Errorf("Options.ServiceAccounts.JWKSURI %q is not an https URL", o.JWKSURI)
	}
	switch longest := o.MaxTokenExpiration; {
	case longest == 0:
		o.MaxTokenExpiration = TokenExpiration
	case longest > 0 && (longest < minTokenExpiration || longest > maxTokenExpiration):
		return fmt.Errorf("Options.ServiceAccounts.MaxTokenExpiration %s is not between an hour and 2^32 seconds", longest)
	}
	return nil
}

// Discoverable reports whether the server can publish discovery documents for its service account keys. OpenID
// Connect permits this only for issuers with https URLs.
func (p *Plan) Discoverable() bool {
	if len(p.Options.ServiceAccounts.Issuers) == 0 {
		return false // a plan of Everything
	}
	u, err := url.Parse(p.Options.ServiceAccounts.Issuers[0])
	return err == nil && u.Scheme == "https" && u.RawQuery == "" && u.Fragment == ""
}

// SigningKey returns the path of the key that signs service account tokens, empty if there is none, and whether the
// server generates the key itself.
func (p *Plan) SigningKey() (path string, own bool) {
	if file := p.Options.ServiceAccounts.SigningKeyFile; file != "" {
		return file, false
	}
	dir := p.CertDir()
	if dir == "" {
		return "", false
	}
	return filepath.Join(dir, "service-account.key"), true
}

// noAccounts rejects options for service accounts and for an administrator on an aggregated server, which has
// neither.
func noAccounts(o *config.Options) error {
	for _, part := range []struct {
		name, why string
		fields    reflect.Value
	}{
		{"ServiceAccounts", "an aggregated server uses the service accounts of its cluster", reflect.ValueOf(o.ServiceAccounts)},
		{"Kubeconfig", "an aggregated server has no administrator", reflect.ValueOf(o.Kubeconfig)},
	} {
		for i := range part.fields.NumField() {
			if !part.fields.Field(i).IsZero() {
				field := "Options." + part.name + "." + part.fields.Type().Field(i).Name
				return fmt.Errorf("%s requires a standalone server: %s", field, part.why)
			}
		}
	}
	if len(o.APIAudiences) > 0 {
		return errors.New("Options.APIAudiences requires a standalone server: the cluster authenticates tokens for an aggregated server")
	}
	return nil
}
