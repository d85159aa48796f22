package cli

import (
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
)

// callersGroup is the part of the help about who callers are and what they may do.
const callersGroup = "Callers and their rights"

// callerFlags say who callers are. They have upstream's names and meanings.
func callerFlags(flags *pflag.FlagSet, o *config.Options) {
	flags.StringVar(&o.ClientCAFile, "client-ca-file", "", "authorities whose client certificates are accepted, besides the server's own or instead of the cluster's (PEM)")
	flags.StringVar(&o.TokenAuthFile, "token-auth-file", "", `CSV file of bearer tokens: token,user,uid,"group1,group2"`)
	flags.StringVar(&o.AuthenticationConfigFile, "authentication-config", "", "file that names the issuers of tokens that are accepted, and what is open to anonymous requests (AuthenticationConfiguration); read again when it changes")
}
