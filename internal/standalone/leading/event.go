package leading

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/core"
	facts "github.com/annexapi/annex/internal/model/facts/events"
)

// Events returns the kind of events in the core group, and its alias in events.k8s.io, which serves the same objects
// with other field names.
func Events(ttl time.Duration) (event, alias *define.Kind) {
	event = &define.Kind{
		Resource: "events", Columns: eventColumns(), WithoutAge: true,
		Versions: []*define.Version{{Facts: core.API, Type: reflect.TypeFor[corev1.Event](), ListType: reflect.TypeFor[corev1.EventList]()}},
	}
	event.ShortNames, event.WithoutGeneration, event.WithoutName = []string{"ev"}, true, true
	event.Unconditional, event.CreateOnUpdate, event.TTL = true, true, ttl
	event.Selectable = eventFields()
	event.Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		e, strict := obj.(*corev1.Event), spokenAsEvents(ctx)
		errs := validateEvent(e, strict)
		if strict && e.ResourceVersion == "" {
			errs = append(errs, validateNewStyle(e)...)
		}
		return errs
	}
	event.ValidateUpdate = func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
		if !spokenAsEvents(ctx) {
			return nil
		}
		return validateEventUpdate(obj.(*corev1.Event), old.(*corev1.Event))
	}
	shared := *event
	shared.AliasOf, shared.Group = event, eventsv1.GroupName
	shared.Versions = []*define.Version{{
		Facts: facts.API, Type: reflect.TypeFor[eventsv1.Event](), ListType: reflect.TypeFor[eventsv1.EventList](),
		ToHub: eventToHub, FromHub: eventFromHub,
	}}
	shared.Selectable = sharedEventFields(event.Selectable)
	event.Aliases = []*define.Kind{&shared}
	return event, &shared
}

// spokenAsEvents reports whether a request is for events.k8s.io, which has stricter rules.
func spokenAsEvents(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == eventsv1.GroupName
}

