package cli

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/cluster"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// storageOptions are the flags that choose a storage for each resource.
type storageOptions struct {
	storage          storageName
	filesDir         string
	storageOf, media map[string]string
	etcd             etcd.Options
	dataDir          *pflag.Flag
}

// storageName is the value of --storage, and whether it was given.
type storageName struct {
	name  string
	given bool
}

func (s *storageName) String() string { return s.name }
func (s *storageName) Type() string   { return "string" }

// Set implements pflag.Value.
func (s *storageName) Set(name string) error {
	s.name, s.given = name, true
	return nil
}

// drivers returns the drivers that --storage can name.
func (s *storageOptions) drivers() []driver.Driver {
	return []driver.Driver{embedded.Dir(""), files.Dir(s.filesDir), memory.Storage(), etcd.Cluster(s.etcd)}
}

// driver returns the driver with the given name, from --storage's drivers and those of the definition.
func (s *storageOptions) driver(name string, definition *define.Server) (driver.Driver, error) {
	for _, d := range s.drivers() {
		if d.Name() == name {
			return d, nil
		}
	}
	for _, k := range definition.Kinds() {
		if k.Storage != nil && k.Storage.Name() == name {
			return k.Storage, nil
		}
	}
	names := namesOf(s.drivers())
	last := len(names) - 1
	return nil, fmt.Errorf("storage %q: choose %s or %s", name, strings.Join(names[:last], ", "), names[last])
}

func namesOf(drivers []driver.Driver) []string {
	var names []string
	for _, d := range drivers {
		names = append(names, d.Name())
	}
	return names
}

// main returns the storage for all resources without a storage of their own. As in upstream's servers, that is etcd
// if an etcd server is given, unless it is given for single resources only.
func (s *storageOptions) main(aggregated bool) storageName {
	single := !aggregated && slices.Contains(slices.Collect(maps.Values(s.storageOf)), etcd.Name)
	if !s.storage.given && len(s.etcd.Endpoints) > 0 && !single {
		return storageName{etcd.Name, true}
	}
	return s.storage
}

// complete sets the options from the storage flags. It returns mistakes in several flags as one error.
func (s *storageOptions) complete(o *config.Options, definition *define.Server) error {
	if main := s.main(o.Aggregated); main.given {
		var err error
		if o.Storage, err = s.driver(main.name, definition); err != nil {
			return err
		}
	}
	if s.filesDir != "" {
		o.Drivers = append(o.Drivers, files.Dir(s.filesDir))
	}
	if len(s.etcd.Endpoints) > 0 {
		o.Drivers = append(o.Drivers, etcd.Cluster(s.etcd))
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.storageOf)) {
		d, err := s.driver(s.storageOf[name], definition)
		if err != nil {
			errs = append(errs, fmt.Errorf("--storage-of %s=%s: %w", name, s.storageOf[name], err))
			continue
		}
		if o.StorageOf == nil {
			o.StorageOf = map[schema.GroupResource]driver.Driver{}
		}
		o.StorageOf[schema.ParseGroupResource(name)] = d
	}
	for name, mediaType := range s.media {
		if o.StorageMediaTypeOf == nil {
			o.StorageMediaTypeOf = map[schema.GroupResource]string{}
		}
		o.StorageMediaTypeOf[schema.ParseGroupResource(name)] = mediaType
	}
	return errors.Join(errs...)
}

// storageFlags declares the storage flags.
func storageFlags(flags *pflag.FlagSet, s *storageOptions, options *config.Options) {
	flags.StringVar(&options.DataDir, "data-dir", "data", "directory for certificates, kubeconfig and stored objects; only one server "+
		"at a time can use it")
	s.dataDir = flags.Lookup("data-dir")
	s.storage.name = embedded.Name
	flags.Var(&s.storage, "storage", "storage of the objects: embedded (in the data directory), files (YAML files that users may "+
		"edit), memory (lost when the server stops) or etcd")
	flags.StringVar(&s.filesDir, "files-dir", "", "directory of the storage named files (default: objects in the data directory)")
	flags.StringToStringVar(&s.storageOf, "storage-of", nil, "storages for individual resources, as in leases.example.com=memory")
	flags.StringToStringVar(&s.media, "storage-media-type-of", nil, "media types of stored objects for individual resources, as in "+
		"leases.example.com=application/json (default: JSON, unless the program selects protobuf)")
	etcdFlags(flags, &s.etcd, "")
	flags.StringVar(
		&options.EncryptionConfigFile,
		"encryption-provider-config",
		"",
		"file with the providers that encrypt stored resources (EncryptionConfiguration)",
	)
}

