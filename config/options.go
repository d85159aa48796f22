// Package config says how a server runs, as its operator decides. Package annex has these
// types under the same names; they are here so that all rooms can read them.
package config

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/store/driver"
)

// Options say how a server runs. The zero value of a field means its default, and a
// negative number none: nothing is kept, or nothing bounded. Where none makes no sense, as
// with timeouts, a negative number is refused. The zero Options listen on no port and need a
// DataDir.
type Options struct {
	// DataDir keeps certificates, the administrator's kubeconfig and the objects of
	// storages that are given no directory of their own. It is made if missing. Without
	// one, which storages in memory and in etcd allow, certificates are kept in memory and
	// no kubeconfig is written. One server at a time uses a data directory.
	DataDir string
	// Storage keeps the objects: embedded.Dir, files.Dir, memory.Storage, etcd.Cluster, or
	// a driver of one's own. annex.New refuses nil; programs of package program use embedded.Dir("") then.
	Storage driver.Driver
	// StorageOf says of single resources, namespaces too, that another storage keeps
	// them. It wins over what a kind says with StoredIn. Objects are not moved from one
	// storage to another.
	StorageOf map[schema.GroupResource]driver.Driver
	// Drivers are used in place of drivers of the same name that kinds ask for with
	// StoredIn. They say where such a storage is; on their own, they keep nothing.
	Drivers []driver.Driver
	// StorageMediaTypeOf names the media types that objects of single resources are
	// stored in: application/json or application/vnd.kubernetes.protobuf. It wins over
	// what a kind says with StoredMediaType, where the default is documented. Objects
	// that are there already stay readable, and change over when they are next written.
	StorageMediaTypeOf map[schema.GroupResource]string

	// Listen is the address of HTTPS: an IP address and a port, such as 127.0.0.1:8443.
	// Port 0 picks a free one, and no IP address listens on all. Empty is not listened on.
	Listen string
	// ListenInsecure is the address of plain HTTP, which passes the same authentication
	// and authorization. Empty is not listened on.
	ListenInsecure string

	// ListenUnix is the path of a Unix socket for plain HTTP, with the same authentication and
	// authorization. The user of the process and root may connect to it. Empty is none.
	ListenUnix string

	// TLSCertFile and TLSPrivateKeyFile replace the serving certificate that the
	// server makes for itself. They are read again when they change.
	TLSCertFile, TLSPrivateKeyFile string
	// QueryPrefix is the path at which queries are answered, such as /query; empty answers none.
	// Nil is what the server says, which is /query unless its developer has moved it.
	QueryPrefix *string
	// Serving says how connections are answered.
	Serving ServingOptions
	// ClientCAFile holds authorities whose client certificates are accepted besides
	// those of the server's own authority, or instead of those that its cluster names.
	ClientCAFile string
	// TokenAuthFile is a CSV file of bearer tokens: token,user,uid,"group1,group2".
	// It is refused if every user of the machine may read it.
	TokenAuthFile string
	// AuthenticationConfigFile is an AuthenticationConfiguration of
	// apiserver.config.k8s.io/v1 or v1beta1: the issuers whose JSON web tokens are accepted, how
	// their claims become users, and which paths are open to anonymous requests, which
	// without it are health and the version. It is read again when it changes; a file that is wrong is refused
	// at start, and later changes nothing. It is for a server that stands alone.
	AuthenticationConfigFile string
	// TokenWebhook is asked about tokens that nothing else knows.
	TokenWebhook TokenWebhookOptions
	// RequestHeader says whose word about callers is taken: that of a proxy in front, or of an
	// aggregated server's cluster.
	RequestHeader RequestHeaderOptions
	// Console serves a page at /console/, with which people see and edit objects. Nil is true of a
	// server that stands alone and listens on loopback addresses only, unless Server.Console says that
	// there is none, and false of others. The page is open, what it shows is not. It is for a server
	// that stands alone.
	Console *bool
	// SwaggerUI serves a page at /swagger-ui/, which shows the OpenAPI documents. Nil is as Console.
	SwaggerUI *bool
	// AllowLocalhost makes callers without credentials the administrator if they are programs
	// on this machine: the connection comes from a loopback address, the request is to one or to
	// localhost, and it has no Origin and no header of a proxy. Every user of the machine, and every
	// program on it, is an administrator then, also by way of a proxy that adds no header. It is
	// meant for development, of a server that stands alone.
	AllowLocalhost bool

	// ServiceAccounts say how service accounts prove who they are, if the server stands alone.
	ServiceAccounts ServiceAccountOptions
	// Kubeconfig says what the administrator's kubeconfig holds, if the server stands alone.
	Kubeconfig KubeconfigOptions
	// APIAudiences are what the server calls itself: a token of a service account that is for
	// none of them is refused. They are ServiceAccounts.Issuers if there are none.
	APIAudiences []string

	// Login says how people sign in, if the server stands alone.
	Login LoginOptions

	// AuthorizationModes decide what callers may do, after Server.Authorizer, if the server
	// stands alone: each is asked that those before it have no opinion on. Nil is
	// AuthorizationRBAC.
	AuthorizationModes []AuthorizationMode
	// AuthorizationWebhook is what the mode of that name asks.
	AuthorizationWebhook AuthorizationWebhookOptions
	// AuthorizationConfigFile is an AuthorizationConfiguration of apiserver.config.k8s.io/v1 or
	// v1beta1, instead of AuthorizationModes: a chain of RBAC, AlwaysAllow, AlwaysDeny and any
	// number of webhooks, with conditions on what each is asked. It is read again when it changes; a
	// file that is wrong is refused at start, and later changes nothing.
	AuthorizationConfigFile string
	// PriorityAndFairness queues requests by flow schemas and priority levels, which share the sum of
	// Serving.MaxRequestsInFlight and MaxMutatingRequestsInFlight, instead of counting them. Nil is
	// true in a cluster, whose flow schemas and priority levels they are, if they may be read, true of
	// a control plane, and false of any other server that stands alone. One that stands alone serves
	// flowcontrol.apiserver.k8s.io/v1 then, and begins with those of a kube-apiserver.
	PriorityAndFairness *bool
	// ControlPlane says what of a control plane there is.
	ControlPlane ControlPlaneOptions
	// Admission says which plugins decide on writes and connections.
	Admission AdmissionOptions
	// Audit says what is recorded of requests, and where.
	Audit AuditOptions
	// AccessLog says where a line is written for each request.
	AccessLog AccessLogOptions

	// TracingConfigFile is a TracingConfiguration of apiserver.config.k8s.io/v1, which says
	// how many requests spans are recorded of, and which collector they are sent to, by OTLP over
	// gRPC. Callers in system:masters and system:monitoring may ask for more. Empty records none.
	TracingConfigFile string

	// EncryptionConfigFile is an EncryptionConfiguration of
	// apiserver.config.k8s.io/v1, which says which resources are stored encrypted, by
	// which providers and with which keys. A file that holds keys must not be open to
	// others. Without one, objects are stored in plain text.
	EncryptionConfigFile string
	// EncryptionConfigReload has the file read again when it changes.
	EncryptionConfigReload bool
	// ServeDespiteUndecodable serves although stored objects cannot be decrypted with the
	// file, or not be decoded because the server does not have their version any more,
	// which New refuses otherwise. They can be deleted then, unread.
	ServeDespiteUndecodable bool

	// HistoryAge and HistoryRevisions say which past stays readable, for watches
	// that resume and lists at a revision: what is younger than HistoryAge (5 minutes if
	// 0) or among the last HistoryRevisions (10,000 if 0), but never more than
	// HistoryBytes of encoded objects (256 MiB if 0). Negative keeps nothing for its age,
	// or nothing for its number, or has no bound of bytes.
	HistoryAge       time.Duration
	HistoryRevisions int64
	HistoryBytes     int64

	// ObjectCacheSize bounds the decoded objects that embedded storages and those in memory keep beside
	// the encoded bytes of all objects, in bytes by an estimate and for each of them;
	// 256 MiB if 0, none if negative. Others are decoded each time they are read.
	ObjectCacheSize int64
	// ValueCacheSize bounds the encoded bytes of objects that embedded storages and those in memory keep
	// in memory; 1 GiB if 0, none if negative. Those of the objects that were written
	// longest ago are then read from disk; those of 64 KiB and more share a sixteenth of it.
	ValueCacheSize int64
	// MemoryBudget is how many bytes requests may need at once, by an estimate from above,
	// for bodies that are decoded and for lists that are read and encoded; no caller is
	// exempt. A request that does not fit beside others waits, and gets 429 with
	// Retry-After when too many wait or it has waited for 15 seconds; a request that needs more
	// than the whole is served alone. Users take turns, and one user alone gets half; an eighth is reserved for members of
	// system:masters, the server's own clients and leases. A quarter is for bytes that clients have to send or to read. 0 is a
	// quarter of what the process may use, 1 GiB at most: of
	// GOMEMLIMIT, its container's limit and the machine's memory the smallest. Negative
	// has no bounds; there are 64 MiB at least.
	MemoryBudget int64

	// RequestTimeout bounds every request but watches, and with it how long a body
	// may take to arrive and an answer to be read; one minute if 0. A write that takes
	// longer, in a hook say, is answered with 504.
	RequestTimeout time.Duration
	// ShutdownTimeout bounds how long a shutdown waits for requests in progress,
	// watches, and connections to become idle; 10 seconds if 0.
	ShutdownTimeout time.Duration
	// ShutdownDelay is how long a server that is told to stop still answers as before,
	// while /readyz fails, so that load balancers have stopped sending it requests when it stops;
	// not at all if 0. ShutdownTimeout begins after it.
	ShutdownDelay time.Duration

	// Controllers says which of Server.Controllers the server runs itself, as
	// kube-controller-manager's flag does: * is all, name is that one, -name is all but
	// that one, if * is there. Nil is all, an empty list is none.
	Controllers []string

	// UnrestrictedUpdate accepts updates without a resource version, which
	// overwrite whatever is stored. It is meant for debugging.
	UnrestrictedUpdate bool

	// Aggregated makes the server a part of a cluster, whose kube-apiserver sends it the
	// requests for its groups. The cluster is asked who callers are and
	// what they may do, which namespaces there are, and which webhooks and policies writes
	// have to pass. The server then keeps no namespaces of its own, and has no
	// administrator: DataDir gets no kubeconfig, and ClientConfig is that of the process.
	// TokenAuthFile cannot be used, and ClientCAFile replaces what the cluster says.
	//
	// A cluster that cannot be reached, or does not permit something, ends nothing: the
	// server is alive but not ready, says at /readyz what is missing, and refuses writes
	// with 503 until it is there.
	Aggregated bool
	// Cluster says how the cluster is reached and what is taken from it, if Aggregated; a field
	// that is not zero is a mistake otherwise.
	Cluster ClusterOptions
	// CertDir keeps the certificates that the server makes, instead of cert in DataDir. A
	// pair apiserver.crt and apiserver.key in it is used as if TLSCertFile and
	// TLSPrivateKeyFile named it.
	CertDir string
	// SelfCertify has an aggregated server make its serving certificate and keep it, and
	// what its cluster knows of it, up to date.
	SelfCertify SelfCertifyOptions
}

