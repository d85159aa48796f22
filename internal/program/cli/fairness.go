package cli

import (
	"strconv"

	"github.com/spf13/pflag"
)

// fairnessFlag declares upstream's flag, whose default depends on the mode.
func fairnessFlag(flags *pflag.FlagSet, to **bool) {
	const name = "enable-priority-and-fairness"
	flags.Var(optionalBool{to}, name, "queue requests by flow schemas and priority levels; an aggregated server uses those of its "+
		"cluster if it "+
		"may read them; if false, the server only limits the number of requests in flight (default: true for aggregated servers and control "+
		"planes, else false)")
	flags.Lookup(name).NoOptDefVal = "true"
}

// optionalBool is the value of a boolean flag whose target stays nil until the flag is given.
type optionalBool struct{ to **bool }

func (b optionalBool) Type() string { return "bool" }

func (b optionalBool) String() string {
	if b.to == nil || *b.to == nil { // pflag calls String on a zero value to detect defaults
		return ""
	}
	return strconv.FormatBool(**b.to)
}

// Set implements pflag.Value.
func (b optionalBool) Set(text string) error {
	value, err := strconv.ParseBool(text)
	if err == nil {
		*b.to = &value
	}
	return err
}
