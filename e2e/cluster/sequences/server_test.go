package sequences

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// connection is a server as its administrator.
type connection struct {
	host   string
	client *http.Client
}

func connect(t *testing.T, config *rest.Config) *connection {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &connection{config.Host, client}
}

// server is one of the two in one sequence, with the values from its responses so far.
type server struct {
	*connection
	namespace string
	uids      map[string]string   // by resource/name
	names     map[string]string   // of UIDs: the resource/name, and the number of earlier objects of this name
	versions  map[string][]string // by resource/name, in the order in which they were seen
	lists     map[string][]string // by resource
	continues map[string]string   // by resource
}

func (c *connection) in(namespace string) *server {
	return &server{c, namespace, map[string]string{}, map[string]string{}, map[string][]string{}, map[string][]string{}, map[string]string{}}
}

var placeholder = regexp.MustCompile(`\{(ns|uid|rv|old|first|list|continue)(?::([a-z/0-9]+))?\}`)

// expand inserts values from the server's responses: the namespace, an object's UID, its last and its oldest version,
// the first and the last version of a list, and the continue token of a list.
func (s *server) expand(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string {
		parts := placeholder.FindStringSubmatch(found)
		key := parts[2]
		switch parts[1] {
		case "ns":
			return s.namespace
		case "uid":
			return cmp.Or(s.uids[key], "00000000-0000-4000-8000-000000000000")
		case "rv":
			return cmp.Or(last(s.versions[key]), s.listed(key))
		case "old":
			return cmp.Or(last(s.versions[key][:min(1, len(s.versions[key]))]), s.listed(key))
		case "first":
			return last(s.lists[key][:min(1, len(s.lists[key]))])
		case "list":
			return last(s.lists[key])
		}
		return s.continues[key]
	})
}

// listed returns a version that the server knows, for an object that did not exist.
func (s *server) listed(key string) string {
	resource, _, _ := strings.Cut(key, "/")
	return cmp.Or(last(s.lists[resource]), "1")
}

func last(versions []string) string {
	if len(versions) == 0 {
		return ""
	}
	return versions[len(versions)-1]
}

// patience is the time for a watch, or for the effect of a controller.
const patience = 20 * time.Second

// do sends a step and returns the response without the parts that belong to the server, in lines.
func (s *server) do(ctx context.Context, step step) (string, int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	url := s.host + s.expand(step.path)
	if step.query != "" {
		url += "?" + s.expand(step.query)
	}
	request, err := http.NewRequestWithContext(ctx, step.method, url, strings.NewReader(s.expand(step.body)))
	if err != nil {
		return "", 0, err
	}
	request.Header.Set("Accept", cmp.Or(step.accept, asJSON))
	if step.body != "" && step.contentType != "" {
		request.Header.Set("Content-Type", step.contentType)
	}
	request.Header.Set("User-Agent", "sequences")
	response, err := s.client.Do(request)
	if err != nil {
		return "", 0, fmt.Errorf("%s %s: %w", step.method, url, err)
	}
	defer response.Body.Close()
	var b strings.Builder
	fmt.Fprintln(&b, response.StatusCode)
	for _, name := range []string{"Warning", "Content-Type", "Retry-After", "Allow", "Location"} {
		values := response.Header.Values(name)
		slices.Sort(values)
		for _, value := range values {
			fmt.Fprintf(&b, "%s: %s\n", name, s.own(value))
		}
	}
	resource := resourceOf(step.path)
	if step.watch != "" && response.StatusCode == http.StatusOK {
		events, err := s.events(response.Body, resource, step.watch)
		b.WriteString(events)
		if err != nil {
			fmt.Fprintf(&b, "the watch ended: %v\n", err)
		}
		return b.String(), response.StatusCode, nil
	}
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return "", 0, fmt.Errorf("%s %s: %w", step.method, url, err)
	}
	var body any
	if err := json.Unmarshal(raw, &body); err != nil {
		fmt.Fprintf(&b, "%s\n", s.own(string(raw)))
		return b.String(), response.StatusCode, nil
	}
	s.note(resource, body)
	b.WriteString(s.plain(resource, body))
	return b.String(), response.StatusCode, nil
}

