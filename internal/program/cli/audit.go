package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
)

// auditFlags are the flags of the audit policy and the audit backends, with upstream's names and meanings.
type auditFlags struct {
	rotation      rotationFlags
	log, webhook  throttleFlags
	logVersion    string
	senderVersion string
}

// throttleFlags are upstream's flags for throttling: a switch, and the parameters that it enables.
type throttleFlags struct {
	enable bool
	qps    float32
}

// auditVersion is the only version of audit events.
const auditVersion = "audit.k8s.io/v1"

func (a *auditFlags) declare(flags *pflag.FlagSet, o *config.AuditOptions) {
	flags.StringVar(&o.PolicyFile, "audit-policy-file", "", "file with the audit policy (Policy of audit.k8s.io/v1); reloaded when it "+
		"changes (default: record all requests except health, version and discovery, without bodies)")
	flags.StringVar(&o.Log.Path, "audit-log-path", "", "file for audit events; - is standard output")
	flags.StringVar(&o.Log.Format, "audit-log-format", "", "format of audit events: json, or legacy, a text format without bodies "+
		"(default json)")
	a.rotation.declare(flags, "audit-log")
	batchFlags(
		flags,
		"audit-log",
		"blocking",
		"blocking, blocking-strict, which rejects requests that the server cannot record, or batch",
		&o.Log.Mode,
		&o.Log.Batch,
		&a.log,
		config.AuditBatchOptions{BufferSize: 10_000, MaxSize: 1},
	)
	truncateFlags(flags, "audit-log", &o.Log.Truncate)
	flags.StringVar(&a.logVersion, "audit-log-version", auditVersion, "API version of the audit events in the file; only one exists")
	w := &o.Webhook
	flags.StringVar(&w.ConfigFile, "audit-webhook-config-file", "", "kubeconfig of the server that receives audit events")
	flags.DurationVar(
		&w.InitialBackoff,
		"audit-webhook-initial-backoff",
		0,
		"wait before the server sends failed events again; it sends events up to five times (default 10s)",
	)
	batchFlags(
		flags,
		"audit-webhook",
		"batch",
		"batch, blocking, or blocking-strict, which rejects requests that the server cannot record",
		&w.Mode,
		&w.Batch,
		&a.webhook,
		config.AuditBatchOptions{BufferSize: 10_000, MaxSize: 400, MaxWait: 30 * time.Second, ThrottleQPS: 10, ThrottleBurst: 15},
	)
	truncateFlags(flags, "audit-webhook", &w.Truncate)
	flags.StringVar(&a.senderVersion, "audit-webhook-version", auditVersion, "API version of the audit events that the webhook "+
		"receives; only one exists")
}

func batchFlags(
	flags *pflag.FlagSet,
	prefix, mode, modes string,
	to *string,
	o *config.AuditBatchOptions,
	throttle *throttleFlags,
	defaults config.AuditBatchOptions,
) {
	flags.StringVar(to, prefix+"-mode", "", fmt.Sprintf("delivery of events: %s (default %s)", modes, mode))
	flags.IntVar(
		&o.BufferSize,
		prefix+"-batch-buffer-size",
		0,
		fmt.Sprintf("maximum number of queued events in batch mode; the server drops events beyond it (default %d)", defaults.BufferSize),
	)
	flags.IntVar(
		&o.MaxSize,
		prefix+"-batch-max-size",
		0,
		fmt.Sprintf("maximum number of events in a batch, in batch mode (default %d)", defaults.MaxSize),
	)
	flags.DurationVar(
		&o.MaxWait,
		prefix+"-batch-max-wait",
		0,
		"maximum time that an event waits for its batch to fill, in batch mode"+defaultOf(defaults.MaxWait),
	)
	flags.BoolVar(&throttle.enable, prefix+"-batch-throttle-enable", defaults.ThrottleQPS > 0, "limit the rate of batches")
	flags.Float32Var(
		&throttle.qps,
		prefix+"-batch-throttle-qps",
		0,
		"maximum number of batches per second, if the rate is limited"+defaultOf(defaults.ThrottleQPS),
	)
	flags.IntVar(
		&o.ThrottleBurst,
		prefix+"-batch-throttle-burst",
		0,
		"maximum number of batches in a burst, if the rate is limited"+defaultOf(defaults.ThrottleBurst),
	)
}

