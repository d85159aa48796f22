// Package config holds the options by which an operator configures a server, and the error for a mistake in them.
// Package annex has these types under the same names. They are in a package of their own so that internal packages
// can read them without importing package annex.
package config

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/store/driver"
)

// Options configure a server. The zero value of a field means its default. A negative number means none: nothing is
// kept, or nothing is bounded. Where none makes no sense, as for timeouts, a negative number is refused. The zero
// Options listen on no port and need a DataDir.
type Options struct {
	// DataDir holds the certificates, the administrator's kubeconfig and the objects of storages without a directory
	// of their own. A missing directory is created. Without a DataDir, which storages in memory and in etcd allow,
	// certificates stay in memory and no kubeconfig is written. One server at a time uses a data directory.
	DataDir string
	// Storage keeps the objects: embedded.Dir, files.Dir, memory.Storage, etcd.Cluster, or another driver. annex.New
	// refuses nil; programs of package program use embedded.Dir("") then.
	Storage driver.Driver
	// StorageOf overrides the storage of single resources, including namespaces. It takes precedence over a kind's
	// StoredIn. Existing objects are not moved from one storage to another.
	StorageOf map[schema.GroupResource]driver.Driver
	// Drivers replace the drivers of the same name that kinds request with StoredIn, for example to set where such a
	// storage is. They keep no resource on their own.
	Drivers []driver.Driver
	// StorageMediaTypeOf sets the media type in which the objects of single resources are stored: application/json or
	// application/vnd.kubernetes.protobuf. It takes precedence over a kind's StoredMediaType, which documents the
	// default. Existing objects stay readable, and change their media type at the next write.
	StorageMediaTypeOf map[schema.GroupResource]string

	// Listen is the address for HTTPS: an IP address and a port, such as 127.0.0.1:8443. Port 0 picks a free port,
	// and an address without an IP address listens on all interfaces. Empty does not listen.
	Listen string
	// ListenInsecure is the address for plain HTTP, with the same authentication and authorization. Empty does not
	// listen.
	ListenInsecure string

	// ListenUnix is the path of a Unix socket for plain HTTP, with the same authentication and authorization. Only
	// the process's user and root may connect to it. Empty does not listen.
	ListenUnix string

	// TLSCertFile and TLSPrivateKeyFile replace the serving certificate that the server makes. They are read again
	// when they change.
	TLSCertFile, TLSPrivateKeyFile string
	// QueryPrefix is the path at which queries are served, such as /query; an empty string serves none. Nil is the
	// developer's choice, by default /query.
	QueryPrefix *string
	// Serving configures how connections are served.
	Serving ServingOptions
	// HistoryOf sets how long the revisions of a resource's objects are kept for clients, instead of the History of its kind.
	HistoryOf map[schema.GroupResource]History
	// HistoryOfSecrets lets callers who may get a Secret read its history. By default the server shows it to no caller.
	HistoryOfSecrets bool
	// ClientCAFile is a file of authorities whose client certificates are accepted, in addition to the server's own
	// authority, or in place of the authorities of its cluster.
	ClientCAFile string
	// ClientCA has the certificates, in PEM, of further authorities whose client certificates a standalone server accepts. Programs
	// that make such an authority themselves need no file for it. Empty means none.
	ClientCA []byte
	// TokenAuthFile is a CSV file of bearer tokens: token,user,uid,"group1,group2". It is refused if every user of
	// the machine may read it.
	TokenAuthFile string
	// AuthenticationConfigFile is an AuthenticationConfiguration of apiserver.config.k8s.io/v1 or v1beta1. It lists
	// the issuers whose JSON web tokens are accepted, how their claims become users, and the paths that are open to
	// anonymous requests, which are health and version by default. It is read again when it changes; an invalid file
	// is an error at start, and ignored later. It is for a server that stands alone.
	AuthenticationConfigFile string
	// TokenWebhook authenticates tokens that no other authenticator accepts.
	TokenWebhook TokenWebhookOptions
	// RequestHeader sets whose headers about callers are trusted: those of a proxy in front, or of an aggregated
	// server's cluster.
	RequestHeader RequestHeaderOptions
	// Console serves a page at /console/, on which people see and edit objects. Nil turns it on for a server that
	// stands alone and listens on loopback addresses only, unless Server.Console turns it off, and off for other
	// servers. The page itself needs no credentials, the objects that it shows do. It is for a server that stands
	// alone.
	Console *bool
	// SwaggerUI serves a page at /swagger-ui/, which shows the OpenAPI documents. Nil has the same meaning as for
	// Console.
	SwaggerUI *bool
	// ConsoleLink lets browsers sign in at the console by one-time links. A program prints one for the administrator when it
	// starts, and callers make others for themselves with the verb console. Nil turns links on where the console is served,
	// and the printed one only if the server listens on loopback addresses only and standard output is a terminal, because
	// any reader of the output may use the link first, within five minutes. True prints it in any case; false turns links off.
	ConsoleLink *bool
	// AllowLocalhost treats callers without credentials as the administrator if they are programs on this machine:
	// the connection comes from a loopback address, the request is addressed to a loopback address or to localhost,
	// and it has neither an Origin nor a proxy's header. Every user and every program of the machine is then an
	// administrator, and so are callers behind a local proxy that adds no header. It is meant for development of a
	// server that stands alone.
	AllowLocalhost bool

	// ServiceAccounts configures the tokens of service accounts, if the server stands alone.
	ServiceAccounts ServiceAccountOptions
	// Kubeconfig configures the administrator's kubeconfig, if the server stands alone.
	Kubeconfig KubeconfigOptions
	// APIAudiences are the audiences of the server: a service account's token without any of them is refused. If
	// empty, they are ServiceAccounts.Issuers.
	APIAudiences []string

	// Login configures how people sign in, if the server stands alone.
	Login LoginOptions

	// AuthorizationModes authorize callers after Server.Authorizer, if the server stands alone: each mode decides
	// about requests on which the modes before it have no opinion. Nil means AuthorizationRBAC.
	AuthorizationModes []AuthorizationMode
	// AuthorizationWebhook configures the mode of that name.
	AuthorizationWebhook AuthorizationWebhookOptions
	// AuthorizationConfigFile is an AuthorizationConfiguration of apiserver.config.k8s.io/v1 or v1beta1, in place of
	// AuthorizationModes: a chain of RBAC, AlwaysAllow, AlwaysDeny and any number of webhooks, with conditions for
	// each. It is read again when it changes; an invalid file is an error at start, and ignored later.
	AuthorizationConfigFile string
	// PriorityAndFairness queues requests by flow schemas and priority levels, which share the sum of
	// Serving.MaxRequestsInFlight and MaxMutatingRequestsInFlight, in place of these two limits. Nil turns it on for
	// a control plane, and in a cluster if the server may read the cluster's flow schemas and priority levels, which
	// it then uses; it is off for other servers that stand alone. A server that stands alone then serves
	// flowcontrol.apiserver.k8s.io/v1, and starts with the flow schemas and priority levels of a kube-apiserver.
	PriorityAndFairness *bool
	// ControlPlane configures the control plane.
	ControlPlane ControlPlaneOptions
	// Admission configures the admission plugins for writes and connections.
	Admission AdmissionOptions
	// Audit configures the audit.
	Audit AuditOptions
	// AccessLog configures the access log.
	AccessLog AccessLogOptions

	// TracingConfigFile is a TracingConfiguration of apiserver.config.k8s.io/v1, with the share of requests whose
	// spans are recorded, and the collector that gets them, by OTLP over gRPC. Callers in system:masters and
	// system:monitoring may ask for more spans. Empty records none.
	TracingConfigFile string

	// EncryptionConfigFile is an EncryptionConfiguration of apiserver.config.k8s.io/v1, with the resources that are
	// stored encrypted, the providers and the keys. A file with keys is refused if every user of the machine may read
	// it. If empty, objects are stored in plain text.
	EncryptionConfigFile string
	// EncryptionConfigReload reads the file again when it changes.
	EncryptionConfigReload bool
	// ServeDespiteUndecodable serves although some stored objects cannot be decrypted with the file, or cannot be
	// decoded because the server no longer has their version. Otherwise New refuses to open such a storage. These
	// objects can be deleted, but not read.
	ServeDespiteUndecodable bool

	// HistoryAge and HistoryRevisions set how much history stays readable, for watches that resume and for lists at
	// an exact revision: the revisions younger than HistoryAge (0 means 5 minutes) and the last HistoryRevisions (0
	// means 10,000), but never more than HistoryBytes of encoded objects (0 means 256 MiB). A negative HistoryAge or
	// HistoryRevisions keeps nothing for that reason; a negative HistoryBytes sets no bound.
	HistoryAge       time.Duration
	HistoryRevisions int64
	HistoryBytes     int64

	// ObjectCacheSize bounds the decoded objects that each embedded or memory storage keeps beside the encoded
	// objects, in bytes, by an estimate; 0 means 256 MiB, a negative value keeps none. Other objects are decoded at
	// each read.
	ObjectCacheSize int64
	// ValueCacheSize bounds the encoded objects that each embedded or memory storage keeps in memory, in bytes; 0
	// means 1 GiB, a negative value keeps none. When it is full, the objects that were written longest ago are read
	// from disk instead; objects of 64 KiB and more share a sixteenth of it.
	ValueCacheSize int64
	// MemoryBudget bounds the bytes that all requests may need at once, by an upper estimate, for bodies that are
	// decoded and lists that are read and encoded; no caller is exempt. A request that does not fit waits. It gets
	// 429 with Retry-After if too many requests wait, or after 15 seconds. A request larger than the whole budget
	// runs exclusively. Users take turns, and a single user gets at most half; an eighth is reserved for members of
	// system:masters, the server's own clients and leases. A quarter is for bytes that clients have yet to send or to
	// read. 0 means a quarter of the memory that the process may use, 1 GiB at most: the smallest of GOMEMLIMIT, the
	// container's limit and the machine's memory. The budget is at least 64 MiB; a negative value sets no bound.
	MemoryBudget int64

	// RequestTimeout bounds every request but watches, and the time for the body to arrive and for the response to be
	// read; 0 means one minute. A write that takes longer, for example in a hook, is answered with 504.
	RequestTimeout time.Duration
	// ShutdownTimeout bounds how long a shutdown waits for requests in flight, for watches, and for connections to
	// become idle; 0 means 10 seconds.
	ShutdownTimeout time.Duration
	// ShutdownDelay is how long a stopping server still answers requests while /readyz already
	// fails, so that load balancers stop sending requests before it stops; 0 means no delay. ShutdownTimeout begins
	// after it.
	ShutdownDelay time.Duration

	// Controllers selects the Server.Controllers and the control plane's controllers that the server runs, in the syntax of
	// kube-controller-manager's flag: * is all controllers that run by default, name is one controller, and -name, beside *,
	// excludes one. The word all is all controllers, also those of deployments, jobs and other workloads, which do not run
	// by default. Nil means *, an empty list runs none.
	Controllers []string

	// Clock is for tests, which pass a clock of k8s.io/utils/clock/testing and step it: the expiry of objects with a TTL,
	// grace periods, the age of the history, the validity of service accounts' tokens, and sessions of people who signed
	// in. Certificates, the deadlines of requests, and the times in the metadata of objects are those of the machine. Nil
	// is the machine's clock. The clock must not go back.
	Clock clock.WithTickerAndDelayedExecution

	// UnrestrictedUpdate accepts updates without a resource version, which overwrite the stored object
	// unconditionally. It is meant for debugging.
	UnrestrictedUpdate bool

	// DisableFastPath leaves all requests to upstream's handlers. The answers are the same, but take several times the
	// processor time and memory. It is meant for operators who suspect the fast path of a mistake. The metric
	// annex_fast_path_declined_total counts the requests that the fast path leaves to upstream by itself.
	DisableFastPath bool

	// Aggregated makes the server a part of a cluster, whose kube-apiserver sends it the requests for its groups. The
	// server asks the cluster to authenticate and authorize callers, and takes namespaces, webhooks and policies from
	// it. It then has no namespaces of its own and no administrator: DataDir gets no kubeconfig, and ClientConfig is
	// the process's. TokenAuthFile cannot be used, and ClientCAFile replaces the cluster's authorities.
	//
	// If the cluster cannot be reached, or does not permit something, the server does not end: it is alive but not
	// ready, lists the missing parts at /readyz, and refuses writes with 503 until they are there.
	Aggregated bool
	// Cluster configures how the cluster is reached and used, if Aggregated; otherwise any field that is not zero is
	// a mistake.
	Cluster ClusterOptions
	// CertDir is the directory of the certificates that the server makes, in place of cert in DataDir. A pair
	// apiserver.crt and apiserver.key in it is used as if TLSCertFile and TLSPrivateKeyFile named it.
	CertDir string
	// SelfCertify makes an aggregated server issue its own serving certificate, and keep the certificate and the
	// cluster's copies of its authority up to date.
	SelfCertify SelfCertifyOptions
}

