package requestlog

import (
	"encoding/binary"
	"sync"
	"time"
)

// DefaultSize is the size of a server's ring, in bytes: some thousands of requests.
const DefaultSize = 1 << 20

// maxText is the maximum length of each text of a record, in bytes. The rest is left out.
const maxText = 512

// Entry is a request that has ended.
type Entry struct {
	Time     time.Time
	Duration time.Duration
	User     string
	// As is the impersonated user.
	As     string
	Remote string
	Verb   string
	// Group, Resource and the following fields are empty for requests that are not for a resource.
	Group, Version, Resource, Subresource, Namespace, Name string
	// URI is the path and the query, without values of credentials.
	URI  string
	Code int
	// Reason is the reason of a refusal, and Causes are its fields.
	Reason, Causes string
	// Bytes is the size of the response's body.
	Bytes int64
	// Long is set for watches and other streams, which are recorded at their end.
	Long bool
}

func (e *Entry) texts() [13]*string {
	return [...]*string{
		&e.User, &e.As, &e.Remote, &e.Verb, &e.Group, &e.Version, &e.Resource, &e.Subresource, &e.Namespace, &e.Name, &e.URI,
		&e.Reason, &e.Causes,
	}
}

// A record is: its length (uint32), the time and the duration in nanoseconds (int64 each), the code (uint16), 1 if it is long
// (uint8), the bytes (int64), and each text with its length (uint16). Numbers are little-endian.
const (
	fixedSize = 4 + 8 + 8 + 2 + 1 + 8
	maxRecord = fixedSize + 13*(2+maxText)
)

func (e *Entry) append(b []byte) []byte {
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Time.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Duration))
	b = binary.LittleEndian.AppendUint16(b, uint16(e.Code))
	long := byte(0)
	if e.Long {
		long = 1
	}
	b = append(b, long)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Bytes))
	for _, text := range e.texts() {
		kept := (*text)[:min(len(*text), maxText)]
		b = binary.LittleEndian.AppendUint16(b, uint16(len(kept)))
		b = append(b, kept...)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

// parse reads the record at the beginning of b, and returns its length.
func (e *Entry) parse(b []byte) int {
	length := int(binary.LittleEndian.Uint32(b))
	b = b[4:]
	e.Time = time.Unix(0, int64(binary.LittleEndian.Uint64(b)))
	e.Duration = time.Duration(binary.LittleEndian.Uint64(b[8:]))
	e.Code = int(binary.LittleEndian.Uint16(b[16:]))
	e.Long = b[18] == 1
	e.Bytes = int64(binary.LittleEndian.Uint64(b[19:]))
	b = b[27:]
	for _, text := range e.texts() {
		n := int(binary.LittleEndian.Uint16(b))
		*text = string(b[2 : 2+n])
		b = b[2+n:]
	}
	return length
}

// Ring has the last requests. Its methods may be called concurrently.
type Ring struct {
	buffers sync.Pool // *[]byte, for one record each

	mu   sync.Mutex
	data []byte
	// first and end are the positions of the oldest record and behind the newest, in bytes since the beginning.
	first, end position
	// changed is closed by the next Add; nil if no reader waits.
	changed chan struct{}
}

// position is a place between records: the bytes and the number of the records before it.
type position struct{ at, record uint64 }

// NewRing returns a ring of a size in bytes, which has room for one record at least.
func NewRing(size int) *Ring {
	return &Ring{
		data:    make([]byte, max(size, maxRecord)),
		buffers: sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }},
	}
}

// Add adds a request.
func (r *Ring) Add(e *Entry) {
	buffer := r.buffers.Get().(*[]byte)
	record := e.append((*buffer)[:0])
	r.mu.Lock()
	for r.end.at+uint64(len(record))-r.first.at > uint64(len(r.data)) {
		r.first = position{r.first.at + uint64(r.lengthAt(r.first.at)), r.first.record + 1}
	}
	at := int(r.end.at % uint64(len(r.data)))
	copy(r.data, record[copy(r.data[at:], record):])
	r.end = position{r.end.at + uint64(len(record)), r.end.record + 1}
	changed := r.changed
	r.changed = nil
	r.mu.Unlock()
	if changed != nil {
		close(changed)
	}
	*buffer = record
	r.buffers.Put(buffer)
}

// lengthAt returns the length of the record at a position. The caller holds mu.
func (r *Ring) lengthAt(at uint64) uint32 {
	var length [4]byte
	r.copyOut(length[:], at)
	return binary.LittleEndian.Uint32(length[:])
}

// copyOut copies bytes from a position. The caller holds mu.
func (r *Ring) copyOut(to []byte, from uint64) {
	at := int(from % uint64(len(r.data)))
	copy(to[copy(to, r.data[at:]):], r.data)
}

// Dropped returns the number of requests that have made place for newer ones.
func (r *Ring) Dropped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first.record
}

// batch is the maximum number of bytes that a reader copies at once, while the lock is held.
const batch = 32 << 10

// read returns records from a position on, as bytes, the position behind them, and the number of records before them that
// are lost. Without records it also returns a channel that is closed when there are some.
func (r *Ring) read(from position) (records []byte, next position, lost uint64, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if from.record < r.first.record {
		lost, from = r.first.record-from.record, r.first
	}
	next = from
	for next.at < r.end.at {
		length := uint64(r.lengthAt(next.at))
		if next.at > from.at && next.at+length-from.at > batch {
			break
		}
		next = position{next.at + length, next.record + 1}
	}
	if next.at == from.at {
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		return nil, next, lost, r.changed
	}
	records = make([]byte, next.at-from.at)
	r.copyOut(records, from.at)
	return records, next, lost, nil
}