func eventToHub(in, hub runtime.Object) error {
	e, out := in.(*eventsv1.Event), hub.(*corev1.Event)
	out.InvolvedObject, out.Related = e.Regarding, e.Related
	out.Reason, out.Message, out.Type, out.Action = e.Reason, e.Note, e.Type, e.Action
	out.Source = e.DeprecatedSource
	out.FirstTimestamp, out.LastTimestamp, out.Count = e.DeprecatedFirstTimestamp, e.DeprecatedLastTimestamp, e.DeprecatedCount
	out.EventTime, out.ReportingController, out.ReportingInstance = e.EventTime, e.ReportingController, e.ReportingInstance
	out.Series = nil
	if e.Series != nil {
		out.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return nil
}

func eventFromHub(hub, out runtime.Object) error {
	e, in := out.(*eventsv1.Event), hub.(*corev1.Event)
	e.Regarding, e.Related = in.InvolvedObject, in.Related
	e.Reason, e.Note, e.Type, e.Action = in.Reason, in.Message, in.Type, in.Action
	e.DeprecatedSource = in.Source
	e.DeprecatedFirstTimestamp, e.DeprecatedLastTimestamp, e.DeprecatedCount = in.FirstTimestamp, in.LastTimestamp, in.Count
	e.EventTime, e.ReportingController, e.ReportingInstance = in.EventTime, in.ReportingController, in.ReportingInstance
	e.Series = nil
	if in.Series != nil {
		e.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	return nil
}

func selectable[T any](path string, value func(*T) string) define.SelectableField {
	return define.SelectableField{Path: path, Value: func(obj runtime.Object) string { return value(any(obj).(*T)) }}
}

func eventFields() []define.SelectableField {
	object := func(name string, value func(*corev1.ObjectReference) string) define.SelectableField {
		return selectable("involvedObject."+name, func(e *corev1.Event) string { return value(&e.InvolvedObject) })
	}
	return []define.SelectableField{
		object("kind", func(o *corev1.ObjectReference) string { return o.Kind }),
		object("namespace", func(o *corev1.ObjectReference) string { return o.Namespace }),
		object("name", func(o *corev1.ObjectReference) string { return o.Name }),
		object("uid", func(o *corev1.ObjectReference) string { return string(o.UID) }),
		object("apiVersion", func(o *corev1.ObjectReference) string { return o.APIVersion }),
		object("resourceVersion", func(o *corev1.ObjectReference) string { return o.ResourceVersion }),
		object("fieldPath", func(o *corev1.ObjectReference) string { return o.FieldPath }),
		selectable("reason", func(e *corev1.Event) string { return e.Reason }),
		selectable("reportingComponent", func(e *corev1.Event) string { return e.ReportingController }),
		selectable("source", eventSource),
		selectable("type", func(e *corev1.Event) string { return e.Type }),
	}
}

func eventSource(e *corev1.Event) string {
	if e.Source.Component == "" {
		return e.ReportingController
	}
	return e.Source.Component
}

// sharedEventFields returns the fields with the names of events.k8s.io.
func sharedEventFields(fields []define.SelectableField) []define.SelectableField {
	var all []define.SelectableField
	for _, f := range fields {
		other := f
		if of, ok := strings.CutPrefix(f.Path, "involvedObject."); ok {
			other.Path, other.Is = "regarding."+of, f.Path
		}
		switch f.Path {
		case "reportingComponent":
			other.Path, other.Is = "reportingController", f.Path
		case "source":
			continue
		}
		all = append(all, other)
	}
	return all
}

func eventColumns() []define.Column {
	doc := corev1.Event{}.SwaggerDoc()
	name := wide(column("Name", described["name"], func(e *corev1.Event) any { return e.Name }))
	name.Format = "name"
	return []define.Column{
		column("Last Seen", doc["lastTimestamp"], func(e *corev1.Event) any { return lastSeen(e) }),
		column("Type", doc["type"], func(e *corev1.Event) any { return e.Type }),
		column("Reason", doc["reason"], func(e *corev1.Event) any { return e.Reason }),
		column("Object", doc["involvedObject"], func(e *corev1.Event) any {
			if e.InvolvedObject.Name == "" {
				return strings.ToLower(e.InvolvedObject.Kind)
			}
			return strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		}),
		wide(
			column(
				"Subobject",
				corev1.ObjectReference{}.SwaggerDoc()["fieldPath"],
				func(e *corev1.Event) any { return e.InvolvedObject.FieldPath },
			),
		),
		wide(column("Source", doc["source"], func(e *corev1.Event) any { return printedSource(e) })),
		column("Message", doc["message"], func(e *corev1.Event) any { return strings.TrimSpace(e.Message) }),
		wide(column("First Seen", doc["firstTimestamp"], func(e *corev1.Event) any { return firstSeen(e) })),
		wide(column("Count", doc["count"], func(e *corev1.Event) any { return count(e) })),
		name,
	}
}

func printedSource(e *corev1.Event) string {
	component, host := e.Source.Component, e.Source.Host
	if component == "" {
		component = e.ReportingController
	}
	if host == "" {
		host = e.ReportingInstance
	}
	if host == "" {
		return component
	}
	return component + ", " + host
}

func ago(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func firstSeen(e *corev1.Event) string {
	if e.FirstTimestamp.IsZero() {
		return ago(metav1.Time{Time: e.EventTime.Time})
	}
	return ago(e.FirstTimestamp)
}

func lastSeen(e *corev1.Event) string {
	switch {
	case e.Series != nil:
		return ago(metav1.Time{Time: e.Series.LastObservedTime.Time})
	case e.LastTimestamp.IsZero():
		return firstSeen(e)
	}
	return ago(e.LastTimestamp)
}

func count(e *corev1.Event) int64 {
	switch {
	case e.Series != nil:
		return int64(e.Series.Count)
	case e.Count == 0:
		return 1
	}
	return int64(e.Count)
}

const (
	maxEventText    = 128
	maxEventMessage = 1024
)

// validateEvent validates an event. strict is set for writes through events.k8s.io. Events of the core group with an
// eventTime are also validated as new-style events.
func validateEvent(e *corev1.Event, strict bool) field.ErrorList {
	errs := validateInvolved(e)
	if !e.EventTime.IsZero() {
		errs = append(errs, validateNewEvent(e, strict)...)
	}
	if strict {
		errs = append(errs, validateSeries(e.Series)...)
	}
	return errs
}

func validateInvolved(e *corev1.Event) field.ErrorList {
	named := e.InvolvedObject.Namespace
	switch {
	case named == "" && (e.Namespace == metav1.NamespaceDefault || e.Namespace == metav1.NamespaceSystem):
		return nil
	case named != "" && (named == e.Namespace || !e.EventTime.IsZero()):
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), named, "does not match event.namespace")}
}

func validateNewEvent(e *corev1.Event, strict bool) field.ErrorList {
	var errs field.ErrorList
	bounded := func(name, value string, bound int) {
		if len(value) > bound {
			errs = append(errs, field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %d characters", bound)))
		}
	}
	required := func(name, value string) {
		if value == "" {
			errs = append(errs, field.Required(field.NewPath(name), ""))
		}
	}
	controller := "reportingController"
	if !strict {
		controller = "reportingComponent"
	}
	required(controller, e.ReportingController)
	for _, msg := range validation.IsQualifiedName(e.ReportingController) {
		errs = append(errs, field.Invalid(field.NewPath(controller), e.ReportingController, msg))
	}
	required("reportingInstance", e.ReportingInstance)
	bounded("reportingInstance", e.ReportingInstance, maxEventText)
	required("action", e.Action)
	bounded("action", e.Action, maxEventText)
	required("reason", e.Reason)
	bounded("reason", e.Reason, maxEventText)
	bounded("message", e.Message, maxEventMessage)
	return errs
}

func validateSeries(s *corev1.EventSeries) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series", "count"), "", "should be at least 2"))
	}
	if s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series", "lastObservedTime"), ""))
	}
	return errs
}

