package annex

import (
	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/store/driver"
)

type (
	// Options configure a running server.
	Options = config.Options
	// ClusterOptions configure an aggregated server's connection to its cluster, and its use of the cluster's
	// services.
	ClusterOptions = config.ClusterOptions
	// SelfCertifyOptions configure the serving certificate that an aggregated server keeps in its cluster.
	SelfCertifyOptions = config.SelfCertifyOptions
	// ControlPlaneOptions are the operator's options of a control plane.
	ControlPlaneOptions = config.ControlPlaneOptions
	// AdmissionOptions enable, disable and configure admission plugins.
	AdmissionOptions = config.AdmissionOptions
	// AuditOptions configure the audit, as in kube-apiserver.
	AuditOptions = config.AuditOptions
	// AuditLogOptions configure the file of audit events.
	AuditLogOptions = config.AuditLogOptions
	// AuditWebhookOptions configure the server to which audit events are sent.
	AuditWebhookOptions = config.AuditWebhookOptions
	// AuditBatchOptions configure the batches of audit events.
	AuditBatchOptions = config.AuditBatchOptions
	// AuditTruncateOptions bound the size of audit events.
	AuditTruncateOptions = config.AuditTruncateOptions
	// AccessLogOptions configure the access log, with one line for each request.
	AccessLogOptions = config.AccessLogOptions
	// ServingOptions configure connections and request handling.
	ServingOptions = config.ServingOptions
	// SNICertificate is a certificate for some names.
	SNICertificate = config.SNICertificate
	// KubeconfigOptions configure the administrator's kubeconfig.
	KubeconfigOptions = config.KubeconfigOptions
	// ServiceAccountOptions configure the signing and verification of service account tokens.
	ServiceAccountOptions = config.ServiceAccountOptions
	// LoginOptions configure the ways to sign in.
	LoginOptions = config.LoginOptions
	// RotationOptions configure the rotation of a log file.
	RotationOptions = config.RotationOptions
	// TokenWebhookOptions configure a webhook that authenticates bearer tokens.
	TokenWebhookOptions = config.TokenWebhookOptions
	// RequestHeaderOptions configure the authenticating proxy whose headers identify callers.
	RequestHeaderOptions = config.RequestHeaderOptions
	// AuthorizationWebhookOptions configure a webhook that authorizes requests.
	AuthorizationWebhookOptions = config.AuthorizationWebhookOptions
	// AuthorizationMode is an authorization mode of a standalone server.
	AuthorizationMode = config.AuthorizationMode
	// Storage is a driver of a storage for objects: embedded.Dir, files.Dir, memory.Storage, etcd.Cluster, or a
	// custom driver.
	Storage = driver.Driver
)

// The authorization modes.
const (
	AuthorizationRBAC        = config.AuthorizationRBAC
	AuthorizationWebhook     = config.AuthorizationWebhook
	AuthorizationAlwaysAllow = config.AuthorizationAlwaysAllow
	AuthorizationAlwaysDeny  = config.AuthorizationAlwaysDeny
)
