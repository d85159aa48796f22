package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/program/serve"
)

// memoryFlags bound what a server keeps in memory, and what requests may need of it.
type memoryFlags struct {
	requests, objectCache, valueCache, historyBytes resource.QuantityValue
}

func (f *memoryFlags) declare(flags *pflag.FlagSet) {
	binary := func(bytes int64) resource.QuantityValue {
		return resource.QuantityValue{Quantity: *resource.NewQuantity(bytes, resource.BinarySI)}
	}
	f.objectCache, f.valueCache, f.historyBytes = binary(256<<20), binary(1<<30), binary(256<<20)
	flags.Var(&f.historyBytes, "history-bytes", "how many bytes of old objects are kept at most; this limit wins; 0 has none")
	flags.Var(&f.objectCache, "object-cache-size", "memory for decoded objects, for each storage; 0 decodes an object each time it is read")
	flags.Var(&f.valueCache, "value-cache-size", "memory for the encoded bytes of objects, for each storage; those written longest ago "+
		"are read from disk beyond it, and those of 64Ki and more beyond a sixteenth of it; 0 keeps none")
	flags.Var(&f.requests, "memory-budget", "memory that requests may need at once, for bodies and lists; others wait, then get 429; 0 "+
		"bounds nothing (default: a quarter of what the process may use, 1Gi at most)")
}

func (f *memoryFlags) complete(flags *pflag.FlagSet, options *config.Options) error {
	options.ObjectCacheSize, options.ValueCacheSize = f.objectCache.Value(), f.valueCache.Value()
	options.HistoryBytes, options.MemoryBudget = f.historyBytes.Value(), f.requests.Value()
	err := errors.Join(
		zeroIsNone(flags, "object-cache-size", &options.ObjectCacheSize),
		zeroIsNone(flags, "value-cache-size", &options.ValueCacheSize),
		zeroIsNone(flags, "history-bytes", &options.HistoryBytes),
	)
	if flags.Changed("memory-budget") { // Its default is the machine's, and no number.
		err = errors.Join(err, zeroIsNone(flags, "memory-budget", &options.MemoryBudget))
	}
	return err
}

// memoryDescription are the bounds in bytes; -1 is none. All but those of requests and of items of lists are of each storage but etcd.
type memoryDescription struct {
	Requests       int64 `json:"requests"`
	EncodedObjects int64 `json:"encodedObjects"`
	DecodedObjects int64 `json:"decodedObjects"`
	History        int64 `json:"history"`
	// LabelIndexes is in entries, of about 150 bytes.
	LabelIndexes int64 `json:"labelIndexEntries"`
	// ListItems is of the server, for lists of what is not stored as clients get it.
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
	return fmt.Sprintf("requests %s; items of lists that are stored otherwise or in etcd %s; of each storage but etcd, encoded objects "+
		"%s, decoded objects %s, history %s, indexes of labels %d entries",
		text(d.Requests), text(d.ListItems), text(d.EncodedObjects), text(d.DecodedObjects), text(d.History), d.LabelIndexes)
}
