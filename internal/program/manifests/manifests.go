// Package manifests writes the objects that deploy an aggregated server to a cluster: its service account and
// permissions, its workload, and its APIServices. It sends no requests: the objects follow from the definition and
// the operator's choices.
package manifests

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/store/driver"
)

// The sources of serving certificates.
const (
	// SelfCertified servers issue their certificates, and write their CA bundle into the APIServices.
	SelfCertified = "self"
	// CertManager issues the certificates, and its CA injector writes the CA bundle.
	CertManager = "cert-manager"
	// SecretPrefix precedes the name of a Secret of type kubernetes.io/tls. Another program must keep that Secret
	// and the CA bundle in the APIServices current.
	SecretPrefix = "secret="
	// OwnFiles are the operator's own certificate files of a server outside of the cluster.
	OwnFiles = "own"
)

// Config describes the deployment of a server. Complete fills in its defaults.
type Config struct {
	Definition *define.Server
	// Name is the server's name in the cluster, a DNS label from which the names of other objects are derived; the
	// definition's name if empty.
	Name string
	// Namespace is the namespace of the server; Name if empty.
	Namespace string
	// Image is the reference of its container image.
	Image string
	// Replicas is the number of pods. If it is 0, the default is two if the replicas share their storages, and one
	// if not or if the storage is an etcd in the pod. Storages that are not shared do not permit more than one.
	Replicas int
	// Storage returns the driver of the server's storage for the EtcdServers. The others replace the drivers of
	// kinds with the same names, as Options.Drivers do.
	Storage func(etcdServers []string) (main driver.Driver, others []driver.Driver, err error)
	// StorageSize is the size of the volume for the server's storage or for the example etcd; 1Gi if zero.
	// StorageClass is the volume's class; the cluster's default if empty.
	StorageSize  resource.Quantity
	StorageClass string
	// EtcdServers are URLs. With WithEtcd, an etcd with one member is deployed with the server, and they are its
	// URLs. EtcdSecret is the name of a Secret with tls.crt, tls.key and ca.crt for the client; if it is empty, it
	// is NAME-etcd with WithEtcd, and without WithEtcd the system's authorities verify etcd.
	EtcdServers []string
	EtcdSecret  string
	WithEtcd    bool
	EtcdImage   string
	// Certificates is SelfCertified, the default, CertManager, or SecretPrefix and a name.
	Certificates string
	// CABundle is the authority of the certificate in a Secret, in PEM. Without it, the program that updates the
	// Secret must also write the authority into the APIServices.
	CABundle []byte
	// InsecureSkipTLSVerify makes the cluster call the server without verifying its certificate.
	InsecureSkipTLSVerify bool
	// External are the addresses of a server that runs outside of the cluster: one DNS name, or IP addresses, with an
	// optional port. The server is deployed in the cluster if it is empty.
	External []string
	// DisablePlugins are admission plugins of the cluster that the server does not run.
	DisablePlugins []string
	// WithoutFlowControl disables priority and fairness.
	WithoutFlowControl bool
	// GroupPriority is the groupPriorityMinimum of the APIServices; 1000 if 0.
	GroupPriority int
	// UserRoles adds the kinds to the cluster's roles view, edit and admin.
	UserRoles bool
	// ServiceMonitor adds a ServiceMonitor for the Prometheus operator.
	ServiceMonitor bool
	// SeparateControllers runs the server's controllers in pods with their own permissions, which elect a leader.
	SeparateControllers bool
	// Args are appended to the arguments of serve.
	Args []string

	// plan is the plan of the deployed server, without Args.
	plan *plan.Plan
}

// Complete fills in defaults. It returns every mistake in the Config, or else the first mistake in the server's
// plan.
func (c *Config) Complete() error {
	if c.Name == "" {
		c.Name = c.Definition.Name
	}
	if c.Namespace == "" {
		c.Namespace = c.Name
	}
	if c.StorageSize.IsZero() {
		c.StorageSize = resource.MustParse("1Gi")
	}
	if c.Certificates == "" {
		c.Certificates = SelfCertified
	}
	if c.GroupPriority == 0 {
		c.GroupPriority = 1000
	}
	if c.EtcdImage == "" {
		c.EtcdImage = "quay.io/coreos/etcd:v3.7.0"
	}
	if c.WithEtcd {
		if len(c.EtcdServers) > 0 {
			return errors.New("Config.WithEtcd and Config.EtcdServers exclude each other: set one of them")
		}
		c.EtcdServers = []string{"https://" + c.etcdName() + "." + c.Namespace + ".svc:2379"}
		if c.EtcdSecret == "" {
			c.EtcdSecret = c.etcdName()
		}
	}
	if err := c.check(); err != nil {
		return err
	}
	if err := c.resolve(); err != nil || c.isExternal() {
		return err
	}
	if c.Replicas > 1 && !c.shared() {
		return fmt.Errorf(
			"Config.Replicas %d: several replicas require Config.Storage etcd; with %s each replica would have its own objects",
			c.Replicas,
			c.plan.Options.Storage.Name(),
		)
	}
	if c.Replicas == 0 {
		c.Replicas = 1
		// An etcd in the pod belongs to one replica, unless it is only a proxy to a shared etcd.
		if c.shared() && !slices.ContainsFunc(c.EtcdServers, beside) {
			c.Replicas = 2
		}
	}
	return nil
}

