package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// attack is a way to harm a server. Run continues until the context ends, or until it has nothing more to send, and
// counts its actions in the report. It returns an error if the attack could not be tried.
type attack interface {
	Name() string
	Run(ctx context.Context, t *target, r *report) error
}

// attacks returns all attacks, in the order of a run.
func attacks() []attack {
	return []attack{
		stalledReviews{}, stalledReviews{large: true},
		slowReads{}, slowStreams{}, slowBodies{}, slowFrames{},
		rapidReset{}, continuationFlood{}, controlFrames{}, largeHeaders{}, manyHeaders{}, packedHeaders{},
		idleConnections{}, whitespaceBodies{}, readsWithBodies{}, gzipBodies{},
		deepJSON{}, deepObjects{}, nestedProtobuf{}, deepYAML{}, yamlAliases{},
		deepMergePatch{}, jsonPatchCopies{}, jsonPatchMoves{}, strategicLists{}, largeApply{},
		longSelectors{}, hugeContinue{}, longQueries{}, manyWatches{},
		largeExpressions{}, largeDefinitions{}, loopbackWebhooks{},
		foreignWebSocket{}, revokedWatch{},
	}
}

// report counts the actions of an attack. Its methods may be called concurrently.
type report struct {
	mu     sync.Mutex
	sent   int64
	bytes  int64
	codes  map[int]int64
	broken int64 // requests without a response
	notes  []string
	holes  []string // security holes
}

func newReport() *report { return &report{codes: map[int]int64{}} }

// count counts sent requests or frames.
func (r *report) count(n, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent += int64(n)
	r.bytes += int64(bytes)
}

// answer counts a response; 0 means none.
func (r *report) answer(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if code == 0 {
		r.broken++
	} else {
		r.codes[code]++
	}
}

// note adds a note for the reader of the table, once.
func (r *report) note(format string, values ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := fmt.Sprintf(format, values...); !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

// hole adds a security hole, which fails the attack's verdict.
func (r *report) hole(format string, values ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holes = append(r.holes, fmt.Sprintf(format, values...))
}

// String lists the sent requests with their responses.
func (r *report) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d", r.sent)
	if r.bytes >= 1<<20 {
		fmt.Fprintf(&b, " (%d MB)", r.bytes>>20)
	}
	separator := ": "
	for _, code := range slices.Sorted(maps.Keys(r.codes)) {
		fmt.Fprintf(&b, "%s%d %dx", separator, code, r.codes[code])
		separator = ", "
	}
	if r.broken > 0 {
		fmt.Fprintf(&b, "%sno answer %dx", separator, r.broken)
	}
	for _, note := range r.notes {
		b.WriteString("; " + note)
	}
	return b.String()
}

// spread runs so many workers and waits for them. It returns the first error.
func spread(workers int, work func(worker int) error) error {
	errs := make(chan error, workers)
	for i := range workers {
		go func() { errs <- work(i) }()
	}
	var first error
	for range workers {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// shot is a request of an attack.
type shot struct {
	as     credential
	method string
	path   string
	media  string
	body   []byte
	header http.Header
}

// shotPatience is the time that an attacker waits for one response.
const shotPatience = 40 * time.Second

// fire sends requests repeatedly, one after the other by each worker with a connection of its own, until the context
// ends.
func fire(ctx context.Context, t *target, r *report, workers int, shots ...shot) error {
	return spread(workers, func(worker int) error {
		client := t.client(credential{}, 1)
		defer client.CloseIdleConnections()
		for i := worker; ctx.Err() == nil; i++ {
			code, err := fireOne(ctx, t, client, r, shots[i%len(shots)])
			if ctx.Err() != nil {
				return nil
			}
			if r.answer(code); err != nil {
				r.note("%s", reason(err))
				pause(ctx, 50*time.Millisecond) // do not ask a server that ends connections for new ones in a loop
			}
		}
		return nil
	})
}

// fireOne sends a request, and returns the status of its response, 0 if there is none. It reads the response to its
// end.
func fireOne(ctx context.Context, t *target, client *http.Client, r *report, s shot) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, shotPatience)
	defer cancel()
	request, err := t.request(ctx, s.as, s.method, s.path, s.body)
	if err != nil {
		return 0, err
	}
	if s.media != "" {
		request.Header.Set("Content-Type", s.media)
	}
	for name, values := range s.header {
		request.Header[name] = values
	}
	r.count(1, len(s.body)+len(s.path))
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// reason returns the innermost message of an error, which has no addresses and paths.
func reason(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return cut(err.Error(), 120)
		}
		err = inner
	}
}

// Paths that any authenticated caller may send to.
const (
	accessReviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	subjectReview = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
)

// accessReview returns the body of a SelfSubjectAccessReview for an object of a name.
func accessReview(name string) []byte {
	return []byte(
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get",` +
			`"resource":"things","name":"` +
			name + `"}}}`,
	)
}

// repeat is bytes.Repeat of a text.
func repeat(text string, times int) []byte { return bytes.Repeat([]byte(text), times) }
