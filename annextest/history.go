package annextest

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// history is the states of objects that requests and watches showed, in their order.
type history struct {
	reader  *reader
	redact  *redactor
	latest  map[string]*state
	byStamp map[string]map[string]any
	began   time.Time
	sameWho bool
}

// state is the last state of an object that is known.
type state struct {
	revision string
	object   map[string]any // nil if it is deleted
	by       string
}

// text makes a report of the records since a moment.
func (r *Report) text(ctx context.Context, test string, since moment) *reportText {
	r.mu.Lock()
	records := slices.Clone(r.records)
	copies := map[*exchange]*exchange{}
	var open []*exchange
	for i := range records {
		records[i].exchange = copied(copies, records[i].exchange)
	}
	for x := range r.open {
		open = append(open, copied(copies, x))
	}
	first, config := r.forgotten, r.config
	r.mu.Unlock()
	slices.SortFunc(open, func(a, b *exchange) int { return a.began.Compare(b.began) })

	t := &reportText{}
	reader, err := newReader()
	if err != nil {
		t.notes = append(t.notes, "bodies cannot be read: "+err.Error())
		return t
	}
	h := &history{
		reader: reader, redact: newRedactor(r.Redact), latest: map[string]*state{}, byStamp: map[string]map[string]any{}, began: since.time,
	}
	if h.began.IsZero() && len(records) > 0 {
		h.began = records[0].exchange.began
	}
	own := records[min(max(since.record-first, 0), len(records)):]
	who := callers(own)
	h.sameWho = len(who) == 1
	var n tally
	for i, rec := range records {
		step := h.step(rec)
		if i < len(records)-len(own) {
			continue
		}
		t.steps = append(t.steps, step)
		n.add(rec)
	}
	for _, x := range open {
		t.steps = append(t.steps, reportStep{
			at: h.at(x.began), line: fmt.Sprintf("%s%s has no answer", x.target, h.by(x)),
			minor: x.target.verb == "watch" || x.began.Before(h.began),
		})
	}
	if first > since.record {
		t.notes = append(t.notes, fmt.Sprintf("%d earlier requests and events of watches are not held any more", first-since.record))
	}
	t.head = headline(test, n, who)
	if config != nil {
		h.gather(ctx, t, config, since)
	}
	return t
}

// copied returns a copy of an exchange, one for each.
func copied(copies map[*exchange]*exchange, x *exchange) *exchange {
	if copies[x] == nil {
		c := *x
		copies[x] = &c
	}
	return copies[x]
}

