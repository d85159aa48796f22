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

// Tools is what the verbs do to storages, wherever they are.
type Tools interface {
	// Backup writes a backup of all storages, each at one revision.
	Backup(ctx context.Context, to io.Writer) error
	// Verify reads everything and reports what is wrong with it.
	Verify(ctx context.Context, report func(Finding)) (Verified, error)
	// Compact forgets the history up to a revision, 0 for all of it.
	Compact(ctx context.Context, revision uint64) ([]Compacted, error)
	// Stats returns figures about each storage.
	Stats(ctx context.Context) ([]Stats, error)
	// Rewrite calls Rewrite for the resources with the given names, all if there is
	// none, and reports what became of each.
	Rewrite(ctx context.Context, resources []string, report func(Rewritten)) error
	// Close releases what the tools use.
	Close() error
}

// Storage is one backend that a server uses.
type Storage struct {
	// Name is what the server calls it, such as embedded.
	Name string
	// Backend is nil where only Records are to be had.
	Backend store.Maintenance
	// Records yields every record that the storage holds, for Verify; nil if it has
	// no records but those of etcd.
	Records Records
}

// Resource is what is known of the objects under a prefix.
type Resource struct {
	Resource schema.GroupResource
	Prefix   string
	// Codec decodes what is stored to what New returns.
	Codec runtime.Codec
	New   func() runtime.Object
	// Transformer decrypts what is stored; nil if nothing is encrypted.
	Transformer value.Transformer
	// Form is how objects are stored when they are written, and Decodes says of what
	// is stored whether it can be read; nil is all.
	Form    convert.Form
	Decodes func(convert.Form) bool
	// In is the name of the storage that keeps the objects.
	In string
	// Open returns the resource's storage, for Rewrite.
	Open func() (storage.Interface, error)
}

// Local works on open backends.
type Local struct {
	// Server is the server's name, Version that of the program.
	Server, Version string
	Storages        []Storage
	Resources       []Resource
	// Key says what a resource's values are encrypted with now; nil if nothing is.
	Key func(schema.GroupResource) encryption.Key
	// Readable says whether what is stored can be decrypted; nil if that is known.
	Readable func(context.Context) error
	// Custom finds the resources that are defined by what is stored in a storage; nil if there are
	// none. What Open of these gives is closed if it is a store.Closer.
	Custom func(ctx context.Context, in string, backend store.Backend) ([]Resource, error)
	// JSON turns what a resource's Codec wrote into JSON, for copies to where nothing
	// else is stored.
	JSON JSON
	// Default is the name of the storage for what belongs to no resource.
	Default string
	// OnClose is called by Close.
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

// Only returns the tools for one storage, or for all if name is empty.
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
		return nil, fmt.Errorf("there is no storage %q: there is %s", name, strings.Join(names, ", "))
	}
	return &only, nil
}

// custom returns what is defined in the default storage, as it is now.
func (l *Local) custom(ctx context.Context) ([]Resource, error) {
	at := slices.IndexFunc(l.Storages, func(s Storage) bool { return s.Name == l.Default && s.Backend != nil })
	if l.Custom == nil || at < 0 {
		return nil, nil
	}
	return l.Custom(ctx, l.Default, l.Storages[at].Backend)
}

// resource returns the resource that a key belongs to.
func (l *Local) resource(key string) (Resource, bool) {
	i := slices.IndexFunc(l.Resources, func(r Resource) bool {
		rest, ok := strings.CutPrefix(key, r.Prefix) // of every object: joining strings would cost more
		return ok && strings.HasPrefix(rest, "/")
	})
	if i < 0 {
		return Resource{}, false
	}
	return l.Resources[i], true
}

// Stats are figures about one storage.
type Stats struct {
	Storage string `json:"storage"`
	store.Status
	Objects   int64           `json:"objects"`
	Bytes     int64           `json:"bytes"`
	Resources []ResourceStats `json:"resources"`
}

// ResourceStats are figures about one resource. Bytes are those of the values as
// they are stored.
type ResourceStats struct {
	// Resource is the resource with its group, or the beginning of keys that belong
	// to no kind of the server.
	Resource string `json:"resource"`
	Unknown  bool   `json:"unknown,omitempty"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
	// StoredAs says in which versions and media types the objects are stored.
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
	for v, err := range snapshot.Values(ctx) {
		if err != nil {
			return Stats{}, err
		}
		r := ResourceStats{Resource: unknownPrefix(v.Key), Unknown: true}
		if known, ok := l.resource(v.Key); ok {
			r = ResourceStats{Resource: known.Resource.String()}
			if counts[r.Resource] == nil {
				counts[r.Resource] = newForms(known)
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

// unknownPrefix is what the keys of the resource that a key belongs to begin with,
// as far as that shows: a group has dots in it.
func unknownPrefix(key string) string {
	parts := strings.Split(strings.TrimPrefix(key, "/"), "/")
	n := 1
	if strings.Contains(parts[0], ".") && len(parts) > 2 {
		n = 2
	}
	return "/" + strings.Join(parts[:n], "/")
}

// Compacted says what a compaction did to one storage.
type Compacted struct {
	Storage string `json:"storage"`
	// Revision is the oldest that can still be read exactly.
	Revision uint64 `json:"revision"`
}

// ErrAhead marks a revision to compact that has not been reached.
var ErrAhead = errors.New("the revision has not been reached")

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
