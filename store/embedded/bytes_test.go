package embedded

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/annexapi/annex/store/journal"
)

// Journals on the disks of users have these bytes. A test that fails here needs a new version, not new bytes.
func TestEncodings_bytes(t *testing.T) {
	committed := time.Date(2026, 3, 4, 5, 6, 7, 891_000, time.UTC)
	for name, r := range map[string]struct {
		record journal.Record
		image  string
	}{
		"record":    {journal.Record{Revision: 7, Previous: 3, Key: "/pizzas/default/a", Value: []byte("x"), Committed: committed}, "010000064c2bc70bb13b00000000000000000000000000000003000000112f70697a7a61732f64656661756c742f6178678d8f7e"},
		"tombstone": {journal.Record{Revision: 9, Previous: 7, Deleted: true, Key: "/k", Committed: committed}, "010100064c2bc70bb13b00000000000000000000000000000007000000022f6b1cb9ce54"},
		"expiring record": {journal.Record{Revision: 8, Key: "/k", Value: []byte("v"), Committed: committed,
			Expires: committed.Add(time.Minute)}, "010200064c2bc70bb13b00064c2bca9f383b0000000000000000000000022f6b761e5e776e"},
	} {
		if got := hex.EncodeToString(encoded(r.record)); got != r.image {
			t.Errorf("%s: encoded as\n%s, want\n%s", name, got, r.image)
		}
		image, err := hex.DecodeString(r.image)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeRecord(r.record.Revision, image)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(r.record, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	for name, encoding := range map[string]struct {
		got   []byte
		image string
	}{
		"key of a record":          {recordKey(7), "682f0000000000000007"},
		"format":                   {format{version: 1, identity: [16]byte{1, 2, 3, 15: 16}}.encode(), "000000010102030000000000000000000000001032674538"},
		"bounds":                   {bounds{first: 1, compacted: 2, dropped: 3}.encode(), "0100000000000000010000000000000002000000000000000392a081d7"},
		"slot of the witness file": {encodeSlot(5, slot{revision: 6, manifest: manifestState{number: 7, length: 8, checksum: 9}}), "41785731000000000000000500000000000000060000000000000007000000000000000800000009d1cb1363"},
	} {
		if got := hex.EncodeToString(encoding.got); got != encoding.image {
			t.Errorf("%s: encoded as\n%s, want\n%s", name, got, encoding.image)
		}
	}
}

func TestFormat_ofNewerProgram_isRejected(t *testing.T) {
	if err := (format{version: formatVersion}).check(); err != nil {
		t.Errorf("the present format: %v", err)
	}
	if (format{version: formatVersion + 1}).check() == nil {
		t.Error("a newer format is accepted")
	}
	if _, err := decodeFormat(format{}.encode()); err == nil {
		t.Error("format 0 is accepted")
	}
}
