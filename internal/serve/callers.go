package serve

import (
	"context"

	"github.com/annexapi/annex/internal/auth"
	"github.com/annexapi/annex/internal/plan"
)

// callers are the ways to know callers that the options name, besides certificates and the
// token file.
type callers struct {
	configuration *auth.Configuration // nil without Options.AuthenticationConfigFile
}

// openCallers reads their files. It asks nothing over the network.
func openCallers(ctx context.Context, p *plan.Plan) (*callers, error) {
	c := &callers{}
	o := &p.Options
	if o.AuthenticationConfigFile != "" {
		var err error
		c.configuration, err = auth.OpenConfiguration(ctx, auth.ConfigurationOptions{File: o.AuthenticationConfigFile, Server: p.Definition.Name})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *callers) close() error {
	if c.configuration != nil {
		c.configuration.Close()
	}
	return nil
}

// configure adds them to the others.
func (c *callers) configure(credentials *auth.Credentials) {
	if c.configuration != nil {
		credentials.Tokens = append(credentials.Tokens, c.configuration)
		credentials.Anonymous = c.configuration
	}
}

// run reads their files again when they change, until ctx is done.
func (c *callers) run(ctx context.Context) {
	if c.configuration != nil {
		c.configuration.Run(ctx)
	}
}
