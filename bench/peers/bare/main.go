// Command bare is a bare Go server for comparison with the measured ones. It speaks TLS and HTTP/2 as an API server
// does, and does only the indispensable: it answers reads with prepared bytes, decodes the body of a write and
// encodes a response, and sends a change to all watches. It authenticates no caller, keeps nothing and looks nothing
// up. It shows the limit for a Go server over this HTTP/2 that does no work for its responses.
//
// With -log it also appends the objects of writes to a file, and syncs that before it answers: the minimum cost of a
// disk.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"

	"golang.org/x/net/http2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bare", flag.ContinueOnError)
	address := flags.String("address", "127.0.0.1:0", "where to listen")
	cert, key := flags.String("cert", "", "certificate file"), flags.String("key", "", "key file")
	objects := flags.Int("objects", 0, "how many objects a list has")
	path := flags.String("log", "", "file to append what is written to, and to sync; nothing is kept without one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	handler := newServer(*objects)
	if *path != "" {
		if handler.log, err = openLog(*path); err != nil {
			return err
		}
		defer handler.log.close()
	}
	server := &http.Server{
		Addr:      *address,
		Handler:   handler,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
	}
	// The settings of upstream's servers.
	const frame = 256 << 10
	if err := http2.ConfigureServer(server, &http2.Server{
		MaxConcurrentStreams: 100, MaxReadFrameSize: frame, MaxUploadBufferPerStream: frame, MaxUploadBufferPerConnection: 100 * frame,
	}); err != nil {
		return fmt.Errorf("configure HTTP/2: %w", err)
	}
	go func() {
		<-ctx.Done()
		_ = server.Close() // it ends as a whole
	}()
	if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// flunder is the requested kind.
type flunder struct {
	Kind       string `json:"kind,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	Metadata   struct {
		Name              string            `json:"name,omitempty"`
		Namespace         string            `json:"namespace,omitempty"`
		UID               string            `json:"uid,omitempty"`
		ResourceVersion   string            `json:"resourceVersion,omitempty"`
		Generation        int64             `json:"generation,omitempty"`
		CreationTimestamp string            `json:"creationTimestamp,omitempty"`
		Labels            map[string]string `json:"labels,omitempty"`
		Annotations       map[string]string `json:"annotations,omitempty"`
		ManagedFields     []managed         `json:"managedFields,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Reference     string `json:"reference,omitempty"`
		ReferenceType string `json:"referenceType,omitempty"`
	} `json:"spec"`
	Status struct{} `json:"status"`
}

type managed struct {
	Manager    string          `json:"manager,omitempty"`
	Operation  string          `json:"operation,omitempty"`
	APIVersion string          `json:"apiVersion,omitempty"`
	Time       string          `json:"time,omitempty"`
	FieldsType string          `json:"fieldsType,omitempty"`
	FieldsV1   json.RawMessage `json:"fieldsV1,omitempty"`
}

// server is the handler. Requests may come concurrently.
type server struct {
	list []byte
	log  *syncedLog // nil if nothing is kept

	mu      sync.Mutex
	object  []byte // the last written object, the response to every get
	version int
	events  [][]byte      // the newest, the last of which has the number version
	next    chan struct{} // closed by the next event
}

// most is the number of events that a watch may be behind.
const most = 4096

func newServer(objects int) *server {
	o := sample()
	item := encode(o)
	list := append(
		make([]byte, 0, (len(item)+1)*objects+64),
		`{"kind":"FlunderList","apiVersion":"wardle.example.com/v1alpha1","metadata":{"resourceVersion":"1"},"items":[`...)
	for i := range objects {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, item...)
	}
	return &server{list: append(list, "]}\n"...), object: item, next: make(chan struct{})}
}