// validateNewStyle validates the additional rules of events.k8s.io for new events.
func validateNewStyle(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	unset := func(name string, value any, is bool) {
		if !is {
			errs = append(errs, field.Invalid(field.NewPath(name), value, "needs to be unset"))
		}
	}
	unset("firstTimestamp", "", e.FirstTimestamp.IsZero())
	unset("lastTimestamp", "", e.LastTimestamp.IsZero())
	unset("count", "", e.Count == 0)
	unset("source", "", e.Source == corev1.EventSource{})
	return errs
}

// validateEventUpdate allows clients of events.k8s.io to change only the series of an event.
func validateEventUpdate(e, old *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	same := func(name string, value, before any) {
		errs = append(errs, apivalidation.ValidateImmutableField(value, before, field.NewPath(name))...)
	}
	same("involvedObject", printedReference(&e.InvolvedObject), printedReference(&old.InvolvedObject))
	same("reason", e.Reason, old.Reason)
	same("message", e.Message, old.Message)
	same("source", printedEventSource(e.Source), printedEventSource(old.Source))
	same("firstTimestamp", e.FirstTimestamp, old.FirstTimestamp)
	same("lastTimestamp", e.LastTimestamp, old.LastTimestamp)
	same("count", e.Count, old.Count)
	same("type", e.Type, old.Type)
	if !e.EventTime.Time.Truncate(time.Microsecond).Equal(old.EventTime.Time.Truncate(time.Microsecond)) {
		same("eventTime", e.EventTime, old.EventTime)
	}
	same("action", e.Action, old.Action)
	same("related", printedReference(e.Related), printedReference(old.Related))
	same("reportingController", e.ReportingController, old.ReportingController)
	same("reportingInstance", e.ReportingInstance, old.ReportingInstance)
	return errs
}

// reference and source are the forms in which kube-apiserver prints references and sources in errors.
type (
	reference struct {
		Kind, Namespace, Name, UID, APIVersion, ResourceVersion, FieldPath string
	}
	eventOrigin struct{ Component, Host string }
)

func printedReference(r *corev1.ObjectReference) *reference {
	if r == nil {
		return nil
	}
	return &reference{r.Kind, r.Namespace, r.Name, string(r.UID), r.APIVersion, r.ResourceVersion, r.FieldPath}
}

func printedEventSource(s corev1.EventSource) eventOrigin { return eventOrigin{s.Component, s.Host} }

func wide(c define.Column) define.Column {
	c.Wide = true
	return c
}
