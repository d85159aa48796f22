package requestlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Path is where administrators read the requests. It is a path beside resources, which needs a rule of its own.
const Path = "/debug/requests"

const (
	// maxReaders bounds the streams of requests.
	maxReaders = 32
	// gathering is the time for which a stream gathers requests, so that a busy server does not flush for each of them.
	gathering = 100 * time.Millisecond
	// heartbeat is the time after which a quiet stream sends a comment, by which clients and proxies see that it lives.
	heartbeat = 15 * time.Second
	// writing bounds a write to a client that does not read.
	writing = 10 * time.Second
)

// Streams reports whether a request wants a stream. Streams run until their client or the server ends.
func Streams(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// Handler serves the requests of a ring: as JSON, or as a stream of server-sent events that begins with the requests of the
// ring. Events of the type REQUEST have an entry; those of the type GAP have the number of entries that were overwritten
// before they could be sent, whether or not the filter selects them.
func Handler(ring *Ring) http.Handler {
	return &handler{ring: ring}
}

type handler struct {
	ring    *Ring
	readers atomic.Int32
}

// shown is an entry in answers.
type shown struct {
	Time        time.Time `json:"time"`
	Millis      float64   `json:"milliseconds"`
	User        string    `json:"user,omitempty"`
	As          string    `json:"as,omitempty"`
	Remote      string    `json:"remote,omitempty"`
	Verb        string    `json:"verb"`
	Group       string    `json:"group,omitempty"`
	Version     string    `json:"version,omitempty"`
	Resource    string    `json:"resource,omitempty"`
	Subresource string    `json:"subresource,omitempty"`
	Namespace   string    `json:"namespace,omitempty"`
	Name        string    `json:"name,omitempty"`
	URI         string    `json:"uri"`
	Code        int       `json:"code"`
	Reason      string    `json:"reason,omitempty"`
	Causes      []string  `json:"causes,omitempty"`
	Bytes       int64     `json:"bytes"`
	Long        bool      `json:"long,omitempty"`
}

func (e *Entry) shown() shown {
	s := shown{
		e.Time.UTC(), float64(e.Duration.Microseconds()) / 1000, e.User, e.As, e.Remote, e.Verb, e.Group, e.Version, e.Resource, e.Subresource,
		e.Namespace, e.Name, e.URI, e.Code, e.Reason, nil, e.Bytes, e.Long,
	}
	if e.Causes != "" {
		s.Causes = strings.Split(e.Causes, "\n")
	}
	return s
}

// filter selects entries.
type filter struct {
	user, verb string
	resource   string // resource, or resource.group
	refused    bool
}

func parseFilter(query url.Values) (filter, error) {
	known := []string{"user", "verb", "resource", "refused"}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return filter{}, fmt.Errorf("unknown parameter %.64q: use %s", name, strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return filter{}, fmt.Errorf("the parameter %s is set %d times", name, len(values))
		}
	}
	f := filter{user: query.Get("user"), verb: query.Get("verb"), resource: query.Get("resource")}
	if text := query.Get("refused"); text != "" {
		var err error
		if f.refused, err = strconv.ParseBool(text); err != nil {
			return filter{}, fmt.Errorf("the parameter refused is %.64q, not true or false", text)
		}
	}
	return f, nil
}

func (f *filter) selects(e *Entry) bool {
	if f.user != "" && e.User != f.user && e.As != f.user || f.verb != "" && e.Verb != f.verb || f.refused && e.Code < http.StatusBadRequest {
		return false
	}
	if f.resource == "" {
		return true
	}
	resource, group, hasGroup := strings.Cut(f.resource, ".")
	return e.Resource == resource && (!hasGroup || e.Group == group)
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "requests are only read", http.StatusMethodNotAllowed)
		return
	}
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !Streams(r) {
		h.list(w, &f)
		return
	}
	if h.readers.Add(1) > maxReaders {
		h.readers.Add(-1)
		w.Header().Set("Retry-After", "10")
		text := fmt.Sprintf("%d streams of requests are open: close one, or read them without a stream", maxReaders)
		http.Error(w, text, http.StatusTooManyRequests)
		return
	}
	defer h.readers.Add(-1)
	h.stream(w, r, &f)
}

// list answers with the entries of the ring, the oldest first.
func (h *handler) list(w http.ResponseWriter, f *filter) {
	all := []shown{}
	_ = h.ring.each(&position{}, func(e *Entry) error {
		if f.selects(e) {
			all = append(all, e.shown())
		}
		return nil
	}, func(uint64) error { return nil })
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"dropped": h.ring.Dropped(), "requests": all}) // the client may have gone
}

// maxBatches bounds the batches of one call of each, so that a stream of a server that is always busy sees its end.
const maxBatches = 64

// each calls one for the entries from a position on until there are no more, or many, and moves the position. It calls lost
// before with the number of entries that are lost.
func (r *Ring) each(from *position, one func(*Entry) error, lost func(uint64) error) error {
	for range maxBatches {
		records, next, gone, _ := r.read(*from)
		if gone > 0 {
			if err := lost(gone); err != nil {
				return err
			}
		}
		if records == nil {
			*from = next
			return nil
		}
		for len(records) > 0 {
			var e Entry
			records = records[e.parse(records):]
			if err := one(&e); err != nil {
				return err
			}
		}
		*from = next
	}
	return nil
}

// stream sends the entries of the ring and all later ones, until the request ends.
func (h *handler) stream(w http.ResponseWriter, r *http.Request, f *filter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	connection := http.NewResponseController(w)
	var out bytes.Buffer
	flush := func() error {
		_ = connection.SetWriteDeadline(time.Now().Add(writing)) // not every connection has deadlines
		_, err := w.Write(out.Bytes())
		out.Reset()
		if err == nil {
			err = connection.Flush()
		}
		_ = connection.SetWriteDeadline(time.Time{}) // it would end a quiet stream, too
		return err
	}
	send := func(kind string, value any) error {
		data, err := json.Marshal(value)
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "event: %s\ndata: %s\n\n", kind, data)
		if out.Len() > batch {
			return flush()
		}
		return nil
	}
	one := func(e *Entry) error {
		if !f.selects(e) {
			return nil
		}
		return send("REQUEST", e.shown())
	}
	lost := func(n uint64) error { return send("GAP", map[string]uint64{"lost": n}) }
	// What was overwritten before the stream began is no loss of its own.
	from := h.ring.oldest()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	out.WriteString(": the requests of the server\n\n")
	for {
		if h.ring.each(&from, one, lost) != nil || out.Len() > 0 && flush() != nil {
			return
		}
		pause.Reset(gathering)
		select {
		case <-r.Context().Done():
			return
		case <-pause.C:
		}
		_, _, _, more := h.ring.read(from)
		if more == nil {
			continue
		}
		select {
		case <-r.Context().Done():
			return
		case <-more:
		case <-beat.C:
			out.WriteString(":\n\n")
		}
	}
}

// oldest returns the position of the oldest entry.
func (r *Ring) oldest() position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}
