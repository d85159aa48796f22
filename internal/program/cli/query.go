package cli

import "github.com/spf13/pflag"

// queryFlag declares the flag for the path prefix of the query API; without the flag, prefix stays nil.
func queryFlag(flags *pflag.FlagSet, prefix **string) {
	flags.Var(
		&optionalText{prefix},
		"query-prefix",
		`path for queries, such as /query; "" disables queries (default: the path that the program sets, or /query)`,
	)
}

// optionalText is the value of a string flag whose target stays nil until the flag is given, since the empty string
// is a valid value.
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
