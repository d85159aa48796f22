package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/server/query"
	"github.com/annexapi/annex/internal/storage/past"
)

const (
	defaultLimit, largestLimit = 50, 500
	// mostChanges bounds the changes of one revision, and mostDifferences those between two moments.
	mostChanges, mostDifferences = 100, 10_000
)

// item is a revision in a response.
type item struct {
	Revision    string   `json:"revision"`
	Time        string   `json:"time,omitempty"`
	Operation   string   `json:"operation"`
	User        string   `json:"user"`
	Managers    []string `json:"managers"`
	Subresource string   `json:"subresource"`
	Generation  int64    `json:"generation,omitempty"`
	Changes     []Change `json:"changes"`
	More        bool     `json:"more"`
}

// point is a moment in a response.
type point struct {
	Revision string `json:"revision"`
	Time     string `json:"time,omitempty"`
}

func pointOf(p past.Point) point { return point{strconv.FormatUint(p.Revision, 10), timeOf(p.Time)} }

func timeOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
}

// page is a page of revisions in a response.
type page struct {
	Items []item `json:"items"`
	Since point  `json:"since"`
	// Before is the parameter before of the next page.
	Before string `json:"before,omitempty"`
}

// deleted is a deleted object in a response.
type deleted struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	UID       string `json:"uid"`
	Revision  string `json:"revision"`
	Time      string `json:"time,omitempty"`
	User      string `json:"user"`
}

// read answers a GET.
func (c *call) read(w http.ResponseWriter) error {
	parameters := c.request.URL.Query()
	one := func(name string) string {
		value := parameters.Get(name)
		parameters.Del(name)
		return value
	}
	at, from, to, isDeleted, limit, before := one("at"), one("from"), one("to"), one("deleted"), one("limit"), one("before")
	parameters.Del("pretty")
	if len(parameters) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("unknown parameter %q", slices.Sorted(maps.Keys(parameters))[0]))
	}
	switch {
	case c.name == "" && isDeleted != "true":
		return apierrors.NewBadRequest("the history of a resource lists its deleted objects: use deleted=true, or add the name of an object")
	case c.name != "" && isDeleted != "":
		return apierrors.NewBadRequest("deleted is a parameter of a resource: leave out the name of the object")
	case c.name == "":
		return c.deletions(w, limit, before)
	case at != "" && (from != "" || to != ""):
		return apierrors.NewBadRequest("at asks for one object, from and to for a difference: use one of them")
	case at != "":
		return c.object(w, at)
	case from != "":
		return c.difference(w, from, to)
	case to != "":
		return apierrors.NewBadRequest("to requires from")
	}
	return c.revisions(w, limit, before)
}

// question returns the question for a page.
func question(limit, before string) (*past.Request, error) {
	q := &past.Request{Limit: defaultLimit}
	if limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > largestLimit {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("limit %q is not a number from 1 to %d", limit, largestLimit))
		}
		q.Limit = n
	}
	if before != "" {
		revision, err := strconv.ParseUint(before, 10, 64)
		if err != nil || revision == 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("before %q is not a revision", before))
		}
		q.Before = revision
	}
	return q, nil
}

// revisions answers with a page of the revisions of an object.
func (c *call) revisions(w http.ResponseWriter, limit, before string) error {
	q, err := question(limit, before)
	if err != nil {
		return err
	}
	wanted := q.Limit
	q.Limit++ // the last revision is compared with the one before
	if _, err := c.ask(c.name, q); err != nil {
		return err
	}
	found := q.Page.Revisions
	if len(found) == 0 {
		return apierrors.NewNotFound(c.groupResource(), c.name)
	}
	objects, err := c.encode(found)
	if err != nil {
		return err
	}
	answer := page{Items: []item{}, Since: pointOf(q.Page.Since)}
	shown := min(len(found), wanted)
	if q.Page.More && shown == len(found) && shown > 1 {
		shown-- // large objects: the next page begins with the last one, which is compared with the one before
	}
	for i, r := range found[:shown] {
		var older map[string]any
		if i+1 < len(found) && r.Previous == found[i+1].Revision {
			older = objects[i+1]
		}
		answer.Items = append(answer.Items, itemOf(r, objects[i], older))
	}
	if len(found) > shown || q.Page.More {
		answer.Before = answer.Items[shown-1].Revision
	}
	return write(w, answer)
}

func itemOf(r past.Revision, object, older map[string]any) item {
	i := item{
		Revision: strconv.FormatUint(r.Revision, 10), Time: timeOf(r.Time), Operation: operationOf(r), User: r.User,
		Managers: []string{}, Changes: []Change{},
	}
	if r.Deleted || object == nil {
		return i
	}
	i.Managers, i.Subresource = managersOf(object, older)
	i.Generation = generationOf(object)
	if older != nil {
		i.Changes, i.More = Changes(older, object, mostChanges)
	}
	return i
}

func operationOf(r past.Revision) string {
	switch {
	case r.Deleted:
		return "delete"
	case r.Previous == 0:
		return "create"
	}
	return "update"
}

func generationOf(object map[string]any) int64 {
	metadata, _ := object["metadata"].(map[string]any)
	number, _ := metadata["generation"].(json.Number)
	generation, _ := number.Int64()
	return generation
}

