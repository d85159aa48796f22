package cli

import (
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/program/plan"
)

// consoleFlags declares the flags that enable the web pages. Their defaults depend on the address that the server
// listens on.
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

// page is describe's output for a web page.
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
