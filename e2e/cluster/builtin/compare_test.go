package builtin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// both are the two servers: the real one, and ours.
type both struct {
	t            *testing.T
	theirs, ours *server
}

type server struct {
	host   string
	client *http.Client
}

func connect(t *testing.T, config *rest.Config) *server {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &server{config.Host, client}
}

const table = "application/json;as=Table;v=v1;g=meta.k8s.io"

// answer is a response of a server.
type answer struct {
	code     int
	warnings []string
	body     map[string]any
}

func (s *server) ask(t *testing.T, method, path, contentType string, body any) answer {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if body == nil {
		raw = nil
	}
	request, err := http.NewRequestWithContext(t.Context(), method, s.host+path, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	if contentType == table {
		request.Header.Set("Accept", table)
	}
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	a := answer{code: response.StatusCode, warnings: response.Header.Values("Warning")}
	slices.Sort(a.warnings)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &a.body); err != nil {
		t.Fatalf("%s %s: %d, %q: %v", method, path, a.code, text, err)
	}
	return a
}

// plain returns a response as comparable lines: without the differences between any two servers, and with the causes
// of a rejection sorted.
func (a answer) plain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", a.code)
	for _, w := range a.warnings {
		fmt.Fprintf(&b, "warning %s\n", w)
	}
	if a.body["kind"] == "Status" {
		b.WriteString(refusal(a.body))
	} else {
		scrub(a.body)
		text, err := json.MarshalIndent(a.body, "", " ")
		if err != nil {
			panic(err)
		}
		b.Write(text)
	}
	return b.String()
}

// patched matches the object of a patch in a message. Its names and times belong to each server.
var patched = regexp.MustCompile(`^Invalid value: "\{.*": `)

func refusal(body map[string]any) string {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	var status metav1.Status
	if err := json.Unmarshal(raw, &status); err != nil {
		panic(err)
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
			causes = append(causes, fmt.Sprintf("%s: %s: %s\n", c.Field, c.Type, c.Message))
		}
		slices.Sort(causes)
		b.WriteString(strings.Join(causes, ""))
		if len(causes) > 0 {
			return b.String() // the message consists of them
		}
	}
	fmt.Fprintln(&b, status.Message)
	return b.String()
}

// scrub removes the fields that belong to each server.
func scrub(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "time", "selfLink"} {
			delete(v, name)
		}
		for _, inner := range v {
			scrub(inner)
		}
		if managers, ok := v["managedFields"].([]any); ok { // in the order of the seconds in which they wrote
			slices.SortFunc(managers, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	case []any:
		for i, inner := range v {
			if cell, ok := inner.(string); ok && age.MatchString(cell) {
				v[i] = "an age"
			}
			scrub(inner)
		}
	}
}

// age matches a cell of a table with the age of an object.
var age = regexp.MustCompile(`^\d+s$`)

// same sends a request to both servers, and reports a difference. It returns the code and the response of the real
// one.
func (b *both) same(what, method, path, contentType string, body any) (int, bool) {
	b.t.Helper()
	theirs := b.theirs.ask(b.t, method, path, contentType, body)
	ours := b.ours.ask(b.t, method, path, contentType, body)
	x, y := theirs.plain(), ours.plain()
	if x == y {
		return theirs.code, true
	}
	sent, err := json.Marshal(body)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Errorf("%s: %s %s\n%.1500s\n%s", what, method, path, sent, difference(x, y))
	return theirs.code, false
}

// difference returns the lines that only one of them has.
func difference(theirs, ours string) string {
	var b strings.Builder
	x, y := strings.Split(theirs, "\n"), strings.Split(ours, "\n")
	for _, line := range x {
		if !slices.Contains(y, line) {
			fmt.Fprintf(&b, "kube-apiserver: %.1000s\n", line)
		}
	}
	for _, line := range y {
		if !slices.Contains(x, line) {
			fmt.Fprintf(&b, "          annex: %.1000s\n", line)
		}
	}
	if b.Len() == 0 {
		return "the same lines in another order or number\n" + theirs + "\n" + ours
	}
	return b.String()
}
