package audit

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// encodeLine encodes an event as a line of upstream's JSON log.
func encodeLine(event *auditinternal.Event) ([]byte, error) {
	data, err := encode(event)
	return append(data, '\n'), err
}

func encodeLegacy(event *auditinternal.Event) ([]byte, error) {
	return []byte(audit.EventString(event) + "\n"), nil
}

// encode encodes an event, byte for byte like upstream's codec. Encoding by reflection would take most of the time
// that the audit of a request takes; it is used only for rare parts of events.
func encode(e *auditinternal.Event) ([]byte, error) {
	d := &document{data: make([]byte, 0, 1024)}
	d.raw(`{"kind":"Event","apiVersion":"audit.k8s.io/v1"`)
	d.text(`,"level":`, string(e.Level))
	d.text(`,"auditID":`, string(e.AuditID))
	d.text(`,"stage":`, string(e.Stage))
	d.text(`,"requestURI":`, e.RequestURI)
	d.text(`,"verb":`, e.Verb)
	d.raw(`,"user":`)
	d.user(&e.User)
	if e.ImpersonatedUser != nil {
		d.raw(`,"impersonatedUser":`)
		d.user(e.ImpersonatedUser)
	}
	if m := e.AuthenticationMetadata; m != nil {
		d.raw(`,"authenticationMetadata":{`)
		d.some(`"impersonationConstraint":`, m.ImpersonationConstraint)
		d.raw(`}`)
	}
	d.texts(`,"sourceIPs":`, e.SourceIPs)
	d.some(`,"userAgent":`, e.UserAgent)
	if e.ObjectRef != nil {
		d.raw(`,"objectRef":`)
		d.reference(e.ObjectRef)
	}
	if e.ResponseStatus != nil {
		d.raw(`,"responseStatus":`)
		d.status(e.ResponseStatus)
	}
	if e.RequestObject != nil {
		d.raw(`,"requestObject":`)
		d.any(e.RequestObject)
	}
	if e.ResponseObject != nil {
		d.raw(`,"responseObject":`)
		d.any(e.ResponseObject)
	}
	d.time(`,"requestReceivedTimestamp":`, e.RequestReceivedTimestamp)
	d.time(`,"stageTimestamp":`, e.StageTimestamp)
	if len(e.Annotations) > 0 {
		d.raw(`,"annotations":`)
		writeMap(d, e.Annotations, d.quote)
	}
	d.raw(`}`)
	return d.data, d.err
}

// document is a growing JSON document, and the first error.
type document struct {
	data []byte
	err  error
}

func (d *document) raw(text string) { d.data = append(d.data, text...) }

// text writes a member. name includes the punctuation around it.
func (d *document) text(name, value string) {
	d.raw(name)
	d.quote(value)
}

// some writes a member unless the value is empty.
func (d *document) some(name, value string) {
	if value != "" {
		d.text(name, value)
	}
}

func (d *document) texts(name string, values []string) {
	if len(values) == 0 {
		return
	}
	d.raw(name)
	d.list(values)
}

func (d *document) list(values []string) {
	d.raw(`[`)
	for i, value := range values {
		if i > 0 {
			d.raw(`,`)
		}
		d.quote(value)
	}
	d.raw(`]`)
}

// quote writes a string. A string that encoding/json would escape, even if only for HTML, is encoded by that package.
func (d *document) quote(value string) {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			d.any(value)
			return
		}
	}
	d.data = append(d.data, '"')
	d.data = append(d.data, value...)
	d.data = append(d.data, '"')
}

func (d *document) any(value any) {
	data, err := json.Marshal(value)
	if err != nil && d.err == nil {
		d.err = err
	}
	d.data = append(d.data, data...)
}

func writeMap[V any](d *document, values map[string]V, write func(V)) {
	d.raw(`{`)
	for i, key := range slices.Sorted(maps.Keys(values)) {
		if i > 0 {
			d.raw(`,`)
		}
		d.quote(key)
		d.raw(`:`)
		write(values[key])
	}
	d.raw(`}`)
}

func (d *document) time(name string, at metav1.MicroTime) {
	d.raw(name)
	if at.IsZero() {
		d.raw(`null`)
		return
	}
	d.data = append(d.data, '"')
	d.data = at.UTC().AppendFormat(d.data, metav1.RFC3339Micro)
	d.data = append(d.data, '"')
}

func (d *document) user(u *authnv1.UserInfo) {
	d.raw(`{`)
	at := len(d.data)
	d.some(`,"username":`, u.Username)
	d.some(`,"uid":`, u.UID)
	d.texts(`,"groups":`, u.Groups)
	if len(u.Extra) > 0 {
		d.raw(`,"extra":`)
		writeMap(d, u.Extra, func(values authnv1.ExtraValue) {
			if values == nil {
				d.raw(`null`)
			} else {
				d.list(values)
			}
		})
	}
	d.end(at)
}

func (d *document) reference(r *auditinternal.ObjectReference) {
	d.raw(`{`)
	at := len(d.data)
	d.some(`,"resource":`, r.Resource)
	d.some(`,"namespace":`, r.Namespace)
	d.some(`,"name":`, r.Name)
	d.some(`,"uid":`, string(r.UID))
	d.some(`,"apiGroup":`, r.APIGroup)
	d.some(`,"apiVersion":`, r.APIVersion)
	d.some(`,"resourceVersion":`, r.ResourceVersion)
	d.some(`,"subresource":`, r.Subresource)
	d.end(at)
}

// end ends an object whose members begin at an offset, each with a comma.
func (d *document) end(at int) {
	if len(d.data) > at {
		d.data = slices.Delete(d.data, at, at+1)
	}
	d.raw(`}`)
}

// status writes a Status, which contains only a code unless the request failed.
func (d *document) status(s *metav1.Status) {
	if *s != (metav1.Status{Code: s.Code}) || s.Code == 0 {
		d.any(s)
		return
	}
	d.raw(`{"metadata":{},"code":`)
	d.data = strconv.AppendInt(d.data, int64(s.Code), 10)
	d.raw(`}`)
}

// lineWriter writes encoded events with a single call.
func lineWriter(to io.Writer) func(context.Context, [][]byte) error {
	return func(_ context.Context, events [][]byte) error {
		lines := events[0]
		if len(events) > 1 {
			lines = slices.Concat(events...)
		}
		_, err := to.Write(lines)
		return err
	}
}
