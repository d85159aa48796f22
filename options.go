package annex

import (
	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/store/driver"
)

type (
	// Options configure the operation of a server.
	Options = config.Options
	// ClusterOptions configure the connection of an aggregated server to its cluster, and the cluster's features
	// that the server uses.
	ClusterOptions = config.ClusterOptions
	// SelfCertifyOptions configure where an aggregated server keeps its serving certificate, and its renewal.
	SelfCertifyOptions = config.SelfCertifyOptions
	// ControlPlaneOptions are the operator's options for a control plane.
	ControlPlaneOptions = config.ControlPlaneOptions
	// AdmissionOptions select and configure admission plugins.
	AdmissionOptions = config.AdmissionOptions
	// AuditOptions configure the audit of requests, which is that of kube-apiserver.
	AuditOptions = config.AuditOptions
	// AuditLogOptions configure the file of audit events.
	AuditLogOptions = config.AuditLogOptions
	// AuditWebhookOptions configure the server to which audit events are sent.
	AuditWebhookOptions = config.AuditWebhookOptions
	// AuditBatchOptions configure the batches of audit events.
	AuditBatchOptions = config.AuditBatchOptions
	// AuditTruncateOptions bound the size of audit events.
	AuditTruncateOptions = config.AuditTruncateOptions
	// AccessLogOptions configure the access log, which has a line for each request.
	AccessLogOptions = config.AccessLogOptions
	// ServingOptions configure listeners and connections.
	ServingOptions = config.ServingOptions
	// SNICertificate is a serving certificate for some host names.
	SNICertificate = config.SNICertificate
	// KubeconfigOptions configure the administrator's kubeconfig.
	KubeconfigOptions = config.KubeconfigOptions
	// ServiceAccountOptions configure the signing and verification of service account tokens.
	ServiceAccountOptions = config.ServiceAccountOptions
	// LoginOptions configure the sign-in of people.
	LoginOptions = config.LoginOptions
	// RotationOptions configure the rotation of files that only grow.
	RotationOptions = config.RotationOptions
	// TokenWebhookOptions configure a webhook that authenticates bearer tokens.
	TokenWebhookOptions = config.TokenWebhookOptions
	// RequestHeaderOptions configure the proxies that may name callers in headers.
	RequestHeaderOptions = config.RequestHeaderOptions
	// AuthorizationWebhookOptions configure a webhook that authorizes requests.
	AuthorizationWebhookOptions = config.AuthorizationWebhookOptions
	// AuthorizationMode is a mode by which a standalone server authorizes requests.
	AuthorizationMode = config.AuthorizationMode
	// Storage is a storage for objects: embedded.Dir, files.Dir, memory.Storage, etcd.Cluster, or a driver of the
	// program.
	Storage = driver.Driver
)

// The authorization modes.
const (
	AuthorizationRBAC        = config.AuthorizationRBAC
	AuthorizationWebhook     = config.AuthorizationWebhook
	AuthorizationAlwaysAllow = config.AuthorizationAlwaysAllow
	AuthorizationAlwaysDeny  = config.AuthorizationAlwaysDeny
)
