package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/store"
)

// Tools are the operations on the storages of a server, stopped or running.
type Tools interface {
	// Backup writes a backup of all storages, each at one revision.
	Backup(ctx context.Context, to io.Writer) error
	// Verify reads all objects and records, and calls report for each problem.
	Verify(ctx context.Context, report func(Finding)) (Verified, error)
	// Compact drops the history up to a revision; 0 is the current revision.
	Compact(ctx context.Context, revision uint64) ([]Compacted, error)
	// Stats returns statistics of each storage.
	Stats(ctx context.Context) ([]Stats, error)
	// Rewrite rewrites the named resources, or all if there are no names, and calls report with the result of each.
	Rewrite(ctx context.Context, resources []string, report func(Rewritten)) error
	// Close releases the resources of the tools.
	Close() error
}

// Storage is one open backend of a server.
type Storage struct {
	// Name is the server's name for the storage, such as embedded.
	Name string
	// Backend is nil if only Records are available.
	Backend store.Maintenance
	// Records yields every record of the storage, for Verify; nil for a backend without records, such as etcd.
	Records Records
}

// Resource describes the objects under a key prefix.
type Resource struct {
	Resource schema.GroupResource
	Prefix   string
	// Codec decodes stored values into the type that New returns.
	Codec runtime.Codec
	New   func() runtime.Object
	// Transformer decrypts stored values; nil without encryption.
	Transformer value.Transformer
	// Form is the current stored form. Decodes reports whether the server can decode a stored form; nil means that
	// it can decode all.
	Form    convert.Form
	Decodes func(convert.Form) bool
	// In is the name of the storage that holds the objects.
	In string
	// Open returns the resource's storage, for Rewrite.
	Open func() (storage.Interface, error)
}

// Local implements Tools on open backends.
type Local struct {
	// Server is the server's name, Version the version of the program.
	Server, Version string
	Storages        []Storage
	Resources       []Resource
	// Key returns a resource's current encryption key; nil without encryption.
	Key func(schema.GroupResource) encryption.Key
	// Readable returns an error if stored values cannot be decrypted. If it is nil, they are known to be readable.
	Readable func(context.Context) error
	// Custom returns the custom resources whose definitions are in a storage; nil if there are none. A storage that
	// Open of such a resource returns is closed after use if it is a store.Closer.
	Custom func(ctx context.Context, in string, backend store.Backend) ([]Resource, error)
	// JSON converts the output of a resource's Codec to JSON, for copies to storages that hold JSON only.
	JSON JSON
	// Default is the name of the storage for keys that belong to no resource.
	Default string
	// OnClose is called by Close; optional.
	OnClose func() error
}

var _ Tools = (*Local)(nil)

// Close implements Tools.
func (l *Local) Close() error {
	if l.OnClose == nil {
		return nil
	}
	return l.OnClose()
}

// Only returns tools for one storage, or for all if the name is empty.
func (l *Local) Only(name string) (*Local, error) {
	if name == "" {
		return l, nil
	}
	only := *l
	only.Storages = nil
	var names []string
	for _, s := range l.Storages {
		if s.Name == name {
			only.Storages = append(only.Storages, s)
		}
		names = append(names, s.Name)
	}
	if len(only.Storages) == 0 {
		return nil, fmt.Errorf("there is no storage %q; storages: %s", name, strings.Join(names, ", "))
	}
	return &only, nil
}

// custom returns the custom resources that are defined in the default storage now.
func (l *Local) custom(ctx context.Context) ([]Resource, error) {
	at := slices.IndexFunc(l.Storages, func(s Storage) bool { return s.Name == l.Default && s.Backend != nil })
	if l.Custom == nil || at < 0 {
		return nil, nil
	}
	return l.Custom(ctx, l.Default, l.Storages[at].Backend)
}

// resource returns the resource that a key belongs to: with the longest prefix, if there are several. Owners finds those of many keys.
func (l *Local) resource(key string) (Resource, bool) {
	var found Resource
	for i := range l.Resources {
		r := &l.Resources[i]
		if rest, ok := strings.CutPrefix(key, r.Prefix); ok && strings.HasPrefix(rest, "/") && len(r.Prefix) > len(found.Prefix) {
			found = *r
		}
	}
	return found, found.Prefix != ""
}

// owners are resources by the prefixes of their keys.
type owners map[string]*Resource

// ownersOf leaves out resources without a prefix, which are not stored.
func ownersOf(resources []Resource) owners {
	byPrefix := make(owners, len(resources))
	for i := range resources {
		if prefix := resources[i].Prefix; prefix != "" && byPrefix[prefix] == nil {
			byPrefix[prefix] = &resources[i]
		}
	}
	return byPrefix
}

// of returns the resource that a key belongs to, or nil.
func (o owners) of(key string) *Resource {
	for at := strings.LastIndexByte(key, '/'); at > 0; at = strings.LastIndexByte(key[:at], '/') {
		if r := o[key[:at]]; r != nil {
			return r
		}
	}
	return nil
}

// Stats are statistics of one storage.
type Stats struct {
	Storage string `json:"storage"`
	store.Status
	Objects   int64           `json:"objects"`
	Bytes     int64           `json:"bytes"`
	Resources []ResourceStats `json:"resources"`
}

