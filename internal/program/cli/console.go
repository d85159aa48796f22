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
		{"console", "serve a web console at /console/ to view and edit objects; the page needs no login, the objects do (default: " +
			"true if the server is standalone and listens only on loopback)", &o.Console},
		{"console-link", "let browsers sign in by one-time links of the verb console, and print one for the administrator at start, whoever " +
			"reads the output (default: as --console; printed if the server listens only on loopback and the output is a terminal)", &o.ConsoleLink},
		{"swagger-ui", "serve Swagger UI for the OpenAPI documents at /swagger-ui/ (default: the value of --console)", &o.SwaggerUI},
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
