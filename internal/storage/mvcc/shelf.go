package mvcc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// The history of resources with a retention continues on the shelf of the journal. Compaction moves records there in the
// step that removes them from the history of the core. docs/formats/history.md draws the keys and values.

// shelf has the places whose records are kept: the prefixes of resources.
type shelf struct {
	mu     sync.RWMutex
	places []*keptPlace // by name; replaced, never changed
}

// keptPlace is the state of a resource's history on the shelf.
type keptPlace struct {
	name     string
	rule     store.Retention
	records  int64
	bytes    int64
	revision uint64 // the history is complete from here on
	time     int64  // of that revision, in Unix microseconds
}

func (p *keptPlace) since() store.Point {
	return store.Point{Revision: p.revision, Time: fromMicro(p.time)}
}

func fromMicro(micro int64) time.Time {
	if micro == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micro).UTC()
}

// bytesLimit is the bound on the encoded size of the place's records.
func (p *keptPlace) bytesLimit() int64 {
	if p.rule.Bytes > 0 {
		return p.rule.Bytes
	}
	return store.DefaultRetentionBytes
}

// place returns a place by its name, which ends with a slash; nil if nothing of it is kept.
func (s *shelf) place(name string) *keptPlace {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := sort.Search(len(s.places), func(i int) bool { return s.places[i].name >= name })
	if i < len(s.places) && s.places[i].name == name {
		return s.places[i]
	}
	return nil
}

// of returns the place of a key, nil if its records are not kept.
func (s *shelf) of(key string) *keptPlace {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := sort.Search(len(s.places), func(i int) bool { return s.places[i].name > key }) - 1
	if i < 0 || !strings.HasPrefix(key, s.places[i].name) || !s.places[i].rule.Keeps() {
		return nil
	}
	return s.places[i]
}

// all returns all places.
func (s *shelf) all() []*keptPlace {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.places
}

// load sets all places.
func (s *shelf) load(places []*keptPlace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places = places
}

// set replaces places.
func (s *shelf) set(changed map[string]*keptPlace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	places := slices.Clone(s.places)
	for name, p := range changed {
		i := sort.Search(len(places), func(i int) bool { return places[i].name >= name })
		switch found := i < len(places) && places[i].name == name; {
		case found && p == nil:
			places = slices.Delete(places, i, i+1)
		case found:
			places[i] = p
		case p != nil:
			places = slices.Insert(places, i, p)
		}
	}
	s.places = places
}

// The keys of a shelf begin with a letter for their purpose, and most end with a revision.
const (
	shelfRecords   = "k" // by key of the record and revision
	shelfAges      = "t" // by place and the revision that replaced a record
	shelfDeletions = "d" // by place and revision
	shelfPlaces    = "p" // by place
)

func shelfKey(purpose, name string, revision uint64) string {
	key := append(make([]byte, 0, len(name)+10), purpose+name+"\x00"...)
	return string(binary.BigEndian.AppendUint64(key, revision))
}

// shelfBounds returns the bounds of all keys of a name for a purpose.
func shelfBounds(purpose, name string) (from, below string) {
	return purpose + name + "\x00", purpose + name + "\x01"
}

func revisionOfShelfKey(key string) uint64 {
	if len(key) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(key[len(key)-8:]))
}

const shelfVersion = 1

var shelfTable = crc32.MakeTable(crc32.Castagnoli)

// shelvedRecord is a record on the shelf.
type shelvedRecord struct {
	pastRecord
	event        uint64 // the revision that replaced it, its own for a tombstone
	eventDeletes bool   // the event is a tombstone
}

const (
	shelvedTombstone    = 1 << 0
	shelvedEventDeletes = 1 << 1
)

// shelvedHeader is version, flags, committed, previous, event, ordinal, length of user.
const shelvedHeader = 1 + 1 + 8 + 8 + 8 + 8 + 2