// resolve makes the plan.
func (c *Config) resolve() error {
	// Manifests are for aggregated servers only, which have no control plane.
	definition := &definition.Definition{Server: c.Definition}
	main, others, err := c.Storage(c.EtcdServers)
	if err != nil {
		return err
	}
	o := config.Options{Aggregated: true, Storage: main, Drivers: others, DataDir: dataDir}
	o.Admission.DisablePlugins, o.PriorityAndFairness = c.DisablePlugins, new(!c.WithoutFlowControl)
	o.Cluster.LeaseNamespace = c.Namespace
	if c.SeparateControllers {
		o.Controllers = []string{}
	}
	if c.Certificates != SelfCertified {
		o.TLSCertFile, o.TLSPrivateKeyFile = servingDir+"/tls.crt", servingDir+"/tls.key"
	}
	if c.plan, err = plan.Resolve(definition, o, nil); err != nil || c.Certificates != SelfCertified {
		return err
	}
	// The kind of workload depends on the storages.
	o.SelfCertify = config.SelfCertifyOptions{
		Enabled:          true,
		ServiceName:      c.Name,
		ServiceNamespace: c.Namespace,
	}
	if !c.isExternal() {
		o.SelfCertify.Workload = c.workloadResource() + "/" + c.Name
	}
	c.plan, err = plan.Resolve(definition, o, nil)
	return err
}

// shared reports whether replicas share the same objects.
func (c *Config) shared() bool {
	return c.plan.Options.Storage.Traits().Remote &&
		!slices.ContainsFunc(c.plan.Storages, func(s *plan.Storage) bool { return !s.Traits().Remote })
}

// inPod reports whether an address belongs to a container in the same pod.
func inPod(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func beside(server string) bool {
	u, err := url.Parse(server)
	return err == nil && inPod(u)
}

// Notes returns the tasks that remain for the operator, a line each.
func (c *Config) Notes() []string {
	var notes []string
	if c.InsecureSkipTLSVerify {
		notes = append(notes, "the cluster does not verify the server: whoever can answer for its address reads and changes all "+
			"requests, and the "+
			"identities in them; give the server a certificate and set Config.CABundle instead")
	}
	if c.isExternal() {
		notes = append(notes, c.externalNotes()...)
	}
	if secret, ok := strings.CutPrefix(c.Certificates, SecretPrefix); ok && len(c.CABundle) == 0 && !c.InsecureSkipTLSVerify {
		notes = append(notes, fmt.Sprintf("the APIServices have no caBundle, and the cluster only calls servers whose certificate it can "+
			"verify: set Config.CABundle to the certificate authority of the Secret %s, or make another program write it into the "+
			"APIServices", secret))
	}
	if c.Replicas > 1 && slices.ContainsFunc(c.EtcdServers, beside) {
		notes = append(
			notes,
			fmt.Sprintf("each of the %d replicas uses an etcd in its own pod: all of them must use the same data", c.Replicas),
		)
	}
	return notes
}

func (c *Config) check() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	// A Service has the server's name, and Services permit fewer names than other objects.
	if mistakes := validation.IsDNS1035Label(c.Name); len(mistakes) > 0 {
		add("Config.Name %q: %s", c.Name, mistakes[0])
	}
	if mistakes := validation.IsDNS1123Label(c.Namespace); len(mistakes) > 0 {
		add("Config.Namespace %q: %s", c.Namespace, mistakes[0])
	}
	switch {
	case c.isExternal():
		problems = append(problems, c.checkExternal()...)
	case c.Image == "":
		add("Config.Image is missing: set it to the container image of the server, such as registry.example.com/%s:v1", c.Name)
	case strings.ContainsAny(c.Image, " \t\n\"'"):
		add("Config.Image %q is not a valid image reference", c.Image)
	}
	if c.EtcdSecret != "" && len(c.EtcdServers) == 0 {
		add("Config.EtcdSecret requires Config.EtcdServers")
	}
	if c.Replicas < 0 {
		add("Config.Replicas %d is negative", c.Replicas)
	}
	if c.StorageSize.Sign() < 0 {
		add("Config.StorageSize %s is negative", &c.StorageSize)
	}
	for _, server := range c.EtcdServers {
		if u, err := url.Parse(server); err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !inPod(u)) {
			add("Config.EtcdServers %q: must be https://HOST:PORT, or http://localhost:PORT for an etcd in the server's own pod", server)
		}
	}
	secret, isSecret := strings.CutPrefix(c.Certificates, SecretPrefix)
	switch {
	case isSecret:
		if mistakes := validation.IsDNS1123Subdomain(secret); len(mistakes) > 0 {
			add("Config.Certificates %q: %s", c.Certificates, mistakes[0])
		}
	case c.isExternal(): // has been checked
	case c.Certificates != SelfCertified && c.Certificates != CertManager:
		add("Config.Certificates %q: choose %s, %s, or %sNAME", c.Certificates, SelfCertified, CertManager, SecretPrefix)
	}
	own := isSecret || c.Certificates == OwnFiles && c.isExternal()
	if c.InsecureSkipTLSVerify && (!own || len(c.CABundle) > 0) {
		add("Config.InsecureSkipTLSVerify excludes Config.CABundle, and Config.Certificates %s, which provide the certificate "+
			"authority: remove one "+
			"of them", c.Certificates)
	}
	if own && !isSecret && len(c.CABundle) == 0 && !c.InsecureSkipTLSVerify {
		add("Config.Certificates %s requires Config.CABundle, the certificate authority of the server's certificate", OwnFiles)
	}
	if len(c.CABundle) > 0 && !own {
		add(
			"Config.CABundle requires Config.Certificates %sNAME: with %s, the issuer of the certificate writes the certificate authority",
			SecretPrefix,
			c.Certificates,
		)
	}
	if c.SeparateControllers && len(c.Definition.Controllers) == 0 {
		add("Config.SeparateControllers: the server has none")
	}
	if c.GroupPriority < 1 || c.GroupPriority > 20000 {
		add("Config.GroupPriority %d is not between 1 and 20000", c.GroupPriority)
	}
	return errors.Join(problems...)
}

