package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/auth"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/identity/clientcert"
	"github.com/annexapi/annex/internal/program/plan"
)

// callers are the authenticators from the options, except for certificates and the token file.
type callers struct {
	configuration *auth.Configuration // nil without Options.AuthenticationConfigFile
	webhook       authenticator.Token // nil without Options.TokenWebhook
	// proxy is the authenticating proxy whose headers identify callers, and proxyCA verifies its certificate; nil
	// without Options.RequestHeader.
	proxy     *authenticatorfactory.RequestHeaderConfig
	proxyCA   *dynamiccertificates.DynamicFileCAContent
	localhost user.Info // nil without Options.AllowLocalhost
}

// openCallers reads the configuration files of the authenticators. It sends nothing over the network.
func openCallers(ctx context.Context, p *plan.Plan, clientCA dynamiccertificates.CAContentProvider) (*callers, error) {
	c := &callers{}
	o := &p.Options
	if o.AuthenticationConfigFile != "" {
		var err error
		c.configuration, err = auth.OpenConfiguration(ctx, auth.ConfigurationOptions{
			File: o.AuthenticationConfigFile, Server: p.Definition.Name, Disallowed: o.ServiceAccounts.Issuers, Audiences: o.APIAudiences})
		if err != nil {
			return nil, err
		}
	}
	if o.TokenWebhook.ConfigFile != "" {
		var err error
		if c.webhook, err = auth.OpenTokenWebhook(o.TokenWebhook, o.APIAudiences); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	if o.RequestHeader.ClientCAFile != "" {
		if err := c.openProxy(o.RequestHeader, clientCA); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	if o.AllowLocalhost {
		c.localhost = &user.DefaultInfo{Name: certs.AdminUser, Groups: []string{certs.AdminGroup}}
		klog.FromContext(ctx).Error(nil, "Options.AllowLocalhost: every program on this machine is an administrator without credentials")
	}
	return c, nil
}

// openProxy reads the authorities of the proxy's certificate.
func (c *callers) openProxy(o config.RequestHeaderOptions, clientCA dynamiccertificates.CAContentProvider) error {
	var err error
	c.proxyCA, err = dynamiccertificates.NewDynamicCAContentFromFile("request-header", o.ClientCAFile)
	if err != nil {
		return fmt.Errorf("Options.RequestHeader.ClientCAFile: %w", err)
	}
	c.proxy = clientcert.RequestHeaders(o, c.proxyCA)
	if len(o.AllowedNames) > 0 {
		return nil
	}
	callers, err := cert.ParseCertsPEM(clientCA.CurrentCABundleContent())
	if err != nil {
		return fmt.Errorf("Options.ClientCAFile: %w", err)
	}
	proxies, err := cert.ParseCertsPEM(c.proxyCA.CurrentCABundleContent())
	if err != nil {
		return fmt.Errorf("Options.RequestHeader.ClientCAFile %s: %w", o.ClientCAFile, err)
	}
	for _, authority := range proxies {
		if slices.ContainsFunc(callers, authority.Equal) {
			return fmt.Errorf("Options.RequestHeader.ClientCAFile %s has a certificate authority that also issues certificates of users, "+
				"%q, so every user could impersonate any other: add "+
				"Options.RequestHeader.AllowedNames", o.ClientCAFile, authority.Subject.CommonName)
		}
	}
	return nil
}

func (c *callers) close() error {
	if c.configuration != nil {
		c.configuration.Close()
	}
	return nil
}

// configure adds the authenticators to the credentials.
func (c *callers) configure(credentials *auth.Credentials) {
	if c.configuration != nil {
		credentials.Tokens = append(credentials.Tokens, c.configuration)
		credentials.Anonymous = c.configuration
	}
	credentials.RequestHeaders, credentials.Localhost = c.proxy, c.localhost
	if c.webhook != nil { // last, because it is the slowest
		credentials.Tokens = append(credentials.Tokens, c.webhook)
	}
}

// run reloads the files when they change, until ctx is done.
func (c *callers) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	if c.configuration != nil {
		all.Go(func() { c.configuration.Run(ctx) })
	}
	if c.proxyCA != nil {
		all.Go(func() { c.proxyCA.Run(ctx, 1) })
	}
}

// authorities returns the authorities of all client certificates, of callers and of the proxy.
func (c *callers) authorities(clientCA dynamiccertificates.CAContentProvider) dynamiccertificates.CAContentProvider {
	if c.proxyCA == nil {
		return clientCA
	}
	return clientcert.Union(clientCA, c.proxyCA)
}
