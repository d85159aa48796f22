// Package compare sends a request to two servers, and compares their responses but for the parts that belong to each server:
// times, UIDs, resource versions and allocated addresses.
package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Server is a server that is asked. Its methods may be called concurrently.
type Server struct {
	host   string
	client *http.Client
}

// Connect returns the server of a client configuration.
func Connect(config *rest.Config) (*Server, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return &Server{config.Host, client}, nil
}

// Content types of requests. A request with content type Table asks for a table.
const (
	JSON  = "application/json"
	Merge = "application/merge-patch+json"
	Apply = "application/apply-patch+yaml"
	Table = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// Answer is a response of a server.
type Answer struct {
	Code     int
	Warnings []string // sorted
	Body     map[string]any
}

// Ask sends a request with a body in JSON, or without one if body is nil. A response that is no JSON object becomes an object whose
// field text has it.
func (s *Server) Ask(ctx context.Context, method, path, contentType string, body any) (Answer, error) {
	fail := func(err error) (Answer, error) { return Answer{}, fmt.Errorf("%s %s: %w", method, path, err) }
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return fail(err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, s.host+path, bytes.NewReader(raw))
	if err != nil {
		return fail(err)
	}
	request.Header.Set("Content-Type", contentType)
	if contentType == Table {
		request.Header.Set("Accept", Table)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close()
	a := Answer{Code: response.StatusCode, Warnings: response.Header.Values("Warning")}
	slices.Sort(a.Warnings)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fail(err)
	}
	if err := json.Unmarshal(text, &a.Body); err != nil {
		a.Body = map[string]any{"text": string(text)}
	}
	return a, nil
}

// Plain returns a response as comparable lines: without the parts that belong to each server, and with the causes of a
// rejection sorted. It removes these parts from the body.
func (a Answer) Plain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", a.Code)
	for _, w := range a.Warnings {
		fmt.Fprintf(&b, "warning %s\n", w)
	}
	if a.Body["kind"] == "Status" {
		b.WriteString(refusal(a.Body))
	} else {
		scrub(a.Body)
		text, err := json.MarshalIndent(a.Body, "", " ")
		if err != nil {
			panic(err) // it has been decoded from JSON
		}
		b.Write(text)
	}
	return b.String()
}

// patched matches the object of a patch in a message. Its names and times belong to each server.
var patched = regexp.MustCompile(`^Invalid value: "\{(?s).*": `)

func refusal(body map[string]any) string {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // it has been decoded from JSON
	}
	var status metav1.Status
	if err := json.Unmarshal(raw, &status); err != nil {
		return string(raw)
	}
	var b strings.Builder
	fmt.Fprintln(&b, status.Reason)
	if d := status.Details; d != nil {
		if d.Kind == "Event" {
			d.Group = "" // for an error in an event, kube-apiserver always names the core group
		}
		fmt.Fprintf(&b, "%s %s %q\n", d.Kind, d.Group, d.Name)
		var causes []string
		for _, c := range d.Causes {
			if c.Field == "patch" {
				c.Message = patched.ReplaceAllString(c.Message, "")
			}
			causes = append(causes, fmt.Sprintf("%s: %s: %s\n", c.Field, c.Type, masked(c.Message)))
		}
		slices.Sort(causes)
		b.WriteString(strings.Join(causes, ""))
		if len(causes) > 0 {
			return b.String() // the message consists of them
		}
	}
	// Typed values are validated by ranging over maps, so that several errors are in another order each time.
	lines := strings.Split(masked(status.Message), "\n")
	slices.Sort(lines[1:])
	fmt.Fprintln(&b, strings.Join(lines, "\n"))
	return b.String()
}

// scrub removes the fields that belong to each server.
func scrub(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "time", "selfLink", "deletionTimestamp"} {
			delete(v, name)
		}
		for name, inner := range v {
			if text, ok := inner.(string); ok {
				v[name] = masked(text)
			}
			scrub(inner)
		}
		for _, name := range []string{"nodePort", "healthCheckNodePort"} {
			if v[name] != nil {
				v[name] = "a port"
			}
		}
		if v["token"] != nil {
			v["token"] = "a token"
		}
		if managers, ok := v["managedFields"].([]any); ok { // in the order of the seconds in which they wrote
			slices.SortFunc(managers, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	case []any:
		for i, inner := range v {
			if text, ok := inner.(string); ok {
				v[i] = masked(age.ReplaceAllString(text, "an age"))
			}
			scrub(inner)
		}
	}
}

var (
	// age matches a cell of a table with the age of an object.
	age = regexp.MustCompile(`^\d+s$`)
	// own match the parts of texts that belong to each server.
	own = []struct {
		pattern *regexp.Regexp
		name    string
	}{
		{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "a UID"},
		{regexp.MustCompile(`X509SHA256=[0-9a-f]{64}`), "a certificate"},
		{regexp.MustCompile(`20(2[4-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^", ]*`), "a time"}, // objects of tests have earlier ones
		{regexp.MustCompile(`\b10\.0\.0\.\d+`), "an address"},
		{regexp.MustCompile(`:3[0-2]\d{3}/`), ":a port/"}, // of a Service in a table
	}
)

func masked(text string) string {
	for _, o := range own {
		text = o.pattern.ReplaceAllString(text, o.name)
	}
	return text
}

// Difference returns the lines of two plain responses that only one of them has, or has more often.
func Difference(theirs, ours string) string {
	var b strings.Builder
	more := func(who string, x, y []string) {
		left := map[string]int{}
		for _, line := range y {
			left[line]++
		}
		for _, line := range x {
			if left[line]--; left[line] < 0 {
				fmt.Fprintf(&b, "%s: %.1000s\n", who, line)
			}
		}
	}
	x, y := strings.Split(theirs, "\n"), strings.Split(ours, "\n")
	more("kube-apiserver", x, y)
	more("         annex", y, x)
	if b.Len() == 0 {
		for i := range x {
			if x[i] != y[i] {
				return fmt.Sprintf("the same lines in another order, from line %d: kube-apiserver: %s; annex: %s\n", i+1, x[i], y[i])
			}
		}
	}
	return b.String()
}
