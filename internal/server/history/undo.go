package history

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/server/query"
	"github.com/annexapi/annex/internal/storage/past"
)

// order is the body of a POST: one of Undo and Restore.
type order struct {
	// Undo is a revision whose changes are set back.
	Undo string `json:"undo,omitempty"`
	// Restore is a point; the object becomes as it was then.
	Restore string `json:"restore,omitempty"`
	DryRun  bool   `json:"dryRun,omitempty"`
}

// defaultManager is the field manager of the writes of a user without a fieldManager.
const defaultManager = "annex-undo"

// longestManager is the largest length of a field manager.
const longestManager = 128

// change answers a POST.
func (c *call) change(w http.ResponseWriter) error {
	if err := c.may("get"); err != nil {
		return err
	}
	body, err := io.ReadAll(c.request.Body)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("read the body: %v", err))
	}
	var o order
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf(`the body is none of {"undo":"REVISION"} and {"restore":"REVISION or TIME"}: %v`, err))
	}
	parameters := c.request.URL.Query()
	write := url.Values{"fieldManager": {parameters.Get("fieldManager")}}
	if write.Get("fieldManager") == "" {
		write.Set("fieldManager", c.manager())
	}
	parameters.Del("fieldManager")
	switch dryRun := parameters.Get("dryRun"); {
	case dryRun == "All":
		o.DryRun = true
	case dryRun != "":
		return apierrors.NewBadRequest(fmt.Sprintf("dryRun %q: use All", dryRun))
	}
	parameters.Del("dryRun")
	for name := range parameters {
		return apierrors.NewBadRequest(fmt.Sprintf("unknown parameter %q", name))
	}
	if o.DryRun {
		write.Set("dryRun", "All")
	}
	var answer *query.Recorder
	switch {
	case (o.Undo == "") == (o.Restore == ""):
		return apierrors.NewBadRequest(`the body must have one of "undo", a revision, and "restore", a revision or a time`)
	case o.Undo != "":
		answer, err = c.undo(o.Undo, write)
	default:
		answer, err = c.restore(o.Restore, write)
	}
	if err != nil {
		return err
	}
	if answer.Code >= http.StatusMultipleChoices {
		return query.ErrorOf(answer.Code, answer.Body.Bytes())
	}
	query.WriteJSON(w, answer.Code, answer.Body.Bytes())
	return nil
}

// manager returns the field manager of the caller.
func (c *call) manager() string {
	caller, ok := request.UserFrom(c.request.Context())
	if !ok || caller.GetName() == "" {
		return defaultManager
	}
	manager := defaultManager + ":" + caller.GetName()
	if len(manager) > longestManager || strings.ContainsFunc(manager, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return defaultManager
	}
	return manager
}

// may returns an error unless the caller may also do this with the object.
func (c *call) may(verb string) error {
	attributes, err := filters.GetAuthorizerAttributes(c.request.Context())
	if err != nil {
		return err
	}
	if verb == "create" {
		attributes = unnamed{attributes} // creates are authorized without a name
	}
	decision, reason, err := c.api.config.Authorizer.Authorize(c.request.Context(), attributesWith{attributes, verb})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorize %s: %w", verb, err))
	}
	if reason == "" {
		reason = "no rule grants it"
	}
	return apierrors.NewForbidden(c.groupResource(), c.name, fmt.Errorf("this takes the verb %s as well as update: %s", verb, reason))
}

type attributesWith struct {
	authorizer.Attributes
	verb string
}

type unnamed struct{ authorizer.Attributes }

func (unnamed) GetName() string { return "" }

func (a attributesWith) GetVerb() string  { return a.verb }
func (a attributesWith) IsReadOnly() bool { return a.verb == "get" }

// attempts is the number of times that an undo reads the object again because others write it meanwhile.
const attempts = 5

