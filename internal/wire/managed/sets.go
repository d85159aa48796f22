package managed

import (
	"bytes"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// ownedFields is a set of fields in its stored form. It is shared and must not be changed.
type ownedFields struct {
	set *fieldpath.Set
	// raw is the encoding of the set, which nearly always equals the bytes that were read.
	raw []byte
}

// sets caches parsed sets of fields by their encoding. Nearly all objects of a kind have the same few sets. It may be
// used concurrently.
type sets struct {
	mu     sync.RWMutex
	recent map[string]*ownedFields
	older  map[string]*ownedFields // the full map before known
	bytes  int
}

// rememberedBytes bounds the JSON of each of the two maps of a kind. Sets take about ten times as much memory.
const rememberedBytes = 256 << 10

func (s *sets) get(raw []byte) *ownedFields {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if o := s.recent[string(raw)]; o != nil {
		return o
	}
	return s.older[string(raw)]
}

func (s *sets) put(raw []byte, o *ownedFields) {
	if len(raw) > rememberedBytes/16 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent == nil || s.bytes > rememberedBytes {
		s.older, s.recent, s.bytes = s.recent, map[string]*ownedFields{}, 0
	}
	if s.recent[string(raw)] == nil {
		s.bytes += len(raw)
		s.recent[string(raw)] = o
	}
}

// read returns the fields of an entry, reconciled with the current schema.
func (s *sets) read(fields *metav1.FieldsV1, t *tree) (*ownedFields, error) {
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
	// The result depends on the schema alone.
	//lint:ignore SA1019 there is no value to validate
	reconciled, err := typed.ReconcileFieldSetWithSchema(set, typed.AsTypedUnvalidated(nil, t.schema, t.ref))
	if err != nil {
		return nil, err
	}
	if reconciled != nil {
		set = reconciled
	}
	o, err := encodeSet(set)
	if err != nil {
		return nil, err
	}
	s.put(raw, o)
	return o, nil
}

func encodeSet(set *fieldpath.Set) (*ownedFields, error) {
	raw, err := set.ToJSON()
	if err != nil {
		return nil, err
	}
	return &ownedFields{set: set, raw: raw}, nil
}