// defaultOf formats a default for a flag's help; the zero value becomes the empty string.
func defaultOf[T comparable](value T) string {
	if value == *new(T) {
		return ""
	}
	return fmt.Sprintf(" (default %v)", value)
}

func truncateFlags(flags *pflag.FlagSet, prefix string, o *config.AuditTruncateOptions) {
	flags.BoolVar(&o.Enabled, prefix+"-truncate-enabled", false, "limit the size of events and of batches")
	flags.Int64Var(&o.MaxEventSize, prefix+"-truncate-max-event-size", 0, "maximum size of an event in bytes; the server removes the "+
		"bodies of larger events (default 102400)")
	flags.Int64Var(&o.MaxBatchSize, prefix+"-truncate-max-batch-size", 0, "maximum size of a batch in bytes; the server splits larger "+
		"batches (default 10485760)")
}

func (a *auditFlags) complete(flags *pflag.FlagSet, o *config.AuditOptions) error {
	for _, version := range []struct{ flag, value string }{{"--audit-log-version", a.logVersion},
		{"--audit-webhook-version", a.senderVersion}} {
		if version.value != auditVersion {
			return usage(fmt.Errorf("%s %q: the only supported version is %s", version.flag, version.value, auditVersion))
		}
	}
	return errors.Join(
		a.rotation.complete(flags, "audit-log", &o.Log.Rotation),
		a.log.complete(flags, "audit-log", &o.Log.Batch.ThrottleQPS),
		a.webhook.complete(flags, "audit-webhook", &o.Webhook.Batch.ThrottleQPS),
	)
}

func (t *throttleFlags) complete(flags *pflag.FlagSet, prefix string, qps *float32) error {
	enable, rate := prefix+"-batch-throttle-enable", prefix+"-batch-throttle-qps"
	switch {
	case flags.Changed(rate) && t.qps <= 0:
		return usage(fmt.Errorf("--%s %v is not a positive number", rate, t.qps))
	case flags.Changed(rate) && !t.enable:
		return usage(fmt.Errorf("--%s has no effect: add --%s", rate, enable))
	case flags.Changed(enable) && !t.enable:
		*qps = -1
	case flags.Changed(enable) && t.qps == 0 && flags.Lookup(enable).DefValue == "false":
		return usage(fmt.Errorf("--%s needs --%s", enable, rate))
	default:
		*qps = t.qps
	}
	return nil
}

// rotationFlags are the flags of log rotation, in upstream's units.
type rotationFlags struct {
	days, backups, megabytes int
	compress                 bool
}

func (r *rotationFlags) declare(flags *pflag.FlagSet, prefix string) {
	flags.IntVar(&r.megabytes, prefix+"-maxsize", 100, "size in MiB at which the server rotates the file; 0 sets no limit")
	flags.IntVar(&r.backups, prefix+"-maxbackup", 100, "maximum number of rotated files to keep; 0 keeps all")
	flags.IntVar(&r.days, prefix+"-maxage", 366, "maximum age of rotated files in days; 0 keeps them forever")
	flags.BoolVar(&r.compress, prefix+"-compress", false, "compress rotated files with gzip")
}

// complete copies the flags that were given into the options.
func (r *rotationFlags) complete(flags *pflag.FlagSet, prefix string, o *config.RotationOptions) error {
	size, age := int64(r.megabytes)<<20, time.Duration(r.days)*24*time.Hour
	o.Compress = r.compress
	if path := flags.Lookup("audit-log-path"); prefix == "audit-log" && path.Value.String() == "-" && r.days == 0 && r.backups == 0 &&
		!flags.Changed(prefix+"-maxsize") {
		return nil // manifests of upstream's servers turn the limits of rotation off for standard output
	}
	return errors.Join(
		changed(flags, prefix+"-maxsize", &size, &o.MaxSize),
		changed(flags, prefix+"-maxbackup", &r.backups, &o.MaxBackups),
		changed(flags, prefix+"-maxage", &age, &o.MaxAge),
	)
}

// changed sets an option to a flag's value if the flag was given.
func changed[T ~int | ~int64](flags *pflag.FlagSet, name string, value, to *T) error {
	if !flags.Changed(name) {
		return nil
	}
	if err := zeroIsNone(flags, name, value); err != nil {
		return err
	}
	*to = *value
	return nil
}
