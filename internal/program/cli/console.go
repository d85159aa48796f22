package cli

import (
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/program/plan"
)

// consoleFlags say which pages for people are served. Their defaults depend on where the server
// listens.
func consoleFlags(flags *pflag.FlagSet, o *config.Options) {
	for _, f := range []struct {
		name, usage string
		to          **bool
	}{
		{"console", "serve a page at /console/ with which people see and edit objects; it is open, what it shows is not (default: true if " +
			"only loopback is listened on and the server stands alone)", &o.Console},
		{"swagger-ui", "serve a page at /swagger-ui/ that shows the OpenAPI documents (default: as --console)", &o.SwaggerUI},
	} {
		flags.Var(optionalBool{f.to}, f.name, f.usage)
		flags.Lookup(f.name).NoOptDefVal = "true"
	}
}

// page is what describe prints of a page.
type page struct {
	Served bool    `json:"served"`
	From   *source `json:"from"`
}

func describePage(p plan.Page) page { return page{p.Served, sourceOf(p.From)} }

func (p page) String() string {
	if p.Served {
		return p.From.of("served")
	}
	return p.From.of("none")
}