// undo sets the changes of a revision back. It fails if a later revision has changed the same fields. Other fields may change
// meanwhile: then it begins anew with the newer object.
func (c *call) undo(text string, write url.Values) (*query.Recorder, error) {
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil || revision == 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("undo %q is not a revision: the history lists them", text))
	}
	q := &past.Request{Before: revision + 1, Limit: 2}
	if _, err := c.ask(c.name, q); err != nil {
		return nil, err
	}
	found := q.Page.Revisions
	switch {
	case len(found) == 0 || found[0].Revision != revision:
		return nil, c.unknownRevision(revision, q.Page.Since)
	case found[0].Deleted:
		return c.restore(text, write)
	case found[0].Previous == 0:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("revision %d created %s %q: delete the object instead", revision, c.resource, c.name))
	case len(found) < 2 || found[0].Previous != found[1].Revision:
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("what revision %d replaced is no longer kept: the history is kept since %s",
			revision, q.Page.Since))
	}
	states, err := c.encode(found)
	if err != nil {
		return nil, err
	}
	if states[0] == nil || states[1] == nil {
		return nil, fmt.Errorf("revision %d cannot be read: it may be encrypted under a key that the server no longer has", revision)
	}
	if managers, subresource := managersOf(states[0], states[1]); subresource != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("revision %d was written by %s through /%s: write that to set it back",
			revision, strings.Join(managers, ", "), subresource))
	}
	var refused error
	for range attempts {
		body, err := c.now()
		if apierrors.IsNotFound(err) {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
				Message: fmt.Sprintf("%s %q is deleted: restore it instead", c.resource, c.name),
			}}
		}
		if err != nil {
			return nil, err
		}
		current, err := decode(body)
		if err != nil {
			return nil, err
		}
		m := merge{}
		changed := m.maps("", current, states[1], states[0])
		if len(m.conflicts) > 0 {
			return nil, c.conflict(revision, m.conflicts, current)
		}
		if reflect.DeepEqual(changed, current) {
			answer := query.NewRecorder() // set back already
			answer.Code = http.StatusOK
			answer.Body.Write(body)
			return answer, nil
		}
		answer, err := c.put(c.request.Context(), changed, write)
		if err != nil || answer.Code != http.StatusConflict {
			return answer, err
		}
		refused = query.ErrorOf(answer.Code, answer.Body.Bytes())
	}
	return nil, refused
}

func (c *call) unknownRevision(revision uint64, since past.Point) error {
	if revision < since.Revision {
		return c.explain(nil, &past.NotKeptError{At: past.Point{Revision: revision}, Since: since})
	}
	return notFound("%s %q was not written at revision %d: the history lists its revisions", c.groupResource(), c.name, revision)
}

func (c *call) put(ctx context.Context, object map[string]any, write url.Values) (*query.Recorder, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPut, "update", c.name, write, body), nil
}

// conflict returns the error for fields that were changed after the revision to undo.
func (c *call) conflict(revision uint64, paths []string, current map[string]any) error {
	var causes []metav1.StatusCause
	var texts []string
	for _, path := range paths {
		managers := ownersOf(managedFields(current), path)
		by := ""
		if len(managers) > 0 {
			by = " by " + strings.Join(managers, ", ")
		}
		texts = append(texts, path+by)
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeFieldManagerConflict, Field: path, Message: "changed after the revision to undo" + by,
		})
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: fmt.Sprintf("revision %d cannot be undone, because its fields were changed after it: %s; undo the later revisions first, or "+
			"restore the object as it was before", revision, strings.Join(texts, "; ")),
		Details: &metav1.StatusDetails{Group: c.group, Kind: c.resource, Name: c.name, Causes: causes},
	}}
}

// restore makes the object as it was at a point, or creates it again. The revision of a deletion stands for the object that
// it deleted.
func (c *call) restore(text string, write url.Values) (*query.Recorder, error) {
	point, err := parse("restore", text)
	if err != nil {
		return nil, err
	}
	body, err := c.at(point)
	if apierrors.IsNotFound(err) && point.Revision != 0 {
		q := &past.Request{Before: point.Revision + 1, Limit: 2}
		if _, asked := c.ask(c.name, q); asked == nil && len(q.Page.Revisions) > 1 {
			if last := q.Page.Revisions[0]; last.Revision == point.Revision && last.Deleted {
				body, err = c.at(past.Point{Revision: last.Previous})
			}
		}
	}
	if err != nil {
		return nil, err
	}
	old, err := decode(body)
	if err != nil {
		return nil, err
	}
	now, err := c.now()
	if apierrors.IsNotFound(err) {
		if err := c.may("create"); err != nil {
			return nil, err
		}
		keepMetadata(old, nil)
		body, err := json.Marshal(old)
		if err != nil {
			return nil, err
		}
		return c.send(c.request.Context(), http.MethodPost, "create", "", write, body), nil
	}
	if err != nil {
		return nil, err
	}
	current, err := decode(now)
	if err != nil {
		return nil, err
	}
	keepMetadata(old, current)
	return c.put(c.request.Context(), old, write)
}

// restored are the fields of the metadata that people write.
var restored = []string{"name", "namespace", "labels", "annotations", "finalizers", "ownerReferences"}

// keepMetadata takes the fields of the metadata that the server writes from the current object, or removes them if there is
// none.
func keepMetadata(object, current map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	next := map[string]any{}
	if now, ok := current["metadata"].(map[string]any); ok {
		for key, value := range now {
			next[key] = value
		}
	}
	for _, key := range restored {
		delete(next, key)
		if value, ok := metadata[key]; ok {
			next[key] = value
		}
	}
	object["metadata"] = next
}

