package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/store"
)

// historyFlags declares the flags for the history that clients read.
func historyFlags(flags *pflag.FlagSet, options *config.Options) {
	flags.Var(&historyOf{&options.HistoryOf}, "history-of", "revisions that are kept of the objects of individual resources, as in "+
		"widgets.example.com=720h, widgets.example.com=100 for each object, or 720h+100 for both bounds; 720h+10Gi bounds the size of all, too")
	flags.BoolVar(&options.HistoryOfSecrets, "history-of-secrets", false, "let callers who may get a Secret read its history, too")
}

// historyText returns a retention for people; empty if it keeps nothing.
func historyText(keep store.Retention) string {
	if !keep.Keeps() {
		return ""
	}
	bytes := keep.Bytes
	if bytes == 0 {
		bytes = store.DefaultRetentionBytes
	}
	var bounds []string
	if keep.Age > 0 {
		bounds = append(bounds, config.History{Age: keep.Age}.String())
	}
	if keep.Revisions > 0 {
		bounds = append(bounds, fmt.Sprintf("%d revisions of each object", keep.Revisions))
	}
	return strings.Join(append(bounds, "at most "+resource.NewQuantity(bytes, resource.BinarySI).String()), ", ")
}

// historyOf is the value of --history-of.
type historyOf struct {
	to *map[schema.GroupResource]config.History
}

// Set implements pflag.Value.
func (h *historyOf) Set(text string) error {
	for entry := range strings.SplitSeq(text, ",") {
		name, keep, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return fmt.Errorf("%q is not RESOURCE.GROUP=HISTORY", entry)
		}
		parsed, err := config.ParseHistory(keep)
		if err != nil {
			return err
		}
		if *h.to == nil {
			*h.to = map[schema.GroupResource]config.History{}
		}
		(*h.to)[schema.ParseGroupResource(name)] = parsed
	}
	return nil
}

// String implements pflag.Value.
func (h *historyOf) String() string {
	if h.to == nil {
		return ""
	}
	var all []string
	for name, keep := range *h.to {
		all = append(all, name.String()+"="+keep.String())
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// Type implements pflag.Value.
func (*historyOf) Type() string { return "stringToString" }
