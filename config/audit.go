package config

import "time"

// AuditOptions say what is recorded of requests, as kube-apiserver's audit does: an event for
// each stage of a request, at a level that a policy chooses. The zero value records nothing.
// Events go to a log, to a webhook, or to both.
type AuditOptions struct {
	// PolicyFile is a Policy of audit.k8s.io/v1. It is read again when it changes; while it is
	// missing or wrong, the one read before stays in force. Without one, all requests are recorded
	// at the level Metadata when they are answered, but for those of known callers for health,
	// metrics, version, discovery and OpenAPI, and for what the server reads of itself.
	PolicyFile string
	// Log is a file of events.
	Log AuditLogOptions
	// Webhook is a server that events are sent to.
	Webhook AuditWebhookOptions
}

// AuditLogOptions say how events are written to a file, each as a line. Fields beside Path are
// for a Path only.
type AuditLogOptions struct {
	// Path is the file, which is made if missing with the mode 0600, and its directory with
	// 0700; - is standard output. A relative path begins in the working directory.
	Path string
	// Format is json, the default, or legacy, which is a text without bodies.
	Format string
	// Rotation says when the file makes room for a new one. Standard output has none.
	Rotation RotationOptions
	// Mode says when events are written: blocking, the default, before the request goes on;
	// blocking-strict in addition refuses requests with 500 if the event that they were received
	// cannot be written; batch writes in the background, and loses events that it has no room for.
	Mode string
	// Batch is for the mode batch only. Its defaults are a BufferSize of 10,000, a MaxSize of 1,
	// and no throttle.
	Batch AuditBatchOptions
	// Truncate bounds events.
	Truncate AuditTruncateOptions
}

// AuditWebhookOptions say how events are sent to a server, in lists. Fields beside ConfigFile
// are for a ConfigFile only.
type AuditWebhookOptions struct {
	// ConfigFile is a kubeconfig that says where the server is and how to authenticate.
	ConfigFile string
	// InitialBackoff is how long a list that was refused waits before it is sent again; 10
	// seconds if 0. It is sent five times, each time after a longer pause.
	InitialBackoff time.Duration
	// Mode is batch by default; see AuditLogOptions.
	Mode string
	// Batch is for the mode batch only. Its defaults are a BufferSize of 10,000, a MaxSize of
	// 400, a MaxWait of 30 seconds, a ThrottleQPS of 10 and a ThrottleBurst of 15.
	Batch AuditBatchOptions
	// Truncate bounds events, and lists of them.
	Truncate AuditTruncateOptions
}

// AuditBatchOptions say how events are gathered. What 0 means, the field that has them says.
type AuditBatchOptions struct {
	// BufferSize is how many events wait at most. Others are lost, and counted.
	BufferSize int
	// MaxSize is how many events are written or sent at once.
	MaxSize int
	// MaxWait is how long an event waits for others.
	MaxWait time.Duration
	// ThrottleQPS is how many batches go out in a second, after ThrottleBurst at once.
	// Negative has no bound.
	ThrottleQPS   float32
	ThrottleBurst int
}

// AuditTruncateOptions bound the encoded size of events.
type AuditTruncateOptions struct {
	Enabled bool
	// MaxEventSize is that of an event, in bytes; 102,400 if 0. A larger one loses the bodies of
	// request and answer, and is lost, and counted, if that is not enough.
	MaxEventSize int64
	// MaxBatchSize is that of all events that are written or sent at once, in bytes; 10,485,760
	// if 0.
	MaxBatchSize int64
}

// RotationOptions say when a file that only grows is renamed and begun anew, and how many of
// the renamed ones are kept. Their names end in the time, as in audit-2026-11-22T15-04-05.000.log.
type RotationOptions struct {
	// MaxSize is that of a file in bytes; 100 MiB if 0. Negative never renames it.
	MaxSize int64
	// MaxBackups is how many are kept beside the file in use; 100 if 0, any number if negative.
	MaxBackups int
	// MaxAge is how long they are kept; 366 days if 0, for ever if negative.
	MaxAge time.Duration
	// Compress compresses them with gzip.
	Compress bool
}
