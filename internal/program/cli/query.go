package cli

import "github.com/spf13/pflag"

// queryFlag says where queries are answered, if it is given.
func queryFlag(flags *pflag.FlagSet, prefix **string) {
	flags.Var(
		&optionalText{prefix},
		"query-prefix",
		`path at which queries are answered, as in /query; "" answers none (default: what the server says, /query)`,
	)
}

// optionalText is a text that may be empty, and may not be given.
type optionalText struct{ to **string }

func (t *optionalText) Set(text string) error {
	*t.to = &text
	return nil
}

func (t *optionalText) String() string {
	if t.to == nil || *t.to == nil {
		return ""
	}
	return **t.to
}

func (*optionalText) Type() string { return "string" }
