package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/store/driver"
)

// editorsOf returns the editors of the kinds by key prefix. ensure creates a namespace if it does not exist.
func editorsOf(
	kinds []*registry.Kind,
	schemes *convert.Machinery,
	ensure func(ctx context.Context, namespace string) error,
) map[string][]*registry.Editor {
	all := map[string][]*registry.Editor{}
	for _, k := range kinds {
		if !k.Definition.IsStored() {
			continue
		}
		prefix := registry.KeyPrefix(k.Definition.Primary().StoredUnder)
		all[prefix] = append(all[prefix], k.Editor(schemes.Of(k.Definition.Group), ensure))
	}
	return all
}

// decideEdits returns the function that applies edits of a storage's files to the API by editors.
func decideEdits(editors map[string][]*registry.Editor) driver.Decide {
	return func(ctx context.Context, e *driver.Edit) ([]byte, error) {
		for prefix, all := range editors {
			rest, ok := strings.CutPrefix(e.Key, prefix+"/")
			if !ok {
				continue
			}
			namespace, name, namespaced := strings.Cut(rest, "/")
			if !namespaced {
				namespace, name = "", namespace
			}
			says, err := registry.EditorOf(all, e.Document).
				Do(ctx, registry.Edit{Namespace: namespace, Name: name, Document: e.Document, Onto: e.Onto})
			if errors.Is(err, registry.ErrMistaken) {
				return nil, driver.Broken(err)
			}
			return says, err
		}
		return nil, fmt.Errorf("no kind has the key %s", e.Key)
	}
}

// awaitEdits returns when every storage with editable files has been scanned once, so that the server serves edits from
// the time before its start.
func (s Storages) awaitEdits(ctx context.Context) error {
	for _, storage := range s.edited() {
		select {
		case <-storage.edited.Observed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// editsCheck reports at /readyz?verbose, under the name of the storage, that edits could not be applied or records
// could not be written to files. The server stays ready: it serves the previous objects, and the journal has every
// write.
type editsCheck struct{ *Storage }

var _ healthz.GroupedHealthChecker = editsCheck{}

func (c editsCheck) GroupName() string { return c.Storage.Name() }

func (c editsCheck) Name() string {
	name := c.GroupName()
	if len(c.edited.Problems()) > 0 {
		name += " (some are not served, see the server's log)"
	}
	if len(c.edited.Overdue()) > 0 {
		name += " (some cannot be written, see the server's log)"
	}
	return name
}

func (c editsCheck) Check(*http.Request) error { return nil }

func (s Storages) editsChecks() (all []healthz.HealthChecker) {
	for _, storage := range s.edited() {
		all = append(all, editsCheck{storage})
	}
	return all
}

// editsMetrics are the metrics of a storage with editable files.
func editsMetrics(storage string, edited driver.Edited) []prometheus.Collector {
	count := func(name, help string, problems func() []driver.Problem) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"storage": storage}},
			func() float64 { return float64(len(problems())) })
	}
	return []prometheus.Collector{
		count("annex_storage_broken_files", "Files of the storage that the server does not serve; its log lists them.", edited.Problems),
		count("annex_storage_overdue_files", "Files of the storage that the server could not write yet; its log has "+
			"the errors.", edited.Overdue),
	}
}

// logHidden logs the resources that have no files because they are encrypted.
func (s Storages) logHidden(ctx context.Context, keys *encryption.Encryption) {
	for _, storage := range s.edited() {
		for _, r := range storage.Resources {
			if key := keys.Key(r); key.Provider != "" && key.Provider != "identity" {
				klog.FromContext(ctx).Error(nil, "Encrypted objects are not written to files", "resource", r)
			}
		}
	}
}