// SelfCertifyOptions say how an aggregated server keeps its serving certificate: in a
// Secret SERVICE-serving of its namespace, which all replicas use and the one that holds a
// Lease of the same name renews, and in the caBundle of its APIServices. All of them exist;
// manifests writes them. The zero value keeps none.
type SelfCertifyOptions struct {
	Enabled bool
	// ServiceName and ServiceNamespace are the service that the APIServices point to; by
	// default the server's name, and the namespace of its pod. An APIService that points
	// elsewhere is left alone.
	ServiceName, ServiceNamespace string
	// Lifetime is that of a serving certificate, 720 hours if 0, at least 30 seconds. It
	// is renewed when a third is left; its authority lives four times as long.
	Lifetime time.Duration
	// Workload is what runs the server, as in deployments/NAME or statefulsets/NAME. When
	// that is scaled to nothing or deleted, a server that stops takes itself out of its
	// APIServices, so that they are in the way of no deletion of a namespace, and back in
	// when it is ready again. Without it, that is left to the operator.
	Workload string
}

// ClusterOptions say how an aggregated server reaches its cluster and what it takes from
// there. The zero value is for a pod with a service account. They are those of upstream's
// aggregated servers.
type ClusterOptions struct {
	// Kubeconfig is the way to the cluster; in a pod, it is found if this is empty.
	Kubeconfig string
	// AuthenticationKubeconfig and AuthorizationKubeconfig are used instead for
	// authentication, that is TokenReviews and the ConfigMap
	// extension-apiserver-authentication, and for SubjectAccessReviews.
	AuthenticationKubeconfig string
	AuthorizationKubeconfig  string

	// SkipLookup does not read that ConfigMap: client certificates are believed by
	// Options.ClientCAFile alone, and request headers by
	// Options.RequestHeader.ClientCAFile.
	SkipLookup bool
	// TolerateLookupFailure is ready, and takes writes, although the ConfigMap cannot be
	// read: callers whom only it would make known are anonymous or refused meanwhile.
	TolerateLookupFailure bool

	// TokenCacheTTL, AuthorizedCacheTTL and UnauthorizedCacheTTL say how long answers of
	// the cluster are used again: about a token, and about a caller's permission; 10
	// seconds if 0, not at all if negative.
	TokenCacheTTL        time.Duration
	AuthorizedCacheTTL   time.Duration
	UnauthorizedCacheTTL time.Duration
	// AlwaysAllowPaths are open to anonymous requests; one that ends in * stands for all that begin
	// so. Nil is health and version, an empty list is none.
	AlwaysAllowPaths []string
	// LeaseNamespace is where replicas agree which of them runs Server.Controllers: by the
	// cluster's Lease NAME-controllers in that namespace, which is the pod's if this is
	// empty. Without either, each replica runs them.
	LeaseNamespace string
}
