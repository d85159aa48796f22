package cli

import (
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
)

// accessLogFlags are the flags of the access log, which has one line for each request.
type accessLogFlags struct{ rotation rotationFlags }

func (a *accessLogFlags) declare(flags *pflag.FlagSet, o *config.AccessLogOptions) {
	flags.StringVar(&o.Path, "access-log", "", "file for the access log, which gets a line at the end of each request; - is standard output")
	flags.StringVar(&o.Format, "access-log-format", "", "text or json (default text)")
	a.rotation.declare(flags, "access-log")
}

func (a *accessLogFlags) complete(flags *pflag.FlagSet, o *config.AccessLogOptions) error {
	return a.rotation.complete(flags, "access-log", &o.Rotation)
}