// etcdFlags declares the flags of an etcd client. The prefix distinguishes the flags of two clients.
func etcdFlags(flags *pflag.FlagSet, o *etcd.Options, prefix string) {
	which := "etcd's"
	if prefix != "" {
		which = "its"
	}
	flags.StringSliceVar(&o.Endpoints, prefix+"etcd-servers", nil, "URLs of the etcd members, for the storage etcd")
	flags.StringVar(&o.Prefix, prefix+"etcd-prefix", etcd.DefaultPrefix, "prefix of all keys in etcd")
	flags.StringVar(&o.CAFile, prefix+"etcd-cafile", "", "authorities of "+which+" certificates (PEM; default: the system's)")
	flags.StringVar(&o.CertFile, prefix+"etcd-certfile", "", "client certificate for etcd (PEM)")
	flags.StringVar(&o.KeyFile, prefix+"etcd-keyfile", "", "key of --"+prefix+"etcd-certfile (PEM)")
}

// resolve makes the plan of a definition with these flags. A server without state on disk has no data directory by
// default.
func (s *storageOptions) resolve(definition *definition.Definition, options config.Options) (*plan.Plan, error) {
	if err := s.complete(&options, definition.Server); err != nil {
		return nil, usage(err)
	}
	p, err := plan.Resolve(definition, options, embedded.Dir(""))
	if err == nil && p.KeepsNothing() && !s.dataDir.Changed {
		options.DataDir = ""
		p, err = plan.Resolve(definition, options, embedded.Dir(""))
	}
	return p, usage(err)
}

// everything makes the plan of a storage that keeps all objects of a definition.
func (s *storageOptions) everything(definition *define.Server, options config.Options) (*plan.Plan, error) {
	if err := s.complete(&options, definition); err != nil {
		return nil, usage(err)
	}
	p, err := plan.Everything(definition, options)
	return p, usage(err)
}

// addressOptions are the flags of the listening addresses.
type addressOptions struct {
	bind             string
	secure, insecure int
	unix             string
}

func (a *addressOptions) declare(flags *pflag.FlagSet) {
	flags.StringVar(
		&a.bind,
		"bind-address",
		"",
		"IP address to listen on; 0.0.0.0 selects all (default: 127.0.0.1, or 0.0.0.0 in a pod of a cluster)",
	)
	flags.IntVar(&a.secure, "secure-port", 8443, "HTTPS port; 0 picks a free one")
	flags.IntVar(&a.insecure, "insecure-port", 0, "plain HTTP port, with the same authentication and authorization; 0 disables it")
	flags.StringVar(&a.unix, "unix-socket", "", "path of a Unix socket for plain HTTP, with the same authentication and authorization; "+
		"only the user of the process can open the socket")
}

// complete sets the addresses in the options.
func (a *addressOptions) complete(o *config.Options) error {
	bind := a.bind
	if bind == "" {
		bind = "127.0.0.1"
		if o.Aggregated && cluster.InPod() {
			bind = "0.0.0.0"
		}
	}
	if net.ParseIP(bind) == nil {
		return fmt.Errorf("--bind-address %s is not an IP address: use 127.0.0.1 for this machine only, or 0.0.0.0 for all its "+
			"addresses", bind)
	}
	for _, port := range []struct {
		flag   string
		number int
	}{{"--secure-port", a.secure}, {"--insecure-port", a.insecure}} {
		if port.number < 0 || port.number > 65535 {
			return fmt.Errorf("%s %d is not between 0 and 65535", port.flag, port.number)
		}
	}
	o.ListenUnix = a.unix
	o.Listen = net.JoinHostPort(bind, strconv.Itoa(a.secure))
	if a.insecure != 0 {
		o.ListenInsecure = net.JoinHostPort(bind, strconv.Itoa(a.insecure))
	}
	return nil
}

