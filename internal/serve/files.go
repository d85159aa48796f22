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

	"github.com/annexapi/annex/internal/registry"
	"github.com/annexapi/annex/store/files"
)

// editorsOf are the editors of the kinds. Ensure makes a namespace that is missing.
func (s *Server) editorsOf(ensure func(ctx context.Context, namespace string) error) map[string][]*registry.Editor {
	all := map[string][]*registry.Editor{}
	for _, k := range s.kinds {
		if !k.Definition.IsStored() {
			continue
		}
		prefix := registry.KeyPrefix(k.Definition.Owner().StoredUnder)
		all[prefix] = append(all[prefix], k.Editor(s.machinery.Of(k.Definition.Group), ensure))
	}
	return all
}

// runFiles takes in what people do to the files until the context ends.
func (s *Server) runFiles(ctx context.Context) error {
	storage := s.storages.files()
	if storage == nil {
		return nil
	}
	editors := s.mode.editors(s)
	decide := func(ctx context.Context, p *files.Proposal) ([]byte, error) {
		for prefix, all := range editors {
			rest, ok := strings.CutPrefix(p.Key, prefix+"/")
			if !ok {
				continue
			}
			namespace, name, namespaced := strings.Cut(rest, "/")
			if !namespaced {
				namespace, name = "", namespace
			}
			says, err := registry.EditorOf(all, p.Document).Do(ctx, registry.Edit{Namespace: namespace, Name: name, Document: p.Document, Onto: p.Onto})
			if errors.Is(err, registry.ErrMistaken) {
				return nil, files.Broken(err)
			}
			return says, err
		}
		return nil, fmt.Errorf("no kind has the key %s", p.Key)
	}
	return storage.files.Run(ctx, files.Hooks{Decide: decide})
}

// awaitFiles returns when the files have been looked at once, so that what was done
// to them while no server ran is served from the start.
func (s *Server) awaitFiles(ctx context.Context) error {
	storage := s.storages.files()
	if storage == nil {
		return nil
	}
	select {
	case <-storage.files.Observed():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// filesCheck shows at /readyz?verbose that files are not served, or cannot be written.
// The server is ready all the same: what was served before still is, and what was
// written is in the journal.
type filesCheck struct {
	files *files.Journal
}

var _ healthz.GroupedHealthChecker = filesCheck{}

const filesCheckName = "files"

func (c filesCheck) GroupName() string { return filesCheckName }

func (c filesCheck) Name() string {
	name := filesCheckName
	if len(c.files.Problems()) > 0 {
		name += " (some are not served, the log names them)"
	}
	if len(c.files.Overdue()) > 0 {
		name += " (some cannot be written, the log says why)"
	}
	return name
}

func (c filesCheck) Check(*http.Request) error { return nil }

func (s *Server) filesChecks() []healthz.HealthChecker {
	storage := s.storages.files()
	if storage == nil {
		return nil
	}
	return []healthz.HealthChecker{filesCheck{storage.files}}
}

// filesMetrics are the figures of the files.
type filesMetrics struct{ files *files.Journal }

var (
	brokenFiles = prometheus.NewDesc("annex_storage_broken_files",
		"Files in the tree of the storage files that are not served; the log names them.", nil, nil)
	overdueFiles = prometheus.NewDesc("annex_storage_overdue_files",
		"Files in the tree of the storage files that could not be written yet; the log says why.", nil, nil)
)

func (m filesMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- brokenFiles
	out <- overdueFiles
}

func (m filesMetrics) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(brokenFiles, prometheus.GaugeValue, float64(len(m.files.Problems())))
	out <- prometheus.MustNewConstMetric(overdueFiles, prometheus.GaugeValue, float64(len(m.files.Overdue())))
}

// logHidden says which kinds have no files.
func (s *Server) logHidden(ctx context.Context) {
	storage := s.storages.files()
	if storage == nil {
		return
	}
	for _, r := range storage.Resources {
		if key := s.encryption.Key(r); key.Provider != "" && key.Provider != "identity" {
			klog.FromContext(ctx).Error(nil, "Encrypted objects have no files", "resource", r)
		}
	}
}
