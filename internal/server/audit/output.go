package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/server/logfile"
)

// outputs receive each event in turn.
type outputs []*output

var _ audit.Sink = outputs(nil)

// ProcessEvents implements audit.Sink.
func (all outputs) ProcessEvents(events ...*auditinternal.Event) bool {
	ok := true
	for _, o := range all {
		for _, event := range events {
			ok = o.take(event) && ok
		}
	}
	return ok
}

// output is a destination of events. An event is encoded when it is received, because the request continues to modify
// it.
type output struct {
	name     string
	strict   bool
	truncate config.AuditTruncateOptions
	encode   func(*auditinternal.Event) ([]byte, error)
	send     func(ctx context.Context, events [][]byte) error
	queue    *queue // nil if requests wait until their events are sent
	life     context.Context
	losses   *logfile.Losses
}

func newOutput(
	name string,
	life context.Context,
	mode string,
	batch config.AuditBatchOptions,
	truncate config.AuditTruncateOptions,
	senders int,
	encode func(*auditinternal.Event) ([]byte, error),
	send func(context.Context, [][]byte) error,
) *output {
	o := &output{
		name:     name,
		strict:   mode == modeStrict,
		truncate: truncate,
		encode:   encode,
		send:     send,
		life:     life,
		losses:   logfile.NewLosses("Audit events of the " + name),
	}
	if mode == modeBatch {
		maxBytes := int64(0)
		if truncate.Enabled {
			maxBytes = truncate.MaxBatchSize
		}
		o.queue = newQueue(batch, maxBytes, senders)
	}
	return o
}

// take delivers or queues an event. It reports whether the request may continue.
func (o *output) take(event *auditinternal.Event) bool {
	data, err := o.encoded(event)
	switch {
	case err != nil:
	case o.queue != nil:
		err = o.queue.add(data)
	default:
		err = o.send(o.life, [][]byte{data})
	}
	if err != nil {
		o.losses.Add(1, err)
	}
	return err == nil || !o.strict
}

// annotationTruncated marks events without their bodies, as upstream does.
const annotationTruncated = "audit.k8s.io/truncated"

var errTooLarge = errors.New("an event is too large, even without bodies")

func (o *output) encoded(event *auditinternal.Event) ([]byte, error) {
	data, err := o.encode(event)
	if err != nil {
		// Upstream records an applied configuration unchanged if it is empty, or if it starts like JSON but is only
		// valid as YAML.
		readable := *event
		readable.RequestObject, readable.ResponseObject = asJSON(event.RequestObject), asJSON(event.ResponseObject)
		event = &readable
		data, err = o.encode(event)
	}
	if err != nil {
		return nil, fmt.Errorf("encode an event: %w", err)
	}
	tooLarge := func() bool { return o.truncate.Enabled && int64(len(data)) > o.truncate.MaxEventSize }
	if tooLarge() && event.Level.GreaterOrEqual(auditinternal.LevelRequest) {
		short := *event
		short.RequestObject, short.ResponseObject = nil, nil
		short.Annotations = map[string]string{annotationTruncated: "true"}
		for k, v := range event.Annotations {
			short.Annotations[k] = v
		}
		if data, err = o.encode(&short); err != nil {
			return nil, fmt.Errorf("encode an event: %w", err)
		}
	}
	if tooLarge() {
		return nil, errTooLarge
	}
	return data, nil
}

// asJSON returns a body, as a JSON string if it is not JSON. With the original body the whole event would be lost.
func asJSON(body *runtime.Unknown) *runtime.Unknown {
	if body == nil || json.Valid(body.Raw) {
		return body
	}
	text, err := json.Marshal(string(body.Raw))
	if err != nil {
		return nil
	}
	return &runtime.Unknown{Raw: text, ContentType: runtime.ContentTypeJSON}
}

// run delivers queued events until ctx is done and the queue is empty.
func (o *output) run(ctx context.Context) {
	if o.queue == nil {
		return
	}
	o.queue.run(ctx, func(events [][]byte) {
		err := o.life.Err()
		if err == nil {
			err = o.send(o.life, events)
		}
		if err != nil {
			o.losses.Add(len(events), err)
		}
	})
}
