// Package audit records what happens on a server: an audit, for what has to be known later, and an
// access log, for people who look at what it is doing.
//
// Of the audit, events, levels, stages and policies are
// upstream's, and so are the files and requests that events go out in. What takes them there is
// its own: it ends with the server, within a bound, it counts what is lost without logging each
// event, and its policy is read again when its file changes.
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

// Audit is where the events of a server go. The nil Audit records nothing.
type Audit struct {
	policy  *Policy
	outputs []*output
	closers []io.Closer
	// life is that of writes and requests in progress.
	life context.Context
	end  context.CancelFunc
}

// Open reads the policy and opens the log. The options are complete. It returns nil if they
// record nothing.
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

// Sink is what events are given to; nil for the nil Audit.
func (a *Audit) Sink() audit.Sink {
	if a == nil {
		return nil
	}
	return outputs(a.outputs)
}

// Policy says which events there are; nil for the nil Audit.
func (a *Audit) Policy() audit.PolicyRuleEvaluator {
	if a == nil {
		return nil
	}
	return a.policy
}

// Run reads the policy again when it changes, and writes and sends batches, until ctx is done.
// Then it takes no more events, and returns when those it has are written and sent, or lost
// because that takes longer than flush. No request may be in progress then.
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

// Close closes the log, after Run if that is called. Events are lost from then on.
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

// Metrics are the figures of the server's audit; none for the nil Audit.
func (a *Audit) Metrics() []prometheus.Collector {
	if a == nil {
		return nil
	}
	all := a.policy.metrics()
	for _, o := range a.outputs {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "annex_audit_lost_events_total",
			Help:        "Audit events that could not be written or sent, by where they were to go.",
			ConstLabels: prometheus.Labels{"backend": o.name},
		}, func() float64 { return float64(o.losses.Total()) }))
	}
	return all
}
