// Package audit contains the audit of a server, which is the permanent record, and its access log, for people who
// observe the server.
//
// Events, levels, stages and policies of the audit are upstream's, and so are the formats of its files and webhook
// requests. The delivery of events is not: it ends with the server within a bounded time, counts lost events without
// logging each of them, and reloads the policy when its file changes.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/audit"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/server/logfile"
)

// Audit delivers the events of a server. The nil Audit records nothing.
type Audit struct {
	policy  *Policy
	outputs []*output
	closers []io.Closer
	// life is the lifetime of writes and requests in progress.
	life context.Context
	end  context.CancelFunc
}

// Open reads the policy and opens the log. The options must be complete. It returns nil if they record nothing.
func Open(ctx context.Context, o config.AuditOptions) (*Audit, error) {
	if !Enabled(o) {
		return nil, nil
	}
	strict := o.Log.Mode == modeStrict || o.Webhook.Mode == modeStrict
	policy, err := openPolicy(o.PolicyFile, strict)
	if err != nil {
		return nil, err
	}
	a := &Audit{policy: policy}
	a.life, a.end = context.WithCancel(context.WithoutCancel(ctx))
	if o.Log.Path != "" {
		err = a.openLog(o.Log)
	}
	if o.Webhook.ConfigFile != "" && err == nil {
		err = a.openWebhook(o.Webhook)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Audit) openLog(o config.AuditLogOptions) error {
	var to io.Writer = os.Stdout
	if o.Path != "-" {
		file, err := logfile.Open(o.Path, o.Rotation)
		if err != nil {
			return fmt.Errorf("Options.Audit.Log.Path: %w", err)
		}
		a.closers = append(a.closers, file)
		to = file
	}
	encode := encodeLine
	if o.Format == formatLegacy {
		encode = encodeLegacy
	}
	a.outputs = append(a.outputs, newOutput("log", a.life, o.Mode, o.Batch, o.Truncate, 1, encode, lineWriter(to)))
	return nil
}

func (a *Audit) openWebhook(o config.AuditWebhookOptions) error {
	webhook, err := newWebhook(o)
	if err != nil {
		return fmt.Errorf("Options.Audit.Webhook.ConfigFile %s: %w", o.ConfigFile, err)
	}
	a.outputs = append(a.outputs, newOutput("webhook", a.life, o.Mode, o.Batch, o.Truncate, webhookSenders, encode, webhook.send))
	return nil
}

// Sink returns the receiver of events; nil for the nil Audit.
func (a *Audit) Sink() audit.Sink {
	if a == nil {
		return nil
	}
	return outputs(a.outputs)
}

// Policy returns the evaluator of the policy; nil for the nil Audit.
func (a *Audit) Policy() audit.PolicyRuleEvaluator {
	if a == nil {
		return nil
	}
	return a.policy
}

// Run reloads the policy when it changes, and writes and sends batches, until ctx is done. Then it accepts no more
// events, and returns when the remaining ones have been delivered, or after flush, when they are lost. No request may
// be in progress when ctx ends.
func (a *Audit) Run(ctx context.Context, flush time.Duration) {
	if a == nil {
		return
	}
	var running sync.WaitGroup
	running.Go(func() { a.policy.run(ctx) })
	for _, o := range a.outputs {
		running.Go(func() { o.run(ctx) })
	}
	<-ctx.Done()
	limit := time.AfterFunc(flush, a.end)
	running.Wait()
	limit.Stop()
	a.end()
}

// Close closes the log. If Run is called, it must have returned. Later events are lost.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	a.end()
	var errs []error
	for _, c := range a.closers {
		errs = append(errs, c.Close())
	}
	for _, o := range a.outputs {
		o.losses.Report()
	}
	return errors.Join(errs...)
}

// Metrics returns the metrics of the audit; nil for the nil Audit.
func (a *Audit) Metrics() []prometheus.Collector {
	if a == nil {
		return nil
	}
	all := a.policy.metrics()
	for _, o := range a.outputs {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "annex_audit_lost_events_total",
			Help:        "Audit events that could not be written or sent, by destination.",
			ConstLabels: prometheus.Labels{"backend": o.name},
		}, func() float64 { return float64(o.losses.Total()) }))
	}
	return all
}