// merge sets fields back. A field that is neither as the revision made it nor as it was before is a conflict.
type merge struct{ conflicts []string }

// values returns the current value with the difference between two values, new and old, set back.
func (m *merge) values(path string, current, old, new any) any {
	whole := path != "metadata" // of which the server writes some fields itself
	if whole && (reflect.DeepEqual(old, new) || reflect.DeepEqual(current, old)) {
		return current
	}
	if whole && reflect.DeepEqual(current, new) {
		return old
	}
	switch now := current.(type) {
	case map[string]any:
		before, is := old.(map[string]any)
		after, was := new.(map[string]any)
		if is && was {
			return m.maps(path, now, before, after)
		}
	case []any:
		before, is := old.([]any)
		after, was := new.([]any)
		if key := itemKey(now, before, after); is && was && key != "" {
			return m.lists(path, key, now, before, after)
		}
	}
	m.conflicts = append(m.conflicts, path)
	return current
}

// maps is values for objects. The result is a copy.
func (m *merge) maps(path string, current, old, new map[string]any) map[string]any {
	next := make(map[string]any, len(current))
	for key, value := range current {
		next[key] = value
	}
	keys := map[string]bool{}
	for key := range old {
		keys[key] = true
	}
	for key := range new {
		keys[key] = true
	}
	for _, key := range sorted(keys) {
		if path == "metadata" && !slices.Contains(restored, key) {
			continue
		}
		switch value := m.values(fieldPath(path, key), valueAt(current, key), valueAt(old, key), valueAt(new, key)); value.(type) {
		case absent:
			delete(next, key)
		default:
			next[key] = value
		}
	}
	return next
}

// lists is values for lists of items with keys. Items keep their places; items that come back are added at the end.
func (m *merge) lists(path, key string, current, old, new []any) []any {
	now, before, after := itemsBy(key, current), itemsBy(key, old), itemsBy(key, new)
	next := []any{}
	add := func(id string) {
		value := m.values(itemPath(path, key, id), orAbsent(now[id]), orAbsent(before[id]), orAbsent(after[id]))
		if _, gone := value.(absent); !gone {
			next = append(next, value)
		}
	}
	for _, item := range current {
		add(item.(map[string]any)[key].(string))
	}
	for _, list := range [][]any{old, new} {
		for _, item := range list {
			id := item.(map[string]any)[key].(string)
			if _, there := now[id]; there {
				continue
			}
			now[id] = nil
			add(id)
		}
	}
	return next
}

func sorted(set map[string]bool) []string {
	all := make([]string, 0, len(set))
	for key := range set {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// ownersOf returns the managers that own a field or, if none does, the part of the object that has it.
func ownersOf(entries []map[string]any, path string) []string {
	var owners []string
	deepest := 0
	for _, entry := range entries {
		manager, _ := entry["manager"].(string)
		fields, _ := entry["fieldsV1"].(map[string]any)
		depth := 0
		for _, segment := range segments(path) {
			below := child(fields, segment)
			if below == nil {
				break
			}
			depth++
			fields = below
		}
		if depth == 0 || depth < deepest {
			continue
		}
		if depth > deepest {
			deepest, owners = depth, nil
		}
		if !slices.Contains(owners, manager) {
			owners = append(owners, manager)
		}
	}
	return owners
}

// child returns the fields below one of a path; nil if it is not among them.
func child(fields map[string]any, s segment) map[string]any {
	if s.key == "" {
		below, _ := fields["f:"+s.name].(map[string]any)
		return below
	}
	for name, value := range fields {
		var keys map[string]any
		if text, ok := strings.CutPrefix(name, "k:"); ok && json.Unmarshal([]byte(text), &keys) == nil && keys[s.key] == s.name {
			below, _ := value.(map[string]any)
			return below
		}
	}
	return nil
}

// segment is a part of a path: a field or, with a key, the item of a list.
type segment struct{ key, name string }

// segments parses a path that fieldPath and itemPath have made.
func segments(path string) []segment {
	var all []segment
	for path != "" {
		if path[0] != '[' {
			path = strings.TrimPrefix(path, ".")
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			all = append(all, segment{name: path[:end]})
			path = path[end:]
			continue
		}
		key, rest, isItem := "", path[1:], false
		if rest[0] != '"' {
			if key, rest, isItem = strings.Cut(rest, "="); !isItem || !strings.HasPrefix(rest, `"`) {
				return all // an item by its place
			}
		}
		decoder := json.NewDecoder(strings.NewReader(rest))
		var name string
		if decoder.Decode(&name) != nil {
			return all
		}
		all = append(all, segment{key, name})
		path = strings.TrimPrefix(rest[decoder.InputOffset():], "]")
	}
	return all
}
