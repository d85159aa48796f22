package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/internal/storage/registry"
)

// contents reads all stored objects of a server, to check and to count them.
type contents struct {
	plan       *plan.Plan
	storages   Storages
	encryption *encryption.Encryption
	stores     *registry.Stores
	tools      *maintenance.Local
	encodings  *storedEncodings
	unserved   []maintenance.Unserved
}

func newContents(o *opened, stores *registry.Stores, tools *maintenance.Local) *contents {
	return &contents{o.plan, o.storages, o.encryption, stores, tools, newStoredEncodings(), nil}
}

// check returns an error if the encryption configuration cannot decrypt stored objects, or the definition cannot
// decode them. It reports whether it has looked: while a storage has not been reached, it does nothing.
func (c *contents) check(ctx context.Context) (checked bool, err error) {
	if !c.storages.connected() {
		return false, nil
	}
	if err := c.checkPlaces(ctx); err != nil {
		return true, err
	}
	err = c.encryption.Check(ctx, c.stores)
	if c.plan.Options.ServeDespiteUndecodable && errors.Is(err, encryption.ErrUnreadable) {
		klog.FromContext(ctx).Error(err, "Stored objects cannot be read")
		err = nil
	}
	if err != nil {
		return true, err
	}
	return true, c.checkForms(ctx)
}

// checkPlaces returns an error for a kind that has moved to another group while its objects are stored under the
// old group. If there are objects under both groups, it only logs that.
func (c *contents) checkPlaces(ctx context.Context) error {
	for _, k := range c.plan.Definition.Kinds() {
		if len(k.Aliases) == 0 || !k.IsStored() {
			continue
		}
		places, empty, err := c.stores.Misplaced(ctx, k)
		switch {
		case err != nil:
			return fmt.Errorf("find objects of %s: %w", k.GroupResource(), err)
		case empty:
			return fmt.Errorf(
				"objects of %s are stored under %s, where no kind reads them: add StoredUnder(%q, %q) to the kind",
				k.GroupResource(),
				places[0],
				places[0].Group,
				places[0].Resource,
			)
		case len(places) > 0:
			klog.FromContext(ctx).
				Error(nil, "The storage has objects that no kind reads", "resource", k.GroupResource(), "storedUnder", k.StoredUnder, "others",
					places)
		}
	}
	return nil
}

// logUnserved logs the objects that check has found to belong to no kind. The storages of an extension and of custom resources must
// be open, which check does not need.
func (c *contents) logUnserved(ctx context.Context) {
	for _, u := range c.unserved {
		if strings.HasPrefix(login.Prefix(), u.Prefix) || c.stores.HasOther(u.Prefix) {
			continue // login sessions are no API objects
		}
		klog.FromContext(ctx).
			Error(nil, "The storage has objects of kinds that this server does not serve: clients cannot read them", "storage", u.Storage,
				"under", u.Prefix, "objects", u.Objects)
	}
}

// checkForms returns an error if a stored object cannot be decoded: its version is no longer in the definition, its
// Go type has lost the media type, or a field has changed its type. Such an object would break every list of its
// kind. Objects that belong to no kind break no request, but no request shows them either: logUnserved logs them.
func (c *contents) checkForms(ctx context.Context) error {
	all, unserved, err := c.tools.Forms(ctx)
	switch {
	case err == nil:
	case !errors.As(err, new(*maintenance.UnreadableDefinition)):
		return err
	case c.plan.Options.ServeDespiteUndecodable:
		klog.FromContext(ctx).Error(err, "Stored definitions cannot be read, and neither can their objects")
	default:
		return fmt.Errorf("%w; Options.ServeDespiteUndecodable serves all other objects; nothing was changed", err)
	}
	c.encodings.set(all)
	c.unserved = unserved
	var undecodable, old []string
	var missing, changed string // advice for the undecodable objects
	for _, f := range all {
		for _, count := range f.Counts {
			switch stored := fmt.Sprintf("%d %s as %s", count.Objects, f.Resource, count); {
			case count.Undecodable:
				undecodable = append(undecodable, stored)
				missing = "declare the missing kinds and versions again, Unserved if clients should not use them, and remove them after " +
					"storage rewrite; "
			case count.Problem != "":
				undecodable = append(undecodable, fmt.Sprintf("%s, of which %s", stored, count.Problem))
				changed = "restore the types that fields had when the objects were stored; "
			case count.Old && count.MediaType != "":
				old = append(old, stored)
			}
		}
	}
	if len(old) > 0 {
		klog.FromContext(ctx).Info("The storage has objects in other versions or media types than new objects get: storage rewrite "+
			"converts them", "objects", old)
	}
	if len(undecodable) == 0 {
		return nil
	}
	err = fmt.Errorf("the storage has objects that this server cannot decode: %s; %s%sOptions.ServeDespiteUndecodable serves all other "+
		"objects; nothing was changed", strings.Join(undecodable, ", "), missing, changed)
	if c.plan.Options.ServeDespiteUndecodable {
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
func (c *contents) countForms(ctx context.Context) {
	wait := time.NewTimer(formsInterval)
	defer wait.Stop()
	for revisions := c.revisions(); ; {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-c.encodings.asked:
		}
		took := time.Duration(0)
		if now := c.revisions(); now != revisions {
			began := time.Now()
			all, _, err := c.tools.Forms(ctx)
			if took = time.Since(began); err == nil || errors.As(err, new(*maintenance.UnreadableDefinition)) { // which check has logged
				c.encodings.set(all)
				revisions = now
			} else if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Stored objects cannot be counted")
			}
		}
		wait.Reset(max(formsInterval, formsShare*took))
	}
}

// revisions returns the revisions of all storages as one text, which differs after every write.
func (c *contents) revisions() string {
	var all []uint64
	for _, storage := range c.storages {
		all = append(all, storage.Revision())
	}
	return fmt.Sprint(all)
}

// encodingMetrics has the number of objects by stored version and media type.
type encodingMetrics struct{ stored *storedEncodings }

var storedObjects = prometheus.NewDesc("annex_storage_objects",
	"Stored objects by version and media type; both labels are empty for objects that the server cannot read. The value is up to a minute "+
		"old, or up to a hundred times the duration of a count.",
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
