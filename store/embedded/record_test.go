package embedded

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/annexapi/annex/store/journal"
)

func encoded(r journal.Record) []byte {
	buf := make([]byte, recordLength(r))
	encodeRecord(buf, r)
	return buf
}

func TestDecodeRecord_roundTrip(t *testing.T) {
	committed := time.Date(2026, 3, 4, 5, 6, 7, 891_000, time.UTC)
	for name, record := range map[string]journal.Record{
		"plain":         {Revision: 7, Previous: 3, Key: "/pizzas/default/a", Value: []byte("x"), Committed: committed},
		"first":         {Revision: 1, Key: "/k", Value: []byte("v"), Committed: committed},
		"tombstone":     {Revision: 9, Previous: 7, Deleted: true, Key: "/k", Committed: committed},
		"expiring":      {Revision: 8, Key: "/k", Value: []byte("v"), Committed: committed, Expires: committed.Add(time.Minute)},
		"empty value":   {Revision: 8, Key: "/k", Value: []byte{}, Committed: committed},
		"empty key":     {Revision: 8, Key: "", Value: []byte("v"), Committed: committed},
		"high revision": {Revision: 1<<64 - 1, Previous: 1<<64 - 2, Key: "/k", Value: []byte("v"), Committed: committed},
		"no time":       {Revision: 8, Key: "/k", Value: []byte("v")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeRecord(record.Revision, encoded(record))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(record, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDecodeRecord_sharesNoMemory(t *testing.T) {
	data := encoded(journal.Record{Revision: 7, Key: "/k", Value: []byte("value")})
	got, err := decodeRecord(7, data)
	if err != nil {
		t.Fatal(err)
	}
	clear(data)
	if got.Key != "/k" || string(got.Value) != "value" {
		t.Errorf("key %q, value %q after the buffer was reused", got.Key, got.Value)
	}
}

func TestDecodeRecord_anyFlippedBit_isDetected(t *testing.T) {
	data := encoded(journal.Record{Revision: 7, Key: "/k", Value: []byte("value")})
	for bit := range len(data) * 8 {
		data[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeRecord(7, data); !errors.Is(err, journal.ErrDamaged) {
			t.Errorf("bit %d flipped: error %v, want ErrDamaged", bit, err)
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
}

func TestDecodeRecord_damaged(t *testing.T) {
	record := journal.Record{Revision: 7, Key: "/k", Value: []byte("value")}
	sealed := func(revision uint64, change func(body []byte)) []byte {
		data := encoded(record)
		body := data[:len(data)-checksumLength]
		change(body)
		sum := checksum(revision, body)
		copy(data[len(body):], []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
		return data
	}
	for name, data := range map[string][]byte{
		"empty":                     nil,
		"truncated":                 encoded(record)[:recordHeader],
		"lengthened":                append(encoded(record), 0),
		"under another revision":    sealed(8, func([]byte) {}),
		"of an unknown version":     sealed(7, func(body []byte) { body[0] = 2 }),
		"with an unknown flag":      sealed(7, func(body []byte) { body[1] |= 0x80 }),
		"with a key beyond the end": sealed(7, func(body []byte) { body[26] = 0xff }),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := decodeRecord(7, data); !errors.Is(err, journal.ErrDamaged) {
				t.Errorf("error %v, want ErrDamaged", err)
			}
		})
	}
	if _, err := decodeRecord(7, sealed(7, func([]byte) {})); err != nil {
		t.Errorf("the unchanged record: %v", err)
	}
}

func TestRecordKey_sortsByRevision(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		a, b := rng.Uint64()>>rng.UintN(64), rng.Uint64()>>rng.UintN(64)
		if (string(recordKey(a)) < string(recordKey(b))) != (a < b) {
			t.Fatalf("keys of %d and %d are out of order", a, b)
		}
		if got, ok := revisionOf(recordKey(a)); !ok || got != a {
			t.Fatalf("revision of the key of %d is %d, %v", a, got, ok)
		}
	}
}

func TestFormatAndBounds_roundTripAndDamage(t *testing.T) {
	f := format{version: 3, identity: [16]byte{1, 2, 3}}
	if got, err := decodeFormat(f.encode()); err != nil || got != f {
		t.Errorf("format %+v, error %v", got, err)
	}
	b := bounds{first: 5, compacted: 70, dropped: 60}
	if got, err := decodeBounds(b.encode()); err != nil || got != b {
		t.Errorf("bounds %+v, error %v", got, err)
	}
	said := slot{revision: 9, manifest: manifestState{number: 4, length: 77, checksum: 0xabc}}
	if sequence, got, ok := decodeSlot(encodeSlot(6, said)); !ok || sequence != 6 || got != said {
		t.Errorf("slot %d %+v %v", sequence, got, ok)
	}
	flipEveryBit(f.encode(), func(bit int, data []byte) {
		if _, err := decodeFormat(data); !errors.Is(err, journal.ErrDamaged) {
			t.Errorf("format with bit %d flipped: error %v", bit, err)
		}
	})
	flipEveryBit(b.encode(), func(bit int, data []byte) {
		if _, err := decodeBounds(data); !errors.Is(err, journal.ErrDamaged) {
			t.Errorf("bounds with bit %d flipped: error %v", bit, err)
		}
	})
	flipEveryBit(encodeSlot(6, said), func(bit int, data []byte) {
		if _, _, ok := decodeSlot(data); ok {
			t.Errorf("slot with bit %d flipped was accepted", bit)
		}
	})
}

func flipEveryBit(data []byte, check func(bit int, data []byte)) {
	for bit := range len(data) * 8 {
		data[bit/8] ^= 1 << (bit % 8)
		check(bit, data)
		data[bit/8] ^= 1 << (bit % 8)
	}
}
