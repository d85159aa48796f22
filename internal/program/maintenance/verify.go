package maintenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// Records calls yield with every record of a storage in ascending revision order. It calls damaged for each
// unreadable part, and continues. It returns the compacted revision. An error means that the rest cannot be read at
// all.
type Records func(ctx context.Context, yield func(journal.Record) error, damaged func(*journal.Damage)) (compacted uint64, err error)

// Finding is a problem in the stored data.
type Finding struct {
	Storage string `json:"storage"`
	// Key and Revision locate it, as far as they are known. If several revisions are unreadable, Last is the last
	// of them.
	Key      string `json:"key,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
	Last     uint64 `json:"last,omitempty"`
	Problem  string `json:"problem"`
	// Warning marks an anomaly that is no damage.
	Warning bool `json:"warning,omitempty"`
}

// String returns the finding as one line.
func (f Finding) String() string {
	where := f.Storage
	switch {
	case f.Last > f.Revision:
		where += fmt.Sprintf(": revisions %d to %d", f.Revision, f.Last)
	case f.Revision != 0:
		where += fmt.Sprintf(": revision %d", f.Revision)
	}
	if f.Key != "" {
		where += ": " + f.Key
	}
	if f.Warning {
		where = "warning: " + where
	}
	return where + ": " + f.Problem
}

// Verified counts the verified data.
type Verified struct {
	// Objects counts the current objects. Records counts the records that were read to check these objects and
	// their history.
	Objects  int64 `json:"objects"`
	Records  int64 `json:"records"`
	Damages  int64 `json:"damages"`
	Warnings int64 `json:"warnings"`
}

// Verify implements Tools.
func (l *Local) Verify(ctx context.Context, report func(Finding)) (Verified, error) {
	total := Verified{}
	counting := func(f Finding) {
		if f.Warning {
			total.Warnings++
		} else {
			total.Damages++
		}
		report(f)
	}
	for _, s := range l.Storages {
		v := verifier{local: l, storage: s, report: counting, unknown: map[string]bool{}}
		if err := v.run(ctx); err != nil {
			return total, fmt.Errorf("storage %s: %w", s.Name, err)
		}
		total.Objects += v.objects
		total.Records += v.records
	}
	return total, nil
}

type verifier struct {
	local   *Local
	storage Storage
	report  func(Finding)
	unknown map[string]bool // reported prefixes
	away    error           // why encrypted values cannot be checked

	objects, records int64
}

func (v *verifier) run(ctx context.Context) error {
	if v.storage.Records != nil {
		return v.runRecords(ctx)
	}
	snapshot, err := v.storage.Backend.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer snapshot.Close()
	for stored, err := range snapshot.Values(ctx) {
		if err != nil {
			return err
		}
		v.objects++
		v.records++
		if finding := v.value(ctx, stored); finding != nil {
			v.report(*finding)
		}
		if v.away != nil {
			return v.away
		}
	}
	return nil
}

// link is a record without its value.
type link struct {
	key                string
	revision, previous uint64
	deleted            bool
}

func (v *verifier) runRecords(ctx context.Context) error {
	var (
		links      []link
		damages    []*journal.Damage
		unreadable []Finding
	)
	compacted, err := v.storage.Records(ctx, func(r journal.Record) error {
		v.records++
		links = append(links, link{r.Key, r.Revision, r.Previous, r.Deleted})
		if !r.Deleted {
			data := store.Value{Key: r.Key, Revision: r.Revision, Data: r.Value, Context: v.context(r.Key)}
			if finding := v.value(ctx, data); finding != nil {
				unreadable = append(unreadable, *finding)
			}
		}
		return errors.Join(v.away, ctx.Err())
	}, func(d *journal.Damage) { damages = append(damages, d) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if v.away != nil {
		return v.away
	}
	if err != nil {
		damages = append(damages, &journal.Damage{Err: err})
	}
	latest := v.chains(links, damages, compacted)
	for _, finding := range unreadable {
		// Deleting or replacing an unreadable object is the repair, so its old record is only a warning.
		if now := latest[finding.Key]; now.revision != finding.Revision && !finding.Warning {
			finding.Warning = true
			change := "replaced"
			if now.deleted {
				change = "deleted"
			}
			finding.Problem += fmt.Sprintf("; the object was %s since, and this version exists only in the history", change)
		}
		v.report(finding)
	}
	return nil
}

// context returns the authenticated data of a value: journals use the key.
func (v *verifier) context(key string) []byte {
	if v.storage.Backend != nil {
		return v.storage.Backend.ValueContext(key)
	}
	return []byte(key)
}

// chains checks that each record refers to its predecessor. It does not report the consequences of known damage
// again, but may find the key of that damage. It returns the newest record of each key.
func (v *verifier) chains(links []link, damages []*journal.Damage, compacted uint64) map[string]link {
	damaged := func(revision uint64) *journal.Damage {
		for _, d := range damages {
			if d.First <= revision && revision <= d.Last {
				return d
			}
		}
		return nil
	}
	keys := map[*journal.Damage]string{}
	latest := map[string]link{}
	for _, r := range links {
		before, known := latest[r.key]
		live := uint64(0)
		if known && !before.deleted {
			live = before.revision
		}
		problem := ""
		switch {
		case r.revision <= compacted && r.deleted:
			problem = fmt.Sprintf("a deletion that the compaction of revision %d should have removed", compacted)
		case r.revision <= compacted && known:
			problem = fmt.Sprintf("the compaction of revision %[2]d should have removed revision %[1]d of the "+
				"same key", before.revision, compacted)
		case r.revision > compacted && r.previous != live:
			if d := damaged(r.previous); d != nil {
				keys[d] = r.key
			} else if len(damages) == 0 {
				problem = fmt.Sprintf("the record replaces revision %d, but the previous object is at revision %d", r.previous, live)
			}
		case r.revision > compacted && r.deleted && r.previous == 0:
			problem = "the record deletes an object that did not exist"
		}
		if problem != "" {
			v.report(Finding{Storage: v.storage.Name, Key: r.key, Revision: r.revision, Problem: problem})
		}
		latest[r.key] = r
	}
	for _, r := range latest {
		if !r.deleted {
			v.objects++
		}
	}
	for _, d := range damages {
		v.report(Finding{Storage: v.storage.Name, Key: keys[d], Revision: d.First, Last: d.Last, Problem: d.Err.Error()})
	}
	return latest
}

// value checks that a stored value is an object of one of the server's resources. It returns the problem, or nil.
func (v *verifier) value(ctx context.Context, stored store.Value) *Finding {
	finding := Finding{Storage: v.storage.Name, Key: stored.Key, Revision: stored.Revision}
	resource, known := v.local.resource(stored.Key)
	if !known {
		prefix := unknownPrefix(stored.Key)
		if !v.unknown[prefix] {
			v.unknown[prefix] = true
			finding.Problem, finding.Warning = fmt.Sprintf("no kind of this server is stored under %s: not verified", prefix), true
			return &finding
		}
		return nil
	}
	err := resource.check(ctx, stored)
	if encryption.IsAway(err) {
		v.away = fmt.Errorf(
			"%s is encrypted with %s, which does not answer: start the plugin, and verify again: %w",
			stored.Key,
			encryption.ParseEnvelope(stored.Data),
			err,
		)
		return nil
	}
	if err != nil {
		finding.Problem = err.Error()
		return &finding
	}
	return nil
}

var encryptedPrefix = []byte("k8s:enc:")

// ErrEncrypted marks an encrypted value without an encryption configuration to decrypt it.
var ErrEncrypted = errors.New("the value is encrypted, and the encryption configuration is missing")

// check decodes a value and compares its name, namespace and kind with its key.
func (r Resource) check(ctx context.Context, stored store.Value) error {
	data := stored.Data
	switch {
	case r.Transformer != nil:
		var err error
		if data, _, err = r.Transformer.TransformFromStorage(ctx, data, stored.Context); err != nil {
			return fmt.Errorf("decrypt: %w", err)
		}
	case bytes.HasPrefix(data, encryptedPrefix):
		return ErrEncrypted
	}
	object, _, err := r.Codec.Decode(data, nil, r.New())
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	m, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	key := r.Prefix + "/" + m.GetName()
	if m.GetNamespace() != "" {
		key = r.Prefix + "/" + m.GetNamespace() + "/" + m.GetName()
	}
	if key != stored.Key {
		return fmt.Errorf("the object is %s, whose key should be %s", m.GetName(), key)
	}
	return nil
}