// flagOf maps the field names in messages to flags.
var flagOf = []struct{ field, flag string }{
	{"Options.Drivers " + etcd.Name, "--etcd-servers"},
	{"etcd.Options.Endpoints", "--etcd-servers"},
	{"etcd.Options.HealthcheckTimeout", "--etcd-healthcheck-timeout"},
	{"etcd.Options.StartTimeout", "--etcd-start-timeout"},
	{"Options.Drivers " + files.Name, "--files-dir"},
	{"Options.DataDir", "--data-dir"},
	{"Options.StorageOf", "--storage-of"},
	{"Options.Storage", "--storage"},
	{"Options.StorageMediaTypeOf", "--storage-media-type-of"},
	{"Options.ListenInsecure", "--insecure-port"},
	{"Options.ListenUnix", "--unix-socket"},
	{"Options.Listen", "--secure-port"},
	{"Options.Controllers", "--controllers"},
	{"Options.QueryPrefix", "--query-prefix"},
	{"Options.HistoryOf", "--history-of"},
	{"Options.Serving.MinTLSVersion", "--tls-min-version"},
	{"Options.Serving.CipherSuites", "--tls-cipher-suites"},
	{"Options.Serving.CurvePreferences", "--tls-curve-preferences"},
	{"Options.Serving.SNICertificates", "--tls-sni-cert-key"},
	{"Options.Serving.MaxStreamsPerConnection", "--http2-max-streams-per-connection"},
	{"Options.Serving.DisableHTTP2", "--disable-http2-serving"},
	{"Options.Serving.GoawayChance", "--goaway-chance"},
	{"Options.Serving.ExternalHostname", "--external-hostname"},
	{"Options.Serving.AllowedOrigins", "--cors-allowed-origins"},
	{"Options.Serving.StrictTransportSecurity", "--strict-transport-security-directives"},
	{"Options.Serving.RefusedUserAgents", "--refuse-user-agents"},
	{"Options.UnrestrictedUpdate", "--unrestricted-update"},
	{"Options.Kubeconfig.None", "--no-kubeconfig"},
	{"Options.Kubeconfig.PKCS12Password", "--" + pkcs12PasswordFlag},
	{"Options.Serving.MaxRequestsInFlight", "--max-requests-inflight"},
	{"Options.Serving.MaxMutatingRequestsInFlight", "--max-mutating-requests-inflight"},
	{"Options.PriorityAndFairness", "--enable-priority-and-fairness"},
	{"Options.ConsoleLink", "--console-link"},
	{"Options.Console", "--console"},
	{"Options.SwaggerUI", "--swagger-ui"},
	{"Options.Serving.Profiling", "--profiling"},
	{"Options.Serving.ContentionProfiling", "--contention-profiling"},
	{"Options.AccessLog.Path", "--access-log"},
	{"Options.AccessLog.Format", "--access-log-format"},
	{"Options.AccessLog.Rotation.MaxSize", "--access-log-maxsize"},
	{"Options.AccessLog.Rotation.MaxBackups", "--access-log-maxbackup"},
	{"Options.AccessLog.Rotation.MaxAge", "--access-log-maxage"},
	{"Options.AccessLog.Rotation.Compress", "--access-log-compress"},
	{"Options.Audit.PolicyFile", "--audit-policy-file"},
	{"Options.Audit.Log.Path", "--audit-log-path"},
	{"Options.Audit.Log.Format", "--audit-log-format"},
	{"Options.Audit.Log.Rotation.MaxSize", "--audit-log-maxsize"},
	{"Options.Audit.Log.Rotation.MaxBackups", "--audit-log-maxbackup"},
	{"Options.Audit.Log.Rotation.MaxAge", "--audit-log-maxage"},
	{"Options.Audit.Log.Rotation.Compress", "--audit-log-compress"},
	{"Options.Audit.Webhook.ConfigFile", "--audit-webhook-config-file"},
	{"Options.Audit.Webhook.InitialBackoff", "--audit-webhook-initial-backoff"},
	{"Options.Audit.Log.Mode", "--audit-log-mode"},
	{"Options.Audit.Log.Batch.BufferSize", "--audit-log-batch-buffer-size"},
	{"Options.Audit.Log.Batch.MaxSize", "--audit-log-batch-max-size"},
	{"Options.Audit.Log.Batch.MaxWait", "--audit-log-batch-max-wait"},
	{"Options.Audit.Log.Batch.ThrottleQPS", "--audit-log-batch-throttle-qps"},
	{"Options.Audit.Log.Batch.ThrottleBurst", "--audit-log-batch-throttle-burst"},
	{"Options.Audit.Log.Truncate.Enabled", "--audit-log-truncate-enabled"},
	{"Options.Audit.Log.Truncate.MaxEventSize", "--audit-log-truncate-max-event-size"},
	{"Options.Audit.Log.Truncate.MaxBatchSize", "--audit-log-truncate-max-batch-size"},
	{"Options.Audit.Webhook.Mode", "--audit-webhook-mode"},
	{"Options.Audit.Webhook.Batch.BufferSize", "--audit-webhook-batch-buffer-size"},
	{"Options.Audit.Webhook.Batch.MaxSize", "--audit-webhook-batch-max-size"},
	{"Options.Audit.Webhook.Batch.MaxWait", "--audit-webhook-batch-max-wait"},
	{"Options.Audit.Webhook.Batch.ThrottleQPS", "--audit-webhook-batch-throttle-qps"},
	{"Options.Audit.Webhook.Batch.ThrottleBurst", "--audit-webhook-batch-throttle-burst"},
	{"Options.Audit.Webhook.Truncate.Enabled", "--audit-webhook-truncate-enabled"},
	{"Options.Audit.Webhook.Truncate.MaxEventSize", "--audit-webhook-truncate-max-event-size"},
	{"Options.Audit.Webhook.Truncate.MaxBatchSize", "--audit-webhook-truncate-max-batch-size"},
	{"Options.TracingConfigFile", "--tracing-config-file"},
	{"Options.EncryptionConfigFile", "--encryption-provider-config"},
	{"Options.ServeDespiteUndecodable", "--serve-despite-undecodable"},
	{"Options.ClientCAFile", "--client-ca-file"},
	{"Options.TokenAuthFile", "--token-auth-file"},
	{"Options.Login.UserFile", "--" + userFileFlag},
	{"Options.Login.PublicURL", "--login-public-url"},
	{"Options.Login.TokenLifetime", "--login-token-lifetime"},
	{"Options.Login.IdleTimeout", "--login-idle-timeout"},
	{"Options.Login.SessionLifetime", "--login-session-lifetime"},
	{"Options.AuthenticationConfigFile", "--authentication-config"},
	{"Options.TokenWebhook.ConfigFile", "--authentication-token-webhook-config-file"},
	{"Options.TokenWebhook.Version", "--authentication-token-webhook-version"},
	{"Options.TokenWebhook.CacheTTL", "--authentication-token-webhook-cache-ttl"},
	{"Options.AllowLocalhost", "--authn-allow-localhost"},
	{"Options.AuthorizationModes", "--authorization-mode"},
	{"Options.AuthorizationConfigFile", "--authorization-config"},
	{"Options.AuthorizationWebhook.ConfigFile", "--authorization-webhook-config-file"},
	{"Options.AuthorizationWebhook.Version", "--authorization-webhook-version"},
	{"Options.AuthorizationWebhook.AuthorizedCacheTTL", "--authorization-webhook-cache-authorized-ttl"},
	{"Options.AuthorizationWebhook.UnauthorizedCacheTTL", "--authorization-webhook-cache-unauthorized-ttl"},
	{"Options.ServiceAccounts.Issuers", "--service-account-issuer"},
	{"Options.ServiceAccounts.SigningKeyFile", "--service-account-signing-key-file"},
	{"Options.ServiceAccounts.KeyFiles", "--service-account-key-file"},
	{"Options.ServiceAccounts.JWKSURI", "--service-account-jwks-uri"},
	{"Options.ServiceAccounts.MaxTokenExpiration", "--" + maxTokenExpirationFlag},
	{"Options.APIAudiences", "--api-audiences"},
	{"Options.Kubeconfig.EphemeralTokenDuration", "--" + ephemeralDurationFlag},
	{"Options.Kubeconfig.EphemeralToken", "--ephemeral-token"},
	{"Options.TLSCertFile", "--tls-cert-file"},
	{"Options.RequestTimeout", "--request-timeout"},
	{"Options.ShutdownTimeout", "--shutdown-timeout"},
	{"Options.ShutdownDelay", "--shutdown-delay-duration"},
	{"Options.Aggregated", "--" + aggregatedFlag},
	{"Options.Cluster.Kubeconfig", "--kubeconfig"},
	{"Options.Cluster.AuthenticationKubeconfig", "--authentication-kubeconfig"},
	{"Options.Cluster.AuthorizationKubeconfig", "--authorization-kubeconfig"},
	{"Options.Cluster.SkipLookup", "--authentication-skip-lookup"},
	{"Options.Cluster.TolerateLookupFailure", "--authentication-tolerate-lookup-failure"},
	{"Options.ControlPlane.ProxyClientCertFile", "--proxy-client-cert-file"},
	{"Options.ControlPlane.ProxyClientKeyFile", "--proxy-client-key-file"},
	{"Options.RequestHeader.ClientCAFile", "--requestheader-client-ca-file"},
	{"Options.RequestHeader.AllowedNames", "--requestheader-allowed-names"},
	{"Options.RequestHeader.UsernameHeaders", "--requestheader-username-headers"},
	{"Options.RequestHeader.UIDHeaders", "--requestheader-uid-headers"},
	{"Options.RequestHeader.GroupHeaders", "--requestheader-group-headers"},
	{"Options.RequestHeader.ExtraHeadersPrefix", "--requestheader-extra-headers-prefix"},
	{"Options.Cluster.TokenCacheTTL", "--authentication-token-webhook-cache-ttl"},
	{"Options.Cluster.AuthorizedCacheTTL", "--authorization-webhook-cache-authorized-ttl"},
	{"Options.Cluster.UnauthorizedCacheTTL", "--authorization-webhook-cache-unauthorized-ttl"},
	{"Options.Cluster.AlwaysAllowPaths", "--authorization-always-allow-paths"},
	{"Options.ControlPlane.EventTTL", "--" + eventTTLFlag},
	{"Options.ControlPlane.CRDs", "--" + crdsFlag},
	{"Options.ControlPlane.RuntimeConfig", "--" + runtimeConfigFlag},
	{"Options.ControlPlane.Workloads", "--" + workloadsFlag},
	{"Options.Admission.EnablePlugins", "--enable-admission-plugins"},
	{"Options.Admission.DisablePlugins", "--disable-admission-plugins"},
	{"Options.Admission.ConfigFile", "--admission-control-config-file"},
	{"Options.Cluster.LeaseNamespace", "--leader-elect-resource-namespace"},
	{"Options.SelfCertify.Enabled", "--self-certify"},
	{"Options.SelfCertify.ServiceName", "--service-name"},
	{"Options.SelfCertify.ServiceNamespace", "--service-namespace"},
	{"Options.SelfCertify.Lifetime", "--certificate-lifetime"},
	{"Options.SelfCertify.Workload", "--workload"},

	{"ToolOptions.Kubeconfig", "--kubeconfig"},
	{"CopyOptions.SnapshotOf " + etcd.Name, "--to " + etcdSnapshot + "FILE"},
	{"CopyOptions.Replace", "--replace"},
	{"CopyOptions.Overwrite", "--overwrite"},
	{"CopyOptions.ResetWatches", "--reset-watches"},

	{"Revocation.Serial", "--serial"},
	{"NewUser.Groups", "--group"},
	{"NewUser.Lifetime", "--lifetime"},
	{"NewUser.Server", "--server"},

	{"Probes.Health", "--health-probe-bind-address"},
	{"Probes.Metrics", "--metrics-bind-address"},
	{"LeaderElection.Enabled", "--leader-elect"},
	{"LeaderElection.Namespace", "--leader-elect-resource-namespace"},
	{"LeaderElection.Name", "--leader-elect-resource-name"},
	{"LeaderElection.LeaseDuration", "--leader-elect-lease-duration"},
	{"LeaderElection.RenewDeadline", "--leader-elect-renew-deadline"},
	{"LeaderElection.RetryPeriod", "--leader-elect-retry-period"},

	{"Config.Name", "--name"},
	{"Config.Namespace", "--namespace"},
	{"Config.Image", "--image"},
	{"Config.Replicas", "--replicas"},
	{"Config.Storage", "--storage"},
	{"Config.StorageSize", "--storage-size"},
	{"Config.StorageClass", "--storage-class"},
	{"Config.EtcdServers", "--etcd-servers"},
	{"Config.EtcdSecret", "--etcd-secret"},
	{"Config.WithEtcd", "--with-etcd"},
	{"Config.Certificates", "--certificates"},
	{"Config.CABundle", "--ca-file"},
	{"Config.GroupPriority", "--group-priority"},
	{"Config.SeparateControllers", "--separate-controllers"},
	{"Config.ServiceMonitor", "--service-monitor"},
	{"Config.InsecureSkipTLSVerify", "--insecure-skip-tls-verify"},
	{"Config.External", "--external"},
}

// fieldFlags replaces field names by flags. A field's name may be a prefix of another's, so the longest names come
// first.
var fieldFlags = func() *strings.Replacer {
	longestFirst := slices.Clone(flagOf)
	slices.SortFunc(longestFirst, func(a, b struct{ field, flag string }) int { return len(b.field) - len(a.field) })
	var pairs []string
	for _, f := range longestFirst {
		pairs = append(pairs, f.field, f.flag)
	}
	return strings.NewReplacer(pairs...)
}()

// flagNames replaces the field names in a message of the library by flags.
func flagNames(text string) string { return fieldFlags.Replace(text) }