// ResourceStats are statistics of one resource. Bytes is the size of the stored values.
type ResourceStats struct {
	// Resource is the resource with its group, or a key prefix that belongs to no kind of the server.
	Resource string `json:"resource"`
	Unknown  bool   `json:"unknown,omitempty"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
	// StoredAs counts the objects by version and media type.
	StoredAs []FormCount `json:"storedAs,omitempty"`
}

// Stats implements Tools.
func (l *Local) Stats(ctx context.Context) ([]Stats, error) {
	all := []Stats{}
	for _, s := range l.Storages {
		stats, err := l.stats(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("storage %s: %w", s.Name, err)
		}
		all = append(all, stats)
	}
	return all, nil
}

func (l *Local) stats(ctx context.Context, s Storage) (Stats, error) {
	status, err := s.Backend.Status(ctx)
	if err != nil {
		return Stats{}, err
	}
	stats := Stats{Storage: s.Name, Status: status, Resources: []ResourceStats{}}
	snapshot, err := s.Backend.Snapshot(ctx)
	if err != nil {
		return Stats{}, err
	}
	defer snapshot.Close()
	stats.Revision = snapshot.Revision()
	counts := map[string]*forms{}
	resources := ownersOf(l.Resources)
	for v, err := range snapshot.Values(ctx) {
		if err != nil {
			return Stats{}, err
		}
		r := ResourceStats{Resource: unknownPrefix(v.Key), Unknown: true}
		if known := resources.of(v.Key); known != nil {
			r = ResourceStats{Resource: known.Resource.String()}
			if counts[r.Resource] == nil {
				counts[r.Resource] = newForms(*known)
			}
			counts[r.Resource].add(ctx, v)
		}
		at := slices.IndexFunc(stats.Resources, func(other ResourceStats) bool { return other.Resource == r.Resource })
		if at < 0 {
			at, stats.Resources = len(stats.Resources), append(stats.Resources, r)
		}
		stats.Resources[at].Objects++
		stats.Resources[at].Bytes += int64(len(v.Data))
		stats.Objects++
		stats.Bytes += int64(len(v.Data))
	}
	for i := range stats.Resources {
		if counted := counts[stats.Resources[i].Resource]; counted != nil {
			stats.Resources[i].StoredAs = counted.list()
		}
	}
	return stats, nil
}

// unknownPrefix guesses the key prefix of an unknown resource: a group has dots in its name.
func unknownPrefix(key string) string {
	parts := strings.Split(strings.TrimPrefix(key, "/"), "/")
	n := 1
	if strings.Contains(parts[0], ".") && len(parts) > 2 || len(parts) > 3 {
		n = 2
	}
	return "/" + strings.Join(parts[:n], "/")
}

// Compacted is the result of the compaction of one storage.
type Compacted struct {
	Storage string `json:"storage"`
	// Revision is the oldest revision that can still be read exactly.
	Revision uint64 `json:"revision"`
}

// ErrAhead is returned if the revision to compact is higher than the current one.
var ErrAhead = errors.New("the revision does not exist yet")

// Compact implements Tools.
func (l *Local) Compact(ctx context.Context, revision uint64) ([]Compacted, error) {
	var targets []uint64
	for _, s := range l.Storages {
		status, err := s.Backend.Status(ctx)
		if err != nil {
			return nil, fmt.Errorf("storage %s: %w", s.Name, err)
		}
		target := revision
		switch {
		case revision == 0:
			target = status.Revision
		case revision > status.Revision:
			return nil, fmt.Errorf("storage %s is at revision %d: %w: %d", s.Name, status.Revision, ErrAhead, revision)
		}
		targets = append(targets, target)
	}
	var done []Compacted
	for i, s := range l.Storages {
		if err := s.Backend.Compact(ctx, targets[i]); err != nil {
			return done, fmt.Errorf("storage %s: %w", s.Name, err)
		}
		status, err := s.Backend.Status(ctx)
		if err != nil {
			return done, fmt.Errorf("storage %s: %w", s.Name, err)
		}
		done = append(done, Compacted{Storage: s.Name, Revision: max(targets[i], status.Compacted)})
	}
	return done, nil
}

// Backup implements Tools.
func (l *Local) Backup(ctx context.Context, to io.Writer) error {
	header := Header{Server: l.Server, Version: l.Version, Created: time.Now().UTC().Truncate(time.Second)}
	for _, r := range l.Resources {
		header.Resources = append(header.Resources, HeaderResource{Group: r.Resource.Group, Resource: r.Resource.Resource, Prefix: r.Prefix})
	}
	snapshots := make([]store.Snapshot, len(l.Storages))
	for i, s := range l.Storages {
		snapshot, err := s.Backend.Snapshot(ctx)
		if err != nil {
			return fmt.Errorf("storage %s: %w", s.Name, err)
		}
		defer snapshot.Close()
		snapshots[i] = snapshot
		header.Storages = append(header.Storages, HeaderStorage{
			Name: s.Name, Revision: snapshot.Revision(), ContextPrefix: string(s.Backend.ValueContext("")),
		})
	}
	w, err := NewWriter(to, header)
	if err != nil {
		return err
	}
	for i, snapshot := range snapshots {
		for v, err := range snapshot.Values(ctx) {
			if err != nil {
				err = fmt.Errorf("storage %s: %w", l.Storages[i].Name, err)
				_ = w.Fail(err) // the error is returned, too
				return err
			}
			if err := w.Add(i, v); err != nil {
				return err
			}
		}
	}
	return w.Finish()
}
