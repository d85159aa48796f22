package serve

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/program/maintenance"
)

// checkForms returns an error if a stored object cannot be decoded: its version is no longer in the definition, its
// Go type has lost the media type, or a field has changed its type. Such an object would break every list of its
// kind. Objects that belong to no kind break no request, but no request shows them either, so checkForms logs them.
func (s *Server) checkForms(ctx context.Context) error {
	all, unserved, err := s.tools.Forms(ctx)
	if err != nil {
		return err
	}
	s.storedEncodings.set(all)
	for _, u := range unserved {
		if strings.HasPrefix(login.Prefix(), u.Prefix) {
			continue // login sessions, which are no API objects
		}
		klog.FromContext(ctx).
			Error(nil, "Objects are stored that no kind of this server serves: no client sees them until one does", "storage", u.Storage,
				"under", u.Prefix, "objects", u.Objects)
	}
	var undecodable, old []string
	var missing, changed string // advice for the undecodable objects
	for _, f := range all {
		for _, c := range f.Counts {
			switch stored := fmt.Sprintf("%d %s as %s", c.Objects, f.Resource, c); {
			case c.Undecodable:
				undecodable = append(undecodable, stored)
				missing = "declare what is missing again, Unserved if clients are not to have it, and remove it after storage rewrite; "
			case c.Problem != "":
				undecodable = append(undecodable, fmt.Sprintf("%s, of which %s", stored, c.Problem))
				changed = "give fields the types again that they were stored with; "
			case c.Old && c.MediaType != "":
				old = append(old, stored)
			}
		}
	}
	if len(old) > 0 {
		klog.FromContext(ctx).Info("Objects are stored in other versions or media types than they would be now, until they are written or "+
			"storage rewrite has changed them", "objects", old)
	}
	if len(undecodable) == 0 {
		return nil
	}
	err = fmt.Errorf("objects are stored that this server cannot decode: %s; %s%sOptions.ServeDespiteUndecodable serves the others; "+
		"nothing was changed", strings.Join(undecodable, ", "), missing, changed)
	if s.plan.Options.ServeDespiteUndecodable {
		klog.FromContext(ctx).Error(err, "Stored objects cannot be read")
		return nil
	}
	return err
}

// storedEncodings holds the latest counts of objects by stored version and media type.
type storedEncodings struct {
	mu    sync.Mutex
	last  []maintenance.Forms
	asked chan struct{} // holds a value if the counts have been read since the last count
}

func newStoredEncodings() *storedEncodings { return &storedEncodings{asked: make(chan struct{}, 1)} }

func (f *storedEncodings) set(all []maintenance.Forms) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = all
}

func (f *storedEncodings) get() []maintenance.Forms {
	await.Notify(f.asked)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

const (
	// formsInterval is the minimum interval between counts.
	formsInterval = time.Minute
	// formsShare is the pause after a count, in multiples of its duration.
	formsShare = 100
)

// countForms counts again after a scrape of the metrics, so that the next scrape gets newer counts. It uses one
// percent of a processor at most, however many objects are stored.
func (s *Server) countForms(ctx context.Context) {
	wait := time.NewTimer(formsInterval)
	defer wait.Stop()
	for revisions := s.revisions(); ; {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-s.storedEncodings.asked:
		}
		took := time.Duration(0)
		if now := s.revisions(); now != revisions {
			began := time.Now()
			all, _, err := s.tools.Forms(ctx)
			if took = time.Since(began); err == nil {
				s.storedEncodings.set(all)
				revisions = now
			} else if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Stored objects cannot be counted")
			}
		}
		wait.Reset(max(formsInterval, formsShare*took))
	}
}

// revisions returns the revisions of all storages as one text, which differs after every write.
func (s *Server) revisions() string {
	var all []uint64
	for _, storage := range s.storages {
		all = append(all, storage.Revision())
	}
	return fmt.Sprint(all)
}

// encodingMetrics has the number of objects by stored version and media type.
type encodingMetrics struct{ stored *storedEncodings }

var storedObjects = prometheus.NewDesc("annex_storage_objects",
	"Objects by the version and the media type that they are stored in, both empty for those that cannot be read. It is up to a minute "+
		"old, or a hundred times as long as counting takes.",
	[]string{"group", "resource", "version", "media_type"}, nil)

// Describe implements prometheus.Collector.
func (m encodingMetrics) Describe(out chan<- *prometheus.Desc) { out <- storedObjects }

// Collect implements prometheus.Collector.
func (m encodingMetrics) Collect(out chan<- prometheus.Metric) {
	type labels struct{ group, resource, version, mediaType string }
	sums := map[labels]int64{}
	for _, f := range m.stored.get() {
		for _, c := range f.Counts {
			sums[labels{f.Resource.Group, f.Resource.Resource, c.Version, c.MediaType}] += c.Objects
		}
	}
	for l, objects := range sums {
		out <- prometheus.MustNewConstMetric(storedObjects, prometheus.GaugeValue, float64(objects), l.group, l.resource, l.version, l.mediaType)
	}
}