// SelfCertifyOptions configure how an aggregated server keeps its serving certificate. The certificate is in the
// Secret SERVICE-serving of the server's namespace, which all replicas use and the holder of a Lease of the same name
// renews; its authority is in the caBundle of the server's APIServices. The server creates none of these objects; the
// verb manifests writes them. The zero value keeps no certificate.
type SelfCertifyOptions struct {
	Enabled bool
	// ServiceName and ServiceNamespace identify the service to which the APIServices point. They default to the
	// server's name and the namespace of its pod. An APIService that points elsewhere is left alone.
	ServiceName, ServiceNamespace string
	// Lifetime is the lifetime of a serving certificate; 0 means 720 hours, the minimum is 30 seconds. It is renewed
	// when a third is left; its authority lives four times as long.
	Lifetime time.Duration
	// Workload is the object that runs the server, such as deployments/NAME or statefulsets/NAME. When it is scaled
	// to zero or deleted, a server that stops removes itself from its APIServices, so that they do not block the
	// deletion of namespaces; it adds itself again when it is ready. Without a Workload, this is left to the
	// operator.
	Workload string
}

// ClusterOptions configure how an aggregated server reaches and uses its cluster, as upstream's flags of aggregated
// servers do. The zero value suits a pod with a service account.
type ClusterOptions struct {
	// Kubeconfig is the kubeconfig of the cluster; if empty, the server uses the service account of its pod.
	Kubeconfig string
	// AuthenticationKubeconfig and AuthorizationKubeconfig are used in its place: the first for authentication, that
	// is TokenReviews and the ConfigMap extension-apiserver-authentication, the second for SubjectAccessReviews.
	AuthenticationKubeconfig string
	AuthorizationKubeconfig  string

	// SkipLookup does not read that ConfigMap: client certificates are then verified by Options.ClientCAFile alone,
	// and request headers by Options.RequestHeader.ClientCAFile.
	SkipLookup bool
	// TolerateLookupFailure makes the server ready, and lets it accept writes, although it cannot read the ConfigMap.
	// Callers who can be authenticated only through it are anonymous or refused meanwhile.
	TolerateLookupFailure bool

	// TokenCacheTTL, AuthorizedCacheTTL and UnauthorizedCacheTTL are how long the cluster's answers about tokens and
	// permissions are cached; 0 means 10 seconds, a negative value disables the cache.
	TokenCacheTTL        time.Duration
	AuthorizedCacheTTL   time.Duration
	UnauthorizedCacheTTL time.Duration
	// AlwaysAllowPaths are open to anonymous requests; a path that ends in * is a prefix. Nil means health and
	// version, an empty list means none.
	AlwaysAllowPaths []string
	// LeaseNamespace is the namespace of the cluster's Lease NAME-controllers, by which one replica is elected to
	// run Server.Controllers. If empty, it is the pod's namespace. Without either, each replica runs the
	// controllers.
	LeaseNamespace string
}