// Objects returns all objects in the order in which they must be created: each after the objects that it needs, and
// the APIServices last.
func (c *Config) Objects() ([]*unstructured.Unstructured, error) {
	var b builder
	b.add(c.namespace(), c.serviceAccount())
	b.add(c.permissions()...)
	if c.isExternal() {
		b.add(c.externalService()...)
		b.add(c.apiServices()...)
		return b.objects, b.err
	}
	b.add(c.certificates()...)
	if c.WithEtcd {
		b.add(c.etcd()...)
	}
	b.add(c.service(), c.networkPolicy())
	b.add(c.workload()...)
	if c.SeparateControllers {
		b.add(c.controllers()...)
	}
	if c.ServiceMonitor {
		b.add(c.serviceMonitor()...)
	}
	b.add(c.apiServices()...)
	return b.objects, b.err
}

// builder collects typed and untyped objects.
type builder struct {
	objects []*unstructured.Unstructured
	err     error
}

func (b *builder) add(objects ...runtime.Object) {
	for _, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			b.err = errors.Join(b.err, fmt.Errorf("write the manifest of a %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err))
			continue
		}
		delete(content, "status") // the cluster owns status, even where its zero value has fields
		prune(content)
		b.objects = append(b.objects, &unstructured.Unstructured{Object: content})
	}
}

// unset are fields that Go's encoder writes even if they are empty.
var unset = []string{"spec", "status", "resources", "strategy", "updateStrategy"}

// prune removes empty fields.
func prune(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			prune(inner)
			if fields, ok := inner.(map[string]any); inner == nil || ok && len(fields) == 0 && slices.Contains(unset, key) {
				delete(v, key)
			}
		}
	case []any:
		for _, inner := range v {
			prune(inner)
		}
	}
}

const (
	nameLabel      = "app.kubernetes.io/name"
	componentLabel = "app.kubernetes.io/component"
	component      = "apiserver"
)

// selector returns the labels that select the server's pods.
func (c *Config) selector() map[string]string {
	return map[string]string{nameLabel: c.Name, componentLabel: component}
}

func (c *Config) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: c.selector()}
}

// clusterMeta is the metadata of cluster-scoped objects and of objects in a namespace of the cluster. Their names
// contain the server's namespace, since two servers of one name may be deployed.
func (c *Config) clusterMeta(namespace, what string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: c.Name + "." + c.Namespace + ":" + what, Namespace: namespace, Labels: c.selector()}
}

func (c *Config) etcdName() string { return c.Name + "-etcd" }

// servingSecret returns the name of the Secret with the serving certificate.
func (c *Config) servingSecret() string {
	if name, ok := strings.CutPrefix(c.Certificates, SecretPrefix); ok {
		return name
	}
	return requirements.ServingSecret(c.Name)
}

// serviceDNS returns the DNS name that the cluster expects in the certificate.
func (c *Config) serviceDNS() string { return c.Name + "." + c.Namespace + ".svc" }
