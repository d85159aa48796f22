package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/program/serve"
)

// memoryFlags are the bounds of the caches and of the memory for requests.
type memoryFlags struct {
	requests, objectCache, valueCache, historyBytes resource.QuantityValue
}

func (f *memoryFlags) declare(flags *pflag.FlagSet) {
	binary := func(bytes int64) resource.QuantityValue {
		return resource.QuantityValue{Quantity: *resource.NewQuantity(bytes, resource.BinarySI)}
	}
	f.objectCache, f.valueCache, f.historyBytes = binary(256<<20), binary(1<<30), binary(256<<20)
	flags.Var(&f.historyBytes, "history-bytes", "maximum size of the history in bytes; takes precedence over the other history "+
		"limits; 0 sets no limit")
	flags.Var(&f.objectCache, "object-cache-size", "maximum memory for decoded objects, for each storage; 0 decodes an object on each read")
	flags.Var(&f.valueCache, "value-cache-size", "maximum memory for encoded objects, for each storage; beyond it, the server reads "+
		"the least "+
		"recently written objects from disk, and objects of 64Ki and more already beyond a sixteenth of it; 0 keeps none in memory")
	flags.Var(&f.requests, "memory-budget", "maximum memory for the bodies and lists of all running requests; further requests wait, "+
		"then get 429; 0 sets no limit (default: a quarter of the memory of the process, at most 1Gi)")
}

func (f *memoryFlags) complete(flags *pflag.FlagSet, options *config.Options) error {
	options.ObjectCacheSize, options.ValueCacheSize = f.objectCache.Value(), f.valueCache.Value()
	options.HistoryBytes, options.MemoryBudget = f.historyBytes.Value(), f.requests.Value()
	err := errors.Join(
		zeroIsNone(flags, "object-cache-size", &options.ObjectCacheSize),
		zeroIsNone(flags, "value-cache-size", &options.ValueCacheSize),
		zeroIsNone(flags, "history-bytes", &options.HistoryBytes),
	)
	if flags.Changed("memory-budget") { // The default depends on the machine's memory, so it is no constant.
		err = errors.Join(err, zeroIsNone(flags, "memory-budget", &options.MemoryBudget))
	}
	return err
}

// memoryDescription holds the bounds in bytes; -1 means unbounded. Each storage except etcd has its own, except for
// the bounds of requests and list items, which apply to the whole server.
type memoryDescription struct {
	Requests       int64 `json:"requests"`
	EncodedObjects int64 `json:"encodedObjects"`
	DecodedObjects int64 `json:"decodedObjects"`
	History        int64 `json:"history"`
	// LabelIndexes is a number of entries, of about 150 bytes each.
	LabelIndexes int64 `json:"labelIndexEntries"`
	// ListItems bounds the cache of encoded list items, for objects whose stored form differs from the served form.
	// It applies to the whole server.
	ListItems int64 `json:"listItems"`
}

func describeMemory(o config.Options) memoryDescription {
	return memoryDescription{
		serve.MemoryBudget(o.MemoryBudget),
		max(0, o.ValueCacheSize),
		max(0, o.ObjectCacheSize),
		o.HistoryBytes,
		serve.LabelIndexEntries,
		serve.ListItems(),
	}
}

func (d memoryDescription) String() string {
	text := func(bytes int64) string {
		if bytes < 0 {
			return "without bounds"
		}
		return resource.NewQuantity(bytes, resource.BinarySI).String()
	}
	return fmt.Sprintf("requests %s; list items that need conversion or are stored in etcd %s; for each storage except etcd: encoded "+
		"objects %s, decoded objects %s, history %s, label indexes %d entries",
		text(d.Requests), text(d.ListItems), text(d.EncodedObjects), text(d.DecodedObjects), text(d.History), d.LabelIndexes)
}