// encode returns the objects of revisions in the version of the path; nil where there is none.
func (c *call) encode(revisions []past.Revision) ([]map[string]any, error) {
	all := make([]map[string]any, len(revisions))
	var objects []runtime.Object
	var at []int
	for i, r := range revisions {
		if r.Object == nil {
			continue
		}
		objects, at = append(objects, r.Object), append(at, i)
	}
	var encoded [][]byte
	if c.kind.Encode != nil {
		var err error
		if encoded, err = c.kind.Encode(objects); err != nil {
			return nil, fmt.Errorf("encode %s: %w", c.resource, err)
		}
	} else {
		for _, i := range at {
			body, err := c.at(past.Point{Revision: revisions[i].Revision})
			if err != nil {
				return nil, err
			}
			encoded = append(encoded, body)
		}
	}
	for n, i := range at {
		var err error
		if all[i], err = decode(encoded[n]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// decode decodes a JSON object, and keeps its numbers as they are.
func decode(body []byte) (object map[string]any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	return object, decoder.Decode(&object)
}

// object answers with the object as it was.
func (c *call) object(w http.ResponseWriter, at string) error {
	p, err := parse("at", at)
	if err != nil {
		return err
	}
	body, err := c.at(p)
	if err != nil {
		return err
	}
	query.WriteJSON(w, http.StatusOK, body)
	return nil
}

// difference answers with the object at two moments, and what changed between them.
func (c *call) difference(w http.ResponseWriter, from, to string) error {
	var objects [2]map[string]any
	for i, text := range []string{from, to} {
		var body []byte
		var err error
		if text == "" {
			body, err = c.now()
		} else {
			var p past.Point
			if p, err = parse([]string{"from", "to"}[i], text); err == nil {
				body, err = c.at(p)
			}
		}
		if err == nil {
			objects[i], err = decode(body)
		}
		if err != nil {
			return err
		}
	}
	changes, more := Changes(objects[0], objects[1], mostDifferences)
	return write(w, struct {
		From    map[string]any `json:"from"`
		To      map[string]any `json:"to"`
		Changes []Change       `json:"changes"`
		More    bool           `json:"more,omitempty"`
	}{objects[0], objects[1], changes, more})
}

// deletions answers with deleted objects.
func (c *call) deletions(w http.ResponseWriter, limit, before string) error {
	q, err := question(limit, before)
	if err != nil {
		return err
	}
	if _, err := c.ask("", q); err != nil {
		return err
	}
	answer := struct {
		Items  []deleted `json:"items"`
		Since  point     `json:"since"`
		Before string    `json:"before,omitempty"`
	}{Items: []deleted{}, Since: pointOf(q.Page.Since)}
	for _, r := range q.Page.Revisions {
		d := deleted{
			Name: r.Key[strings.LastIndex(r.Key, "/")+1:], Revision: strconv.FormatUint(r.Revision, 10), Time: timeOf(r.Time), User: r.User,
		}
		if m, err := meta.Accessor(r.Object); r.Object != nil && err == nil {
			d.Name, d.Namespace, d.UID = m.GetName(), m.GetNamespace(), string(m.GetUID())
		} else if c.kind.Namespaced {
			before := strings.Split(r.Key, "/")
			d.Namespace = before[len(before)-2]
		}
		answer.Items = append(answer.Items, d)
	}
	if q.Page.More {
		answer.Before = answer.Items[len(answer.Items)-1].Revision
	}
	return write(w, answer)
}

func write(w http.ResponseWriter, answer any) error {
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	query.WriteJSON(w, http.StatusOK, append(body, '\n'))
	return nil
}

// managersOf returns the managers who wrote an object, by its managed fields and those of the older one, and their
// subresource if it is the same. A nil older object has none.
func managersOf(object, older map[string]any) (managers []string, subresource string) {
	before := map[string]map[string]any{}
	for _, entry := range managedFields(older) {
		before[identityOf(entry)] = entry
	}
	var changed, robbed []map[string]any
	for _, entry := range managedFields(object) {
		old, known := before[identityOf(entry)]
		switch {
		case known && reflect.DeepEqual(old, entry):
		case known && old["time"] == entry["time"] && isWithin(entry["fieldsV1"], old["fieldsV1"]):
			robbed = append(robbed, entry) // another manager took its fields, or it gave some up within the same second
		default:
			changed = append(changed, entry)
		}
	}
	if len(changed) == 0 {
		changed = robbed
	}
	managers = []string{}
	for n, entry := range changed {
		manager, _ := entry["manager"].(string)
		of, _ := entry["subresource"].(string)
		if n == 0 {
			subresource = of
		} else if of != subresource {
			subresource = ""
		}
		if !slices.Contains(managers, manager) {
			managers = append(managers, manager)
		}
	}
	return managers, subresource
}

// identityOf returns what distinguishes an entry of the managed fields from the others.
func identityOf(entry map[string]any) string {
	return fmt.Sprintf("%q %q %q %q", entry["manager"], entry["operation"], entry["apiVersion"], entry["subresource"])
}

// isWithin reports whether all fields of a set in managed fields are in another.
func isWithin(fields, others any) bool {
	these, _ := fields.(map[string]any)
	those, _ := others.(map[string]any)
	for key, below := range these {
		if other, ok := those[key]; !ok || !isWithin(below, other) {
			return false
		}
	}
	return true
}

func managedFields(object map[string]any) []map[string]any {
	metadata, _ := object["metadata"].(map[string]any)
	entries, _ := metadata["managedFields"].([]any)
	var all []map[string]any
	for _, e := range entries {
		if entry, ok := e.(map[string]any); ok {
			all = append(all, entry)
		}
	}
	return all
}
