package managed

import (
	"bytes"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// owned is a set of fields as it is stored. It is shared, and not changed.
type owned struct {
	set *fieldpath.Set
	// raw is how the set is written, which is what was read in nearly every case.
	raw []byte
}

// sets remembers what the fields of managers are when they have been read: nearly all objects of a kind have the same few.
// It may be used concurrently.
type sets struct {
	mu     sync.RWMutex
	known  map[string]*owned
	before map[string]*owned // what known was when it became full
	bytes  int
}

// rememberedBytes bounds what is remembered of the sets of a kind, twice: as many bytes of JSON. Sets take about
// ten times that.
const rememberedBytes = 256 << 10

func (s *sets) get(raw []byte) *owned {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if o := s.known[string(raw)]; o != nil {
		return o
	}
	return s.before[string(raw)]
}

func (s *sets) put(raw []byte, o *owned) {
	if len(raw) > rememberedBytes/16 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || s.bytes > rememberedBytes {
		s.before, s.known, s.bytes = s.known, map[string]*owned{}, 0
	}
	if s.known[string(raw)] == nil {
		s.bytes += len(raw)
		s.known[string(raw)] = o
	}
}

// read returns the fields that an entry says, as the schema has them now.
func (s *sets) read(fields *metav1.FieldsV1, t *tree) (*owned, error) {
	raw := []byte("{}")
	if fields != nil {
		raw = fields.GetRawBytes()
	}
	if o := s.get(raw); o != nil {
		return o, nil
	}
	set := &fieldpath.Set{}
	if err := set.FromJSON(bytes.NewReader(raw)); err != nil {
		return nil, err
	}
	// That depends on the schema alone.
	//lint:ignore SA1019 there is no value to validate
	reconciled, err := typed.ReconcileFieldSetWithSchema(set, typed.AsTypedUnvalidated(nil, t.schema, t.ref))
	if err != nil {
		return nil, err
	}
	if reconciled != nil {
		set = reconciled
	}
	o, err := write(set)
	if err != nil {
		return nil, err
	}
	s.put(raw, o)
	return o, nil
}

func write(set *fieldpath.Set) (*owned, error) {
	raw, err := set.ToJSON()
	if err != nil {
		return nil, err
	}
	return &owned{set: set, raw: raw}, nil
}
