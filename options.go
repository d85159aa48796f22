package annex

import (
	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/store/driver"
)

type (
	// Options say how a server runs.
	Options = config.Options
	// ClusterOptions say how an aggregated server reaches its cluster and what it takes
	// from there.
	ClusterOptions = config.ClusterOptions
	// SelfCertifyOptions say how an aggregated server keeps its serving certificate.
	SelfCertifyOptions = config.SelfCertifyOptions
	// ControlPlaneOptions are the operator's, of a server with a control plane.
	ControlPlaneOptions = config.ControlPlaneOptions
	// AdmissionOptions say which admission plugins a server runs.
	AdmissionOptions = config.AdmissionOptions
	// AuditOptions say what is recorded of requests, as kube-apiserver's audit does.
	AuditOptions = config.AuditOptions
	// AuditLogOptions say how events of the audit are written to a file.
	AuditLogOptions = config.AuditLogOptions
	// AuditWebhookOptions say how events of the audit are sent to a server.
	AuditWebhookOptions = config.AuditWebhookOptions
	// AuditBatchOptions say how events of the audit are gathered.
	AuditBatchOptions = config.AuditBatchOptions
	// AuditTruncateOptions bound the size of events of the audit.
	AuditTruncateOptions = config.AuditTruncateOptions
	// AccessLogOptions say where a line is written for each request.
	AccessLogOptions = config.AccessLogOptions
	// ServingOptions say how connections are answered.
	ServingOptions = config.ServingOptions
	// SNICertificate is a certificate for some names.
	SNICertificate = config.SNICertificate
	// KubeconfigOptions say what the administrator's kubeconfig holds.
	KubeconfigOptions = config.KubeconfigOptions
	// ServiceAccountOptions say how tokens of service accounts are signed and verified.
	ServiceAccountOptions = config.ServiceAccountOptions
	// LoginOptions say how people sign in.
	LoginOptions = config.LoginOptions
	// RotationOptions say when a file that only grows is begun anew.
	RotationOptions = config.RotationOptions
	// TokenWebhookOptions have a server ask a webhook whose bearer tokens are.
	TokenWebhookOptions = config.TokenWebhookOptions
	// RequestHeaderOptions say which proxy may name callers in headers.
	RequestHeaderOptions = config.RequestHeaderOptions
	// AuthorizationWebhookOptions say which server is asked what callers may do.
	AuthorizationWebhookOptions = config.AuthorizationWebhookOptions
	// AuthorizationMode is how a server that stands alone decides what callers may do.
	AuthorizationMode = config.AuthorizationMode
	// Storage is where a server can keep objects: embedded.Dir, files.Dir, memory.Storage,
	// etcd.Cluster, or a driver of one's own.
	Storage = driver.Driver
)

// The authorization modes.
const (
	AuthorizationRBAC        = config.AuthorizationRBAC
	AuthorizationWebhook     = config.AuthorizationWebhook
	AuthorizationAlwaysAllow = config.AuthorizationAlwaysAllow
	AuthorizationAlwaysDeny  = config.AuthorizationAlwaysDeny
)