// sample returns an object of the size of the requested ones.
func sample() *flunder {
	o := &flunder{Kind: "Flunder", APIVersion: "wardle.example.com/v1alpha1"}
	m := &o.Metadata
	m.Name, m.Namespace, m.UID, m.ResourceVersion = "sample", "requests", "00000000-0000-0000-0000-000000000000", "1"
	m.Generation, m.CreationTimestamp = 1, "2026-01-01T00:00:00Z"
	m.Labels = map[string]string{"app": "web", "tier": "front", "group": "group-00"}
	m.Annotations = map[string]string{
		"example.com/sequence": "00000000",
		"example.com/note":     strings.Repeat("image replicas template container port env value limit request ", 4),
	}
	m.ManagedFields = []managed{
		{
			Manager:    "annex-bench-peers",
			Operation:  "Update",
			APIVersion: "wardle.example.com/v1alpha1",
			Time:       "2026-01-01T00:00:00Z",
			FieldsType: "FieldsV1",
			FieldsV1: json.RawMessage(
				`{"f:metadata":{"f:annotations":{".":{},"f:example.com/note":{},"f:example.com/sequence":{}},` +
					`"f:labels":{".":{},"f:app":{},"f:group":{},"f:tier":{}}},"f:spec":{"f:reference":{},"f:referenceType":{}}}`,
			),
		},
	}
	o.Spec.Reference, o.Spec.ReferenceType = "another-flunder", "Flunder"
	return o
}

func encode(o *flunder) []byte {
	text, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("encode a flunder: %v", err)) // every field can be encoded
	}
	return text
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Content-Type"] = []string{"application/json"}
	switch {
	case r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "watch=1"):
		s.watch(w, r)
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/flunders"):
		_, _ = w.Write(s.list)
	case r.Method == http.MethodGet || r.Method == http.MethodDelete:
		s.mu.Lock()
		object := s.object
		s.mu.Unlock()
		if r.Method == http.MethodDelete && !s.keep(w, []byte(r.URL.Path)) {
			return
		}
		_, _ = w.Write(object)
	default:
		s.write(w, r)
	}
}

// keep makes a record durable, if the server keeps any. If that fails, it sends the response.
func (s *server) keep(w http.ResponseWriter, record []byte) bool {
	if s.log == nil {
		return true
	}
	err := s.log.append(record)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
	return err == nil
}

// write decodes the body, encodes an object with its content, and notifies the watches.
func (s *server) write(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	o := sample()
	if err == nil && r.Method != http.MethodPatch {
		err = json.Unmarshal(body, o)
	}
	if err == nil && r.Method == http.MethodPatch {
		err = patch(body, o)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.version++
	o.Metadata.ResourceVersion = fmt.Sprint(s.version)
	s.object = encode(o)
	object := s.object
	if s.events = append(s.events, append(append([]byte(`{"type":"MODIFIED","object":`), object...), "}\n"...)); len(s.events) > 2*most {
		s.events = append([][]byte(nil), s.events[most:]...)
	}
	close(s.next)
	s.next = make(chan struct{})
	s.mu.Unlock()
	if !s.keep(w, object) {
		return
	}
	if r.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
	}
	_, _ = w.Write(object)
}

// patch applies any of the measured patches.
func patch(body []byte, o *flunder) error {
	if !bytes.HasPrefix(body, []byte("[")) {
		return json.Unmarshal(body, o)
	}
	var operations []struct{ Value string }
	if err := json.Unmarshal(body, &operations); err != nil {
		return err
	}
	for _, operation := range operations {
		o.Metadata.Annotations["example.com/sequence"] = operation.Value
	}
	return nil
}

// watch sends the events from now on, due ones together.
func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	seen := s.version
	s.mu.Unlock()
	flush := w.(http.Flusher).Flush
	w.WriteHeader(http.StatusOK)
	flush()
	var due []byte
	for {
		s.mu.Lock()
		events, next := s.events[len(s.events)-min(len(s.events), s.version-seen):], s.next
		seen = s.version
		s.mu.Unlock()
		if len(events) == 0 {
			select {
			case <-next:
				continue
			case <-r.Context().Done():
				return
			}
		}
		due = due[:0]
		for _, event := range events {
			due = append(due, event...)
		}
		if _, err := w.Write(due); err != nil {
			return
		}
		flush()
	}
}