// callers returns the users and programs of the requests, as a report names them.
func callers(records []record) []string {
	all := map[string]bool{}
	for _, rec := range records {
		all[callerOf(rec.exchange)] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func callerOf(x *exchange) string {
	if x.who == "" {
		return x.agent
	}
	return strings.TrimSpace(x.who + " " + x.agent)
}

// by names the caller of a request, unless all requests have the same.
func (h *history) by(x *exchange) string {
	if h.sameWho {
		return ""
	}
	return " by " + callerOf(x)
}

func (h *history) at(t time.Time) string { return fmt.Sprintf("%+8.3fs", t.Sub(h.began).Seconds()) }

// tally are the numbers of the headline.
type tally struct{ requests, conflicts, errors, faults, events int }

func (n *tally) add(rec record) {
	x := rec.exchange
	switch {
	case rec.event != nil:
		n.events++
		return
	case x.code == http.StatusConflict:
		n.conflicts++
	case x.code >= 400 || x.err != "":
		n.errors++
	}
	if x.fault != "" {
		n.faults++
	}
	n.requests++
}

func headline(test string, n tally, who []string) string {
	parts := []string{counted(n.requests, "request", "requests")}
	for _, part := range []struct {
		n         int
		one, many string
	}{
		{n.conflicts, "conflict", "conflicts"},
		{n.errors, "other error", "other errors"},
		{n.faults, "injected fault", "injected faults"},
		{n.events, "event of watches", "events of watches"},
	} {
		if part.n > 0 {
			parts = append(parts, counted(part.n, part.one, part.many))
		}
	}
	head := "report: "
	if test != "" {
		head = "report of " + test + ": "
	}
	head += strings.Join(parts, ", ")
	if len(who) == 1 && who[0] != "" {
		head += ", all by " + who[0]
	}
	return head
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// step describes a record, and takes the states of objects in it into the history.
func (h *history) step(rec record) reportStep {
	if rec.event != nil {
		return h.eventStep(rec)
	}
	x := rec.exchange
	s := reportStep{at: h.at(x.began), minor: x.err == "" && x.code < 400 && x.fault == ""}
	outcome := strconv.Itoa(x.code)
	if x.code >= 300 {
		outcome += " " + http.StatusText(x.code)
	}
	var got map[string]any
	if x.target.resource != "" && len(x.got) > 0 {
		got = h.reader.object(x.got)
	}
	isStatus := got["kind"] == "Status" && got["apiVersion"] == "v1"
	switch {
	case x.err != "":
		outcome = x.err
	case x.code >= 400 && isStatus:
		outcome = h.refusal(x, outcome, got)
	}
	if x.fault != "" {
		outcome += " (injected: " + x.fault + ")"
	}
	s.line, s.took = fmt.Sprintf("%s%s: %s", x.target, h.by(x), outcome), short(x.took)
	if x.dryRun {
		s.line += ", dry run"
	}
	if x.code == http.StatusConflict {
		s.details = h.conflict(x)
	}
	if x.err != "" || x.code < 200 || x.code > 299 {
		return s
	}
	switch x.target.verb {
	case "watch":
		if x.ending != "" {
			s.details = append(s.details, fmt.Sprintf("%s after %d events", x.ending, x.events))
		}
	case "list":
		h.list(x, got)
	case "get":
		if !isStatus && isWhole(got) {
			h.see(x.target, got, "", s.at+" "+x.target.String())
		}
	case "create", "update", "patch", "delete":
		s.minor = false
		if !isStatus && isWhole(got) && !x.dryRun && x.fault != "stale" {
			s.details = append(s.details, h.write(x, got, s.at+" "+x.target.verb)...)
		}
	default:
		s.minor = false // deletecollection, proxies and connections
	}
	return s
}

// short is a duration in milliseconds.
func short(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// refusal is the code, the reason and the message of a Status.
func (h *history) refusal(x *exchange, outcome string, status map[string]any) string {
	reason, _ := status["reason"].(string)
	message, _ := status["message"].(string)
	if reason != "" {
		outcome = fmt.Sprintf("%d %s", x.code, reason)
	}
	if message != "" && !confidential(x.target) {
		outcome += ": " + message
	}
	return outcome
}

// isWhole reports whether an object is complete, and no table or metadata alone.
func isWhole(obj map[string]any) bool {
	group, _ := obj["apiVersion"].(string)
	if strings.HasPrefix(group, "meta.k8s.io/") {
		return obj["kind"] != "Table" && obj["kind"] != "PartialObjectMetadata"
	}
	return obj != nil
}

// identity is the key of an object in the history, and its resource version. An object of a subresource of another kind,
// such as a Scale, has its own key.
func identity(t target, obj map[string]any) (key, revision string) {
	metadata, _ := obj["metadata"].(map[string]any)
	namespace, _ := metadata["namespace"].(string)
	name, _ := metadata["name"].(string)
	revision, _ = metadata["resourceVersion"].(string)
	kind, _ := obj["kind"].(string)
	at := target{group: t.group, resource: t.resource, namespace: namespace, name: name}
	if kind == "Scale" {
		at.subresource = "scale"
	}
	if name == "" {
		at.name = t.name
	}
	return at.kind() + " " + at.object(), revision
}

// see notes the state of an object, which then must not be changed, and returns the object. A read may be older than the
// last known state, and a deletion is its end.
func (h *history) see(t target, obj map[string]any, event watch.EventType, by string) {
	h.redact.object(t, obj)
	key, revision := identity(t, obj)
	if revision == "" {
		return
	}
	h.byStamp[key+"@"+revision] = obj
	last := h.latest[key]
	if last != nil && !newer(revision, last.revision) {
		return
	}
	next := &state{revision: revision, object: obj, by: by}
	if event == watch.Deleted {
		next.object = nil
	}
	h.latest[key] = next
}

// newer reports whether a resource version is above another.
func newer(a, b string) bool {
	return len(a) > len(b) || len(a) == len(b) && a > b
}

// list notes the states of all objects in a list.
func (h *history) list(x *exchange, list map[string]any) {
	kind, _ := list["kind"].(string)
	if !strings.HasSuffix(kind, "List") || strings.HasPrefix(kind, "PartialObjectMetadata") {
		return
	}
	items, _ := list["items"].([]any)
	for _, item := range items {
		if obj, ok := item.(map[string]any); ok {
			h.see(x.target, obj, "", h.at(x.began)+" "+x.target.String())
		}
	}
}

// write notes the state of an object after a write, and returns the fields that the write changed.
func (h *history) write(x *exchange, obj map[string]any, by string) []string {
	key, revision := identity(x.target, obj)
	if x.target.verb != "delete" && revision == "" {
		h.redact.object(x.target, obj)
		return nil // it is not stored, such as a token or a review
	}
	last := h.latest[key]
	sent := h.sentRevision(x)
	before, from := h.byStamp[key+"@"+sent], sent
	if before == nil && last != nil && last.revision != revision {
		before, from = last.object, last.revision
	}
	known := before != nil
	if x.target.verb == "create" {
		before, known = nil, true // an object of this name that was seen before is gone
	}
	h.see(x.target, obj, "", by+h.by(x))
	switch {
	case x.target.verb == "delete":
		return h.deletion(obj)
	case last != nil && last.revision == revision && last.object != nil:
		return []string{"no change: resourceVersion " + revision + " as before"}
	case !known:
		return []string{"resourceVersion " + revision + "; the object before is not known"}
	}
	lines := changes(before, obj)
	if from != "" && x.target.verb != "create" {
		lines = append([]string{"resourceVersion " + from + " -> " + revision}, lines...)
	}
	return lines
}

// deletion describes an object that a delete returned: with finalizers, it stays.
func (h *history) deletion(obj map[string]any) []string {
	metadata, _ := obj["metadata"].(map[string]any)
	if metadata["deletionTimestamp"] == nil {
		return nil
	}
	finalizers := "none"
	if metadata["finalizers"] != nil {
		finalizers = brief(metadata["finalizers"])
	}
	return []string{"the object is being deleted; finalizers: " + finalizers}
}

// sentRevision returns the resource version in the body of a write; empty if it has none.
func (h *history) sentRevision(x *exchange) string {
	if len(x.sent) == 0 {
		return ""
	}
	obj := h.reader.object(x.sent)
	_, revision := identity(x.target, obj)
	return revision
}

// conflict names the write that made the resource version of a request old.
func (h *history) conflict(x *exchange) []string {
	sent := h.sentRevision(x)
	if sent == "" {
		return nil
	}
	last := h.latest[x.target.withoutSubresource()]
	switch {
	case last == nil || last.revision == sent:
		return []string{"it sent resourceVersion " + sent}
	case last.object == nil:
		return []string{"it sent resourceVersion " + sent + "; the object was deleted"}
	}
	return []string{fmt.Sprintf("it sent resourceVersion %s; the object has %s, of %s", sent, last.revision, strings.TrimSpace(last.by))}
}

// withoutSubresource is the key of the object in the history.
func (t target) withoutSubresource() string {
	t.subresource = ""
	return t.kind() + " " + t.object()
}

// eventStep describes an event of a watch.
func (h *history) eventStep(rec record) reportStep {
	x := rec.exchange
	s := reportStep{at: h.at(rec.at), minor: true}
	s.line = fmt.Sprintf("%s%s: event", x.target, h.by(x))
	cut, ok := newSplitter(x.gotType)
	if !ok {
		return s
	}
	kind, data, err := cut.event(rec.event)
	if err != nil {
		s.line += ": " + err.Error()
		return s
	}
	s.line += " " + string(kind)
	obj := h.reader.object(data)
	switch {
	case kind == watch.Error:
		s.minor = false
		if message, ok := obj["message"].(string); ok && !confidential(x.target) {
			s.line += ": " + message
		}
	case kind != watch.Bookmark && isWhole(obj):
		key, revision := identity(x.target, obj)
		h.see(x.target, obj, kind, s.at+" "+x.target.String())
		_, object, _ := strings.Cut(key, " ")
		s.line += " " + object + " resourceVersion " + revision
	}
	return s
}