func resourceOf(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if i := slices.Index(parts, "{ns}"); i >= 0 && len(parts) > i+1 {
		return parts[i+1]
	}
	if len(parts) > 2 && parts[2] == "namespaces" {
		return "namespaces"
	}
	return ""
}

// note keeps values that later steps may use.
func (s *server) note(resource string, body any) {
	o, _ := body.(object)
	metadata, _ := o["metadata"].(object)
	if items, ok := o["items"].([]any); ok {
		for _, item := range items {
			s.note(resource, item)
		}
	}
	if rows, ok := o["rows"].([]any); ok {
		for _, row := range rows {
			row, _ := row.(object)
			s.note(resource, row["object"])
		}
	}
	name, _ := metadata["name"].(string)
	uid, _ := metadata["uid"].(string)
	version, _ := metadata["resourceVersion"].(string)
	switch kind, _ := o["kind"].(string); {
	case name != "" && uid != "" && kind != "Status":
		key := resource + "/" + generated.ReplaceAllString(name, "$1?")
		if _, known := s.names[uid]; !known {
			s.names[uid] = fmt.Sprintf("uid of %s (%d)", key, len(s.names))
			s.uids[key] = uid
		}
		if version != "" && !slices.Contains(s.versions[key], version) {
			s.versions[key] = append(s.versions[key], version)
		}
	case version != "":
		s.lists[resource] = append(s.lists[resource], version)
		if token, ok := metadata["continue"].(string); ok && token != "" {
			s.continues[resource] = token
		}
	}
}

var (
	generated = regexp.MustCompile(`\b(gen\d+-)[bcdfghjklmnpqrstvwxz2456789]{5}\b`)
	uuids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	patched   = regexp.MustCompile(`Invalid value: "\{.*": `) // the object that a patch made, with each server's versions and times
	keys      = regexp.MustCompile(`Key: [^,]*,`)
	versions  = regexp.MustCompile(`(?i)(ResourceVersion in (?:the )?\w+ \(|current: |resourceVersion: ?"?)\d+`)
	made      = regexp.MustCompile(`^[-\d]+T[:\d]+Z$`)
	moments   = regexp.MustCompile(`(time|Timestamp): "[-\d]+T[:\d]+Z"`) // in YAML
	ages      = regexp.MustCompile(`^\d+[smhd](\d+[smhd])?$`)
)

// own replaces the parts of a text that belong to the server.
func (s *server) own(text string) string {
	text = generated.ReplaceAllString(text, "$1?")
	text = versions.ReplaceAllString(text, "${1}N")
	text = moments.ReplaceAllString(text, "$1: its own")
	text = strings.ReplaceAll(text, s.host, "HOST")
	text = patched.ReplaceAllString(text, "Invalid value: PATCHED: ")
	text = keys.ReplaceAllString(text, "Key: of its storage,")
	return uuids.ReplaceAllStringFunc(text, func(uid string) string { return cmp.Or(s.names[uid], uid) })
}

// plain returns a body in lines.
func (s *server) plain(resource string, body any) string {
	raw, err := json.MarshalIndent(s.scrub(resource, body), "", " ")
	if err != nil {
		panic(err) // it was JSON
	}
	return string(raw) + "\n"
}

func (s *server) scrub(resource string, value any) any {
	switch v := value.(type) {
	case object:
		if v["kind"] == "Status" {
			return s.status(v)
		}
		if metadata, ok := v["metadata"].(object); ok {
			s.metadata(resource, metadata)
		}
		scrubbed := object{}
		if rows, is := v["rows"]; is && rows == nil {
			v["rows"] = []any{} // a table without rows is written in either way
		}
		if cells, is := v["cells"].([]any); is {
			for i, cell := range cells {
				if said, is := cell.(string); is && made.MatchString(said) {
					cells[i] = "its own" // the time when a role was created
				}
			}
		}
		for key, inner := range v {
			scrubbed[s.own(key)] = s.scrub(resource, inner) // managed fields have UIDs in keys
		}
		return scrubbed
	case []any:
		for i := range v {
			v[i] = s.scrub(resource, v[i])
		}
	case string:
		if ages.MatchString(v) {
			return "AGE"
		}
		return s.own(v)
	}
	return value
}

