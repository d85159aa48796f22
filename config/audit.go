package config

import "time"

// AuditOptions configure the audit, which works as kube-apiserver's: it records an event for each stage of a request,
// at a level that a policy chooses. Events go to a log, to a webhook, or to both. The zero value records nothing.
type AuditOptions struct {
	// PolicyFile is a Policy of audit.k8s.io/v1. It is read again when it changes; while it is missing or invalid,
	// the previous policy stays in force. If empty, every answered request is recorded at the level Metadata, except
	// two sorts: requests of authenticated callers for health, metrics, version, discovery and OpenAPI, and the
	// server's own reads.
	PolicyFile string
	// Log writes events to a file.
	Log AuditLogOptions
	// Webhook sends events to a server.
	Webhook AuditWebhookOptions
}

// AuditLogOptions set how events are written to a file, one event a line. The other fields need a Path.
type AuditLogOptions struct {
	// Path is the file; - is standard output. A missing file is created with the mode 0600, and its directory with
	// 0700. A relative path is relative to the working directory.
	Path string
	// Format is json, the default, or legacy, a text format without bodies.
	Format string
	// Rotation sets when the file is rotated. Standard output is not rotated.
	Rotation RotationOptions
	// Mode is blocking, blocking-strict or batch. blocking, the default, writes an event before the request goes on.
	// blocking-strict in addition refuses a request with 500 if the event of its arrival cannot be written. batch
	// writes in the background, and drops events when its buffer is full.
	Mode string
	// Batch is for the mode batch only. Its defaults are a BufferSize of 10,000, a MaxSize of 1, and no throttle.
	Batch AuditBatchOptions
	// Truncate bounds the size of events.
	Truncate AuditTruncateOptions
}

// AuditWebhookOptions set how events are sent to a server, in lists. The other fields need a ConfigFile.
type AuditWebhookOptions struct {
	// ConfigFile is a kubeconfig with the server's address and the credentials for it.
	ConfigFile string
	// InitialBackoff is the time before a refused list is sent again; 0 means 10 seconds. A list is sent up to five
	// times, with growing pauses.
	InitialBackoff time.Duration
	// Mode is batch by default; see AuditLogOptions.
	Mode string
	// Batch is for the mode batch only. Its defaults are a BufferSize of 10,000, a MaxSize of
	// 400, a MaxWait of 30 seconds, a ThrottleQPS of 10 and a ThrottleBurst of 15.
	Batch AuditBatchOptions
	// Truncate bounds the size of events, and of lists of events.
	Truncate AuditTruncateOptions
}

// AuditBatchOptions set how events are batched. The defaults of zero fields are documented at the fields of this
// type.
type AuditBatchOptions struct {
	// BufferSize bounds the waiting events. Further events are dropped and counted.
	BufferSize int
	// MaxSize bounds the number of events that are written or sent at once.
	MaxSize int
	// MaxWait bounds how long an event waits for others.
	MaxWait time.Duration
	// ThrottleQPS bounds the batches per second, after a burst of ThrottleBurst. A negative ThrottleQPS sets no
	// bound.
	ThrottleQPS   float32
	ThrottleBurst int
}

// AuditTruncateOptions bound the encoded size of events.
type AuditTruncateOptions struct {
	Enabled bool
	// MaxEventSize bounds one event, in bytes; 0 means 102,400. A larger event loses the bodies of request and
	// response. If it is still too large, it is dropped and counted.
	MaxEventSize int64
	// MaxBatchSize bounds the events that are written or sent at once, in bytes; 0 means 10,485,760.
	MaxBatchSize int64
}

// RotationOptions set when a growing file is renamed and begun anew, and how many renamed files are kept. The names
// of renamed files end in the time, as in audit-2026-11-22T15-04-05.000.log.
type RotationOptions struct {
	// MaxSize is the size, in bytes, from which a file is rotated; 0 means 100 MiB. A negative value never rotates
	// it.
	MaxSize int64
	// MaxBackups bounds the files that are kept beside the file in use; 0 means 100, a negative value sets no bound.
	MaxBackups int
	// MaxAge is how long rotated files are kept; 0 means 366 days, a negative value keeps them for ever.
	MaxAge time.Duration
	// Compress compresses rotated files with gzip.
	Compress bool
}