func (r *shelvedRecord) encode() []byte {
	var flags byte
	if r.Deleted {
		flags |= shelvedTombstone
	}
	if r.eventDeletes {
		flags |= shelvedEventDeletes
	}
	user := r.User[:min(len(r.User), 1<<16-1)]
	b := append(make([]byte, 0, shelvedHeader+len(user)+len(r.Value)+4), shelfVersion, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Committed.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, r.Previous)
	b = binary.BigEndian.AppendUint64(b, r.event)
	b = binary.BigEndian.AppendUint64(b, r.ordinal)
	b = binary.BigEndian.AppendUint16(b, uint16(len(user)))
	b = append(append(b, user...), r.Value...)
	return binary.BigEndian.AppendUint32(b, shelfSum(r.Key, r.Revision, b))
}

// shelfSum covers the place of a value as well, so that a sound value in a wrong place is found.
func shelfSum(key string, revision uint64, value []byte) uint32 {
	sum := crc32.Checksum(binary.BigEndian.AppendUint64([]byte(key), revision), shelfTable)
	return crc32.Update(sum, shelfTable, value)
}

// decodeShelved decodes a record, of which the value is a part of data.
func decodeShelved(key string, revision uint64, data []byte) (*shelvedRecord, error) {
	if len(data) < shelvedHeader+4 {
		return nil, journal.Damaged(revision, "%d bytes are too short for a kept record", len(data))
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if got := shelfSum(key, revision, body); got != sum {
		return nil, journal.Damaged(revision, "kept record has checksum %08x, want %08x", got, sum)
	}
	if body[0] != shelfVersion {
		return nil, journal.Damaged(revision, "kept record has the unknown format %d", body[0])
	}
	users := int(binary.BigEndian.Uint16(body[34:]))
	if users > len(body)-shelvedHeader {
		return nil, journal.Damaged(revision, "user of %d bytes exceeds the kept record", users)
	}
	r := &shelvedRecord{event: binary.BigEndian.Uint64(body[18:]), eventDeletes: body[1]&shelvedEventDeletes != 0}
	r.ordinal = binary.BigEndian.Uint64(body[26:])
	r.Record = journal.Record{
		Revision:  revision,
		Previous:  binary.BigEndian.Uint64(body[10:]),
		Deleted:   body[1]&shelvedTombstone != 0,
		Key:       key,
		Committed: time.UnixMicro(int64(binary.BigEndian.Uint64(body[2:]))).UTC(),
		User:      string(body[shelvedHeader : shelvedHeader+users]),
	}
	if !r.Deleted {
		r.Value = body[shelvedHeader+users:]
	}
	return r, nil
}

// aged is the entry by which old records are found: the event that replaced or deleted one.
type aged struct {
	time     int64 // of the event, in Unix microseconds
	replaced uint64
	key      string
}

func (a aged) encode() []byte {
	b := append(make([]byte, 0, 17+len(a.key)), shelfVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(a.time))
	b = binary.BigEndian.AppendUint64(b, a.replaced)
	return append(b, a.key...)
}

func decodeAged(data []byte) (aged, error) {
	if len(data) < 17 || data[0] != shelfVersion {
		return aged{}, journal.Damaged(0, "entry of %d bytes of the kept history is unknown", len(data))
	}
	return aged{int64(binary.BigEndian.Uint64(data[1:])), binary.BigEndian.Uint64(data[9:]), string(data[17:])}, nil
}

const keptPlaceLength = 1 + 7*8 + 4

func (p *keptPlace) encode() []byte {
	b := append(make([]byte, 0, keptPlaceLength), shelfVersion)
	for _, n := range []uint64{
		uint64(p.rule.Age), uint64(p.rule.Revisions), uint64(p.rule.Bytes), uint64(p.records), uint64(p.bytes), p.revision, uint64(p.time),
	} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return binary.BigEndian.AppendUint32(b, shelfSum(p.name, 0, b))
}

func decodeKeptPlace(name string, data []byte) (*keptPlace, error) {
	if len(data) != keptPlaceLength || data[0] != shelfVersion {
		return nil, journal.Damaged(0, "the kept history of %q has a state of %d bytes, which is unknown", name, len(data))
	}
	body, sum := data[:keptPlaceLength-4], binary.BigEndian.Uint32(data[keptPlaceLength-4:])
	if got := shelfSum(name, 0, body); got != sum {
		return nil, journal.Damaged(0, "the state of the kept history of %q has checksum %08x, want %08x", name, got, sum)
	}
	n := func(i int) uint64 { return binary.BigEndian.Uint64(body[1+8*i:]) }
	return &keptPlace{
		name: name, rule: store.Retention{Age: time.Duration(n(0)), Revisions: int(n(1)), Bytes: int64(n(2))},
		records: int64(n(3)), bytes: int64(n(4)), revision: n(5), time: int64(n(6)),
	}, nil
}

// loadShelf reads the places of a journal.
func (c *Core) loadShelf(j journal.Journal) error {
	places, err := placesOf(j)
	if err != nil {
		return err
	}
	c.shelf.load(places)
	return nil
}

func placesOf(j journal.Journal) ([]*keptPlace, error) {
	from, ok := j.(journal.Shelf)
	if !ok {
		return nil, nil
	}
	var places []*keptPlace
	var damage error
	err := from.ScanShelf(shelfPlaces, shelfPlaces+"\xff", false, func(key string, data []byte) bool {
		var p *keptPlace
		p, damage = decodeKeptPlace(strings.TrimPrefix(key, shelfPlaces), data)
		places = append(places, p)
		return damage == nil
	})
	if err = errors.Join(err, damage); err != nil {
		return nil, fmt.Errorf("read the kept history: %w", err)
	}
	return places, nil
}

// retain sets the retention of a place.
func (c *Core) retain(s *keyspace, rule store.Retention) error {
	c.compacting.Lock()
	defer c.compacting.Unlock()
	known := c.shelf.place(s.prefix)
	if _, ok := c.journal().(journal.Shelf); !ok || c.options.Idle || known == nil && !rule.Keeps() {
		return nil
	}
	s.attributed.Store(rule.Keeps())
	if known != nil && known.rule == rule {
		return nil
	}
	if known != nil && !known.rule.Keeps() && rule.Keeps() {
		// Compaction has dropped records since: what is left of the history before them must not be taken for complete.
		if err := c.trimPending(); err != nil {
			return err
		}
		for more := true; more; {
			var err error
			if more, err = c.trimPlace(known); err != nil {
				return fmt.Errorf("remove the old history of %s: %w", strings.Trim(s.prefix, "/"), err)
			}
			if known = c.shelf.place(s.prefix); known == nil {
				break
			}
		}
	}
	next := &keptPlace{name: s.prefix}
	if known != nil {
		*next = *known
	}
	if known == nil || !known.rule.Keeps() {
		since := c.watchable()
		next.revision, next.time = since.Revision, c.clock.Now().UnixMicro()
		if !since.Time.IsZero() {
			next.time = since.Time.UnixMicro()
		}
	}
	next.rule = rule
	if err := c.shelve(map[string]*keptPlace{s.prefix: next}, nil); err != nil {
		return fmt.Errorf("keep the history of %s: %w", strings.Trim(s.prefix, "/"), err)
	}
	return nil
}

// shelve changes the shelf, and the states of places. It requires compacting.
func (c *Core) shelve(places map[string]*keptPlace, edits []journal.ShelfEdit) error {
	if err := c.trimPending(); err != nil {
		return err
	}
	c.open.RLock()
	defer c.open.RUnlock()
	return c.shelveOpen(c.compacted.Load(), nil, places, edits)
}

// shelveOpen is shelve together with a trim. It requires open, for reading.
func (c *Core) shelveOpen(compacted uint64, drop []uint64, places map[string]*keptPlace, edits []journal.ShelfEdit) error {
	if c.closed {
		return journal.ErrClosed
	}
	to, ok := c.journal().(journal.Shelf)
	if !ok {
		return c.journal().Trim(compacted, drop)
	}
	for name, p := range places {
		edit := journal.ShelfEdit{Key: shelfPlaces + name}
		if p != nil {
			edit.Value = p.encode()
		}
		edits = append(edits, edit)
	}
	if err := to.TrimAndShelve(compacted, drop, edits); err != nil {
		return err
	}
	c.shelf.set(places)
	return nil
}

// trimPending repeats a trim that failed. A trim without its records must not come before it, because it would raise the
// compacted revision of the journal beyond records that are still there. It requires compacting.
func (c *Core) trimPending() error {
	if len(c.pendingTrim) == 0 {
		return nil
	}
	if err := c.trimMoving(c.compacted.Load(), c.pendingTrim, c.pendingMoves); err != nil {
		return err
	}
	c.pend(nil, nil)
	return nil
}

// pend sets what a failed trim left, which the next one repeats. It requires compacting.
func (c *Core) pend(trim []uint64, moves []moving) {
	c.pendingTrim, c.pendingMoves = trim, moves
	if len(moves) == 0 {
		c.waiting.Store(nil)
		return
	}
	c.waiting.Store(&moves)
}

// waitingMoves returns the moves that a failed trim left, the newest last.
func (c *Core) waitingMoves() []moving {
	if waiting := c.waiting.Load(); waiting != nil {
		return *waiting
	}
	return nil
}

// waitingOf returns the revisions of a key below one, 0 being none, that wait for their move, the newest first.
func (c *Core) waitingOf(key string, before uint64) (revisions []uint64) {
	for _, move := range slices.Backward(c.waitingMoves()) {
		if move.key != key {
			continue
		}
		if move.deletes && (before == 0 || move.event < before) {
			revisions = append(revisions, move.event)
		}
		if before == 0 || move.replaced < before {
			revisions = append(revisions, move.replaced)
		}
	}
	return revisions
}

// movedBytes is the size of the values that one step of the compaction moves to the shelf, unless one event has more.
const movedBytes = 16 << 20

// movable returns the revision up to which a step of the compaction may go, because the records that it moves are in
// memory at once. It requires mu and compacting.
func (c *Core) movable(revision uint64) uint64 {
	if len(c.shelf.all()) == 0 {
		return revision
	}
	var size int64
	for _, v := range c.history.upTo(revision) {
		if previous := v.previous.Load(); previous != nil && c.shelf.of(v.key) != nil {
			if size += int64(previous.size); size > movedBytes && v.revision > c.compacted.Load()+1 {
				return v.revision - 1
			}
		}
	}
	return revision
}

// moving is an event that leaves the history, and whose replaced record is moved to the shelf.
type moving struct {
	key             string
	event, replaced uint64
	time            int64 // Unix microseconds
	deletes         bool
}

// movingOf returns the move that an event requires when it leaves the history; false if its records are dropped.
func (c *Core) movingOf(v *version) (moving, bool) {
	if v.superseded == 0 || c.shelf.of(v.key) == nil {
		return moving{}, false
	}
	return moving{key: v.key, event: v.revision, replaced: v.superseded, time: fromNano(v.committed).UnixMicro(), deletes: v.deleted}, true
}

// trimMoving is trim, and moves records to the shelf. It requires compacting.
func (c *Core) trimMoving(compacted uint64, drop []uint64, moves []moving) error {
	c.open.RLock()
	defer c.open.RUnlock()
	if c.closed {
		return journal.ErrClosed
	}
	if len(moves) == 0 {
		return c.journal().Trim(compacted, drop)
	}
	m := &mover{core: c, places: map[string]*keptPlace{}, ordinals: map[string]uint64{}, added: map[string][]*shelvedRecord{}}
	for _, move := range moves {
		if err := m.move(move); err != nil {
			return err
		}
	}
	if err := m.limit(); err != nil {
		return err
	}
	return c.shelveOpen(compacted, drop, m.places, m.edits)
}

// mover collects the changes of the shelf for one step of the compaction.
type mover struct {
	core     *Core
	places   map[string]*keptPlace
	ordinals map[string]uint64 // the newest of each key
	added    map[string][]*shelvedRecord
	edits    []journal.ShelfEdit
}

// place returns the state of a key's place for this step, nil if nothing of it is kept any more.
func (m *mover) place(key string) *keptPlace {
	known := m.core.shelf.of(key)
	if known == nil {
		return nil
	}
	p := m.places[known.name]
	if p == nil {
		copied := *known
		p = &copied
		m.places[p.name] = p
	}
	return p
}

func (m *mover) move(move moving) error {
	place := m.place(move.key)
	if place == nil {
		return nil
	}
	revisions := []uint64{move.replaced}
	if move.deletes {
		revisions = append(revisions, move.event)
	}
	for _, revision := range revisions {
		record, err := m.core.journal().Read(revision)
		if errors.Is(err, journal.ErrNotFound) {
			continue // moved already
		}
		if errors.Is(err, journal.ErrDamaged) {
			klog.ErrorS(err, "A revision is left out of the kept history", "key", move.key, "revision", revision)
			continue // it must not stop the compaction
		}
		if err != nil {
			return fmt.Errorf("keep the history: %w", err)
		}
		ordinal, known := m.ordinals[move.key]
		if !known {
			if ordinal, err = m.core.newestOrdinal(move.key); err != nil {
				return err
			}
		}
		ordinal++
		m.ordinals[move.key] = ordinal
		m.added[move.key] = append(m.added[move.key], &shelvedRecord{
			pastRecord: pastRecord{Record: record, ordinal: ordinal}, event: move.event, eventDeletes: move.deletes,
		})
	}
	m.edits = append(m.edits, journal.ShelfEdit{
		Key: shelfKey(shelfAges, place.name, move.event), Value: aged{move.time, move.replaced, move.key}.encode(),
	})
	if move.deletes {
		m.edits = append(m.edits, journal.ShelfEdit{
			Key: shelfKey(shelfDeletions, place.name, move.event), Value: binary.BigEndian.AppendUint64(nil, uint64(move.time)),
		})
		last := &m.edits[len(m.edits)-1]
		last.Value = append(last.Value, move.key...)
	}
	return nil
}

// limit adds the moved records, and removes the oldest ones of their keys beyond Retention.Revisions.
func (m *mover) limit() error {
	for key, added := range m.added {
		place := m.place(key)
		var last uint64 // the last ordinal that is not kept
		if newest, most := m.ordinals[key], uint64(max(place.rule.Revisions, 0)); most > 0 && newest > most {
			last = newest - most
		}
		for _, r := range added {
			if r.ordinal <= last {
				m.unindex(place, r)
				continue
			}
			edit := journal.ShelfEdit{Key: shelfKey(shelfRecords, key, r.Revision), Value: r.encode()}
			m.edits = append(m.edits, edit)
			place.records++
			place.bytes += sizeOnShelf(edit.Key, edit.Value)
		}
		if last == 0 {
			continue
		}
		from, below := shelfBounds(shelfRecords, key)
		err := m.core.scanShelf(from, below, false, func(at string, data []byte) (bool, error) {
			r, err := decodeShelved(key, revisionOfShelfKey(at), data)
			if err != nil || r.ordinal > last {
				return false, err
			}
			m.edits = append(m.edits, journal.ShelfEdit{Key: at})
			place.records--
			place.bytes -= sizeOnShelf(at, data)
			m.unindex(place, r)
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// unindex removes the entries by which a record is found that is removed for the number of its key's records. The entry of
// a deletion belongs to the tombstone.
func (m *mover) unindex(place *keptPlace, r *shelvedRecord) {
	if r.eventDeletes && !r.Deleted {
		return
	}
	m.edits = append(m.edits, journal.ShelfEdit{Key: shelfKey(shelfAges, place.name, r.event)})
	if r.Deleted {
		m.edits = append(m.edits, journal.ShelfEdit{Key: shelfKey(shelfDeletions, place.name, r.event)})
	}
}

// sizeOnShelf is the size of a record with its entry by age.
func sizeOnShelf(key string, value []byte) int64 { return int64(2*len(key) + len(value) + 32) }

// scanShelf calls yield for the keys between two bounds until it returns false. It requires open, for reading.
func (c *Core) scanShelf(from, below string, backwards bool, yield func(key string, value []byte) (more bool, err error)) error {
	s, ok := c.journal().(journal.Shelf)
	if !ok {
		return nil
	}
	var failure error
	err := s.ScanShelf(from, below, backwards, func(key string, value []byte) (more bool) {
		more, failure = yield(key, value)
		return more && failure == nil
	})
	return errors.Join(err, failure)
}

// newestOrdinal returns the ordinal of the newest record of a key on the shelf, 0 if there is none. It requires open, for
// reading.
func (c *Core) newestOrdinal(key string) (ordinal uint64, err error) {
	from, below := shelfBounds(shelfRecords, key)
	err = c.scanShelf(from, below, true, func(at string, data []byte) (bool, error) {
		r, err := decodeShelved(key, revisionOfShelfKey(at), data)
		if err == nil {
			ordinal = r.ordinal
		}
		return false, err
	})
	return ordinal, err
}

// readingShelf calls read for a place unless the core is closed. It does nothing if the place keeps no history, or none any
// more: then records after those on the shelf may have been dropped.
func (c *Core) readingShelf(place *keptPlace, read func() error) error {
	if place == nil || !place.rule.Keeps() {
		return nil
	}
	c.open.RLock()
	defer c.open.RUnlock()
	if c.closed {
		return journal.ErrClosed
	}
	return read()
}

// shelvedBytes is the size of the records that are read from the shelf at once.
const shelvedBytes = 1 << 20

// shelved calls yield for the records of a key on the shelf below a revision, 0 being none, the newest first. yield may
// read and write.
func (c *Core) shelved(key string, before uint64, yield func(pastRecord) bool) error {
	from, below := shelfBounds(shelfRecords, key)
	if before != 0 {
		below = shelfKey(shelfRecords, key, before)
	}
	for most := 1; ; most = min(4*most, pastBatch) {
		var found []pastRecord
		size, more := 0, false
		err := c.readingShelf(c.shelf.of(key), func() error {
			return c.scanShelf(from, below, true, func(at string, data []byte) (bool, error) {
				r, err := decodeShelved(key, revisionOfShelfKey(at), slices.Clone(data))
				if err != nil {
					return false, err
				}
				found, size = append(found, r.pastRecord), size+len(data)
				more = len(found) == most || size > shelvedBytes
				return !more, nil
			})
		})
		if err != nil {
			return err
		}
		for _, r := range found {
			if !yield(r) {
				return nil
			}
			below = shelfKey(shelfRecords, key, r.Revision)
		}
		if !more {
			return nil
		}
	}
}

// shelvedAt returns the record of a key at a revision.
func (c *Core) shelvedAt(key string, revision uint64) (found pastRecord, err error) {
	err = c.shelved(key, revision+1, func(r pastRecord) bool {
		found = r
		return false
	})
	if err == nil && found.Revision != revision {
		err = fmt.Errorf("revision %d: %w", revision, journal.ErrNotFound)
	}
	return found, err
}

// shelvedSince is shelved for the records from about a time on, the last of which was current then: it looks for the
// record by halves, because times rise with revisions.
func (c *Core) shelvedSince(key string, before uint64, at time.Time, yield func(pastRecord) bool) error {
	high := before // no record from here on is as old as the time, unless the clock was set back
	if high == 0 {
		high = c.published.Load() + 1
	}
	low := uint64(0) // the record below this is at most as old
	for low+1 < high {
		middle := low + (high-low)/2
		var found *pastRecord
		if err := c.shelved(key, middle+1, func(r pastRecord) bool {
			found = &r
			return false
		}); err != nil {
			return err
		}
		switch {
		case found == nil:
			low = middle
		case found.Committed.After(at):
			high = found.Revision
		default:
			// It is the wanted record if the next one is later.
			low = middle
		}
	}
	return c.shelved(key, high, yield)
}

// oldestShelved returns the oldest record of a key on the shelf, without its value, nil if there is none.
func (c *Core) oldestShelved(key string) (oldest *pastRecord, err error) {
	from, below := shelfBounds(shelfRecords, key)
	err = c.readingShelf(c.shelf.of(key), func() error {
		return c.scanShelf(from, below, false, func(at string, data []byte) (bool, error) {
			r, err := decodeShelved(key, revisionOfShelfKey(at), data)
			if err == nil {
				oldest = &r.pastRecord
				oldest.Value = nil
			}
			return false, err
		})
	})
	return oldest, err
}

// shelvedKeys returns the keys below a prefix that have records on the shelf.
func (c *Core) shelvedKeys(prefix string) (keys []string, err error) {
	from, below := shelfRecords+prefix, shelfRecords+prefix+"\xff"
	for more := true; more && err == nil; {
		more = false
		err = c.readingShelf(c.shelf.of(prefix), func() error {
			return c.scanShelf(from, below, false, func(at string, _ []byte) (bool, error) {
				key := strings.TrimPrefix(at, shelfRecords)
				key = key[:max(len(key)-9, 0)] // without a zero byte and the revision
				keys, more = append(keys, key), true
				_, from = shelfBounds(shelfRecords, key)
				return false, nil
			})
		})
	}
	return keys, err
}

// shelvedDeletions calls yield for the deletions on the shelf below a key prefix and a revision, the newest first.
func (c *Core) shelvedDeletions(place, prefix string, before uint64, yield func(deletion) (bool, error)) error {
	from, below := shelfBounds(shelfDeletions, place)
	if before != 0 {
		below = shelfKey(shelfDeletions, place, before)
	}
	for {
		// yield reads the shelf, too, so it runs between the scans.
		var found []deletion
		err := c.readingShelf(c.shelf.place(place), func() error {
			return c.scanShelf(from, below, true, func(at string, data []byte) (bool, error) {
				if len(data) >= 8 && strings.HasPrefix(string(data[8:]), prefix) {
					found = append(found, deletion{string(data[8:]), revisionOfShelfKey(at)})
				}
				return len(found) < pastBatch, nil
			})
		})
		if err != nil {
			return err
		}
		for _, d := range found {
			if more, err := yield(d); !more || err != nil {
				return err
			}
			below = shelfKey(shelfDeletions, place, d.revision)
		}
		if len(found) < pastBatch {
			return nil
		}
	}
}

// shelfBatch is the number of events that leave the shelf in one step.
const shelfBatch = 1024

// trimShelf removes what the retentions no longer keep. It requires compacting.
func (c *Core) trimShelf(ctx context.Context) error {
	if len(c.shelf.all()) == 0 {
		return nil
	}
	if err := c.trimPending(); err != nil {
		return err
	}
	for _, place := range c.shelf.all() {
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			var err error
			if more, err = c.trimPlace(c.shelf.place(place.name)); err != nil {
				return fmt.Errorf("remove old history of %s: %w", strings.Trim(place.name, "/"), err)
			}
		}
	}
	return nil
}

// trimPlace removes the oldest records of a place that are no longer kept, some of them at once. It reports whether there
// may be more.
func (c *Core) trimPlace(place *keptPlace) (more bool, err error) {
	if place == nil {
		return false, nil
	}
	c.open.RLock()
	defer c.open.RUnlock()
	if c.closed {
		return false, journal.ErrClosed
	}
	next := *place
	var edits []journal.ShelfEdit
	gone := map[string]bool{}
	remove := func(key string, revision uint64, tombstone bool) error {
		at := shelfKey(shelfRecords, key, revision)
		data, err := c.journal().(journal.Shelf).ReadShelf(at)
		if err != nil || data == nil || gone[at] {
			return err
		}
		if tombstone {
			// The record of an event that deletes nothing stays: it was replaced later.
			if r, err := decodeShelved(key, revision, data); err != nil || !r.Deleted {
				return err
			}
		}
		edits = append(edits, journal.ShelfEdit{Key: at})
		gone[at] = true
		next.records--
		next.bytes -= sizeOnShelf(at, data)
		return nil
	}
	now := c.clock.Now().UnixMicro()
	limit := place.bytesLimit()
	if next.bytes > limit {
		limit -= limit / 8 // an eighth more than necessary, because otherwise the next move would exceed the limit again
	}
	from, below := shelfBounds(shelfAges, place.name)
	n := 0
	var oldest []aged
	var events []uint64
	err = c.scanShelf(from, below, false, func(at string, data []byte) (bool, error) {
		a, err := decodeAged(data)
		if err != nil {
			return false, err
		}
		oldest, events = append(oldest, a), append(events, revisionOfShelfKey(at))
		n++
		// The others are younger.
		removes := !place.rule.Keeps() || place.bytes > place.bytesLimit() || place.rule.Age > 0 && a.time < now-place.rule.Age.Microseconds()
		return removes && n < shelfBatch, nil
	})
	if err != nil {
		return false, err
	}
	removed := 0
	for i, a := range oldest {
		expired := place.rule.Age > 0 && a.time < now-place.rule.Age.Microseconds()
		if place.rule.Keeps() && !expired && next.bytes <= limit {
			break
		}
		event := events[i]
		if err := errors.Join(remove(a.key, a.replaced, false), remove(a.key, event, true)); err != nil {
			return false, err
		}
		edits = append(edits,
			journal.ShelfEdit{Key: shelfKey(shelfAges, place.name, event)},
			journal.ShelfEdit{Key: shelfKey(shelfDeletions, place.name, event)})
		if event > next.revision {
			next.revision, next.time = event, a.time
		}
		removed++
	}
	if place.rule.Age == 0 && place.rule.Keeps() {
		if err := c.forgetDeleted(place, &next, now-store.DeletedAge.Microseconds(), remove, &edits); err != nil {
			return false, err
		}
	}
	places := map[string]*keptPlace{place.name: &next}
	if !place.rule.Keeps() && removed == len(oldest) && n < shelfBatch {
		places[place.name] = nil
	} else if len(edits) == 0 {
		return false, nil
	}
	if err := c.shelveOpen(c.compacted.Load(), nil, places, edits); err != nil {
		return false, err
	}
	return removed == shelfBatch, nil
}

// forgetDeleted removes the records of keys that were deleted before a time, of a place that keeps records by their number.
func (c *Core) forgetDeleted(
	place, next *keptPlace, before int64, remove func(string, uint64, bool) error, edits *[]journal.ShelfEdit,
) error {
	from, below := shelfBounds(shelfDeletions, place.name)
	var old []deletion
	err := c.scanShelf(from, below, false, func(at string, data []byte) (bool, error) {
		if len(data) < 8 || int64(binary.BigEndian.Uint64(data)) >= before {
			return false, nil
		}
		if revision := revisionOfShelfKey(at); revision > next.revision {
			next.revision, next.time = revision, int64(binary.BigEndian.Uint64(data))
		}
		old = append(old, deletion{string(data[8:]), revisionOfShelfKey(at)})
		return len(old) < shelfBatch, nil
	})
	if err != nil {
		return err
	}
	for _, d := range old {
		from, _ := shelfBounds(shelfRecords, d.key)
		below := shelfKey(shelfRecords, d.key, d.revision+1)
		var events []*shelvedRecord
		err := c.scanShelf(from, below, false, func(at string, data []byte) (bool, error) {
			r, err := decodeShelved(d.key, revisionOfShelfKey(at), data)
			if err == nil {
				events = append(events, r)
			}
			return true, err
		})
		if err != nil {
			return err
		}
		for _, r := range events {
			if err := remove(d.key, r.Revision, false); err != nil {
				return err
			}
			*edits = append(*edits, journal.ShelfEdit{Key: shelfKey(shelfAges, place.name, r.event)})
		}
		*edits = append(*edits, journal.ShelfEdit{Key: shelfKey(shelfDeletions, place.name, d.revision)})
	}
	return nil
}

// Kept is the history of one resource that is kept beyond the compacted revision.
type Kept struct {
	Prefix         string
	Retention      store.Retention
	Records, Bytes int64
	Since          store.Point
}

// Kept returns what is kept of each resource, in the order of prefixes.
func (c *Core) Kept() []Kept {
	var all []Kept
	for _, p := range c.shelf.all() {
		all = append(all, Kept{strings.TrimSuffix(p.name, "/"), p.rule, p.records, p.bytes, p.since()})
	}
	return all
}