// metadata scrubs the metadata of an object, or of a list. A version becomes its number among those of the object.
func (s *server) metadata(resource string, m object) {
	name, _ := m["name"].(string)
	if version, ok := m["resourceVersion"].(string); ok {
		m["resourceVersion"] = "of a list"
		if name != "" {
			m["resourceVersion"] = slices.Index(s.versions[resource+"/"+generated.ReplaceAllString(name, "$1?")], version)
		}
	}
	for _, key := range []string{"creationTimestamp", "deletionTimestamp", "continue"} {
		if m[key] != nil {
			m[key] = "its own"
		}
	}
	fields, ok := m["managedFields"].([]any)
	if !ok {
		return
	}
	for _, entry := range fields {
		entry := entry.(object)
		entry["time"] = "its own"
		if entry["manager"] == "kube-controller-manager" {
			entry["manager"] = "annex"
		}
	}
	slices.SortFunc(fields, func(a, b any) int { return strings.Compare(text(a), text(b)) })
}

// status scrubs a rejection, and sorts its causes; a message composed of several causes has any order.
func (s *server) status(v object) any {
	delete(v, "metadata")
	details, _ := v["details"].(object)
	for _, key := range []string{"uid", "name"} {
		if value, ok := details[key].(string); ok {
			details[key] = s.own(value)
		}
	}
	causes, _ := details["causes"].([]any)
	for _, cause := range causes {
		cause := cause.(object)
		cause["message"] = s.own(fmt.Sprint(cause["message"]))
	}
	slices.SortFunc(causes, func(a, b any) int { return strings.Compare(text(a), text(b)) })
	message := s.own(fmt.Sprint(v["message"]))
	if begin, _, cut := strings.Cut(message, "failed to create typed patch object ("); cut {
		message = begin + "failed to create typed patch object" // it ends with those of several errors that were found first
	}
	if len(causes) > 1 {
		message = "made of the causes, " + strconv.Itoa(len(message)) + " bytes"
	}
	v["message"] = message
	return v
}

// events reads a watch, and returns the events of each object, in their order. Concurrent changes of two objects may
// arrive in either order.
func (s *server) events(body io.Reader, resource, until string) (string, error) {
	of := map[string]*strings.Builder{}
	var names []string
	var err error
	for decoder := json.NewDecoder(body); ; {
		var event struct {
			Type   string
			Object object
		}
		if err = decoder.Decode(&event); err != nil {
			break
		}
		o := event.Object
		if rows, ok := o["rows"].([]any); ok && len(rows) > 0 {
			row, _ := rows[0].(object)
			o, _ = row["object"].(object)
		}
		metadata, _ := o["metadata"].(object)
		name, _ := metadata["name"].(string)
		annotations, _ := metadata["annotations"].(object)
		if event.Type == "BOOKMARK" {
			if annotations["k8s.io/initial-events-end"] == "true" && until == initial {
				break
			}
			continue
		}
		key := generated.ReplaceAllString(name, "$1?")
		if of[key] == nil {
			of[key] = &strings.Builder{}
			names = append(names, key)
		}
		s.versionless(event.Object)
		fmt.Fprintf(of[key], "%s %s", event.Type, s.plain(resource, event.Object))
		if event.Type == "ADDED" && name == until {
			break
		}
	}
	slices.Sort(names)
	var b bytes.Buffer
	for _, name := range names {
		fmt.Fprintf(&b, "events of %q:\n%s", name, of[name])
	}
	return b.String(), err
}

// versionless removes the versions from an event: versions of writes by controllers, between responses, have no
// number.
func (s *server) versionless(value any) {
	switch v := value.(type) {
	case object:
		delete(v, "resourceVersion")
		for _, inner := range v {
			s.versionless(inner)
		}
	case []any:
		for _, inner := range v {
			s.versionless(inner)
		}
	}
}
