// Package manifests writes what a cluster has to be told so that a server can be
// aggregated into it: who the server is there and what it may do, what runs it, and which
// APIs it serves. It makes no requests: all of it follows from the definition and the
// operator's choices.
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

// Where serving certificates come from.
const (
	// SelfCertified servers make them, and tell the cluster of their authority.
	SelfCertified = "self"
	// CertManager makes them, and its CA injector tells the cluster.
	CertManager = "cert-manager"
	// SecretPrefix is followed by the name of a Secret of type kubernetes.io/tls that
	// another program keeps up to date, and the APIServices with it.
	SecretPrefix = "secret="
)

// Config says how a server is deployed. Complete fills in its defaults.
type Config struct {
	Definition *define.Server
	// Name is the server's in the cluster, a DNS label that other objects are named
	// after; that of the definition if empty.
	Name string
	// Namespace is where it runs; Name if empty.
	Namespace string
	// Image is the reference of its container image.
	Image string
	// Replicas is how many of it run: if 0, two above storages that they share, unless that is
	// an etcd in the pod; and else one, which is all that other storages allow.
	Replicas int
	// Storage returns the driver of where the server keeps its objects, by the EtcdServers, and
	// those that take the place of kinds' own of the same names, as Options.Drivers do.
	Storage func(etcdServers []string) (main driver.Driver, others []driver.Driver, err error)
	// StorageSize is that of the volume of what is kept there, or of the example of etcd;
	// 1Gi if zero. StorageClass is the volume's class; the cluster's default if empty.
	StorageSize  resource.Quantity
	StorageClass string
	// EtcdServers are URLs. With WithEtcd, an etcd of one member is deployed besides, and
	// they are its. EtcdSecret is the name of a Secret with tls.crt, tls.key and ca.crt for
	// it; NAME-etcd if empty and WithEtcd is set, and else the system's authorities are
	// asked.
	EtcdServers []string
	EtcdSecret  string
	WithEtcd    bool
	EtcdImage   string
	// Certificates is SelfCertified, the default, CertManager, or SecretPrefix and a name.
	Certificates string
	// CABundle is the authority of the certificate in a Secret (PEM). Without it, the
	// program that keeps that up to date also has to write it into the APIServices.
	CABundle []byte
	// DisablePlugins are admission plugins of the cluster that the server leaves out.
	DisablePlugins []string
	// WithoutFlowControl leaves out priority and fairness.
	WithoutFlowControl bool
	// GroupPriority is the groupPriorityMinimum of the APIServices; 1000 if 0.
	GroupPriority int
	// UserRoles adds the kinds to the cluster's roles view, edit and admin.
	UserRoles bool
	// ServiceMonitor adds one, for the Prometheus operator.
	ServiceMonitor bool
	// SeparateControllers runs the server's controllers in pods of their own, which elect a
	// leader, with rights of their own.
	SeparateControllers bool
	// Args are arguments for serve, after all others.
	Args []string

	// plan is that of a server that is deployed so, but for Args.
	plan *plan.Plan
}

// Complete fills in defaults and returns every mistake, or else the first one in how the server
// would run.
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
			return errors.New("Config.WithEtcd deploys an etcd, and Config.EtcdServers names another: give one of them")
		}
		c.EtcdServers = []string{"https://" + c.etcdName() + "." + c.Namespace + ".svc:2379"}
		if c.EtcdSecret == "" {
			c.EtcdSecret = c.etcdName()
		}
	}
	if err := c.check(); err != nil {
		return err
	}
	if err := c.resolve(); err != nil {
		return err
	}
	if c.Replicas > 1 && !c.shared() {
		return fmt.Errorf(
			"Config.Replicas %d: replicas share their objects by Config.Storage etcd only; with %s each would have its own",
			c.Replicas,
			c.plan.Options.Storage.Name(),
		)
	}
	if c.Replicas == 0 {
		c.Replicas = 1
		// A sidecar is an etcd of each replica's own, unless it only leads to a common one.
		if c.shared() && !slices.ContainsFunc(c.EtcdServers, beside) {
			c.Replicas = 2
		}
	}
	return nil
}

// resolve makes the plan.
func (c *Config) resolve() error {
	// An aggregated server, which is all that manifests are for, has no control plane.
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
	// What runs the server follows from its storages.
	o.SelfCertify = config.SelfCertifyOptions{
		Enabled:          true,
		ServiceName:      c.Name,
		ServiceNamespace: c.Namespace,
		Workload:         c.workloadResource() + "/" + c.Name,
	}
	c.plan, err = plan.Resolve(definition, o, nil)
	return err
}

// shared says whether replicas see the same objects.
func (c *Config) shared() bool {
	return c.plan.Options.Storage.Traits().Remote &&
		!slices.ContainsFunc(c.plan.Storages, func(s *plan.Storage) bool { return !s.Traits().Remote })
}

// inPod reports whether an address is that of a container in the same pod.
func inPod(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func beside(server string) bool {
	u, err := url.Parse(server)
	return err == nil && inPod(u)
}

// Notes say what the objects leave to the operator, a line each.
func (c *Config) Notes() []string {
	var notes []string
	if secret, ok := strings.CutPrefix(c.Certificates, SecretPrefix); ok && len(c.CABundle) == 0 {
		notes = append(notes, fmt.Sprintf("the APIServices have no caBundle, and the cluster calls no server whose certificate it cannot "+
			"verify: give the authority of the certificate in the Secret %s with Config.CABundle, or have something else write it into the "+
			"APIServices", secret))
	}
	if c.Replicas > 1 && slices.ContainsFunc(c.EtcdServers, beside) {
		notes = append(
			notes,
			fmt.Sprintf("each of the %d replicas asks an etcd in its own pod: those have to lead to one common store", c.Replicas),
		)
	}
	return notes
}

func (c *Config) check() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	// A Service is named after the server, and its names are stricter than those of others.
	if mistakes := validation.IsDNS1035Label(c.Name); len(mistakes) > 0 {
		add("Config.Name %q: %s", c.Name, mistakes[0])
	}
	if mistakes := validation.IsDNS1123Label(c.Namespace); len(mistakes) > 0 {
		add("Config.Namespace %q: %s", c.Namespace, mistakes[0])
	}
	if c.Image == "" {
		add("Config.Image is missing: the container image of the server, such as registry.example.com/%s:v1", c.Name)
	} else if strings.ContainsAny(c.Image, " \t\n\"'") {
		add("Config.Image %q is no reference of an image", c.Image)
	}
	if c.EtcdSecret != "" && len(c.EtcdServers) == 0 {
		add("Config.EtcdSecret is for Config.EtcdServers, of which there are none")
	}
	if c.Replicas < 0 {
		add("Config.Replicas %d is negative", c.Replicas)
	}
	if c.StorageSize.Sign() < 0 {
		add("Config.StorageSize %s is negative", &c.StorageSize)
	}
	for _, server := range c.EtcdServers {
		if u, err := url.Parse(server); err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !inPod(u)) {
			add("Config.EtcdServers %q: want https://HOST:PORT, or http://localhost:PORT for an etcd in the server's own pod", server)
		}
	}
	secret, isSecret := strings.CutPrefix(c.Certificates, SecretPrefix)
	switch {
	case isSecret:
		if mistakes := validation.IsDNS1123Subdomain(secret); len(mistakes) > 0 {
			add("Config.Certificates %q: %s", c.Certificates, mistakes[0])
		}
	case c.Certificates != SelfCertified && c.Certificates != CertManager:
		add("Config.Certificates %q: choose %s, %s, or %sNAME", c.Certificates, SelfCertified, CertManager, SecretPrefix)
	}
	if len(c.CABundle) > 0 && !isSecret {
		add(
			"Config.CABundle is for Config.Certificates %sNAME: with %s the authority is written by what issues the certificate",
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

// Objects returns everything, in the order in which it is to be made: what is refused
// without the other comes after it, and the APIs come last.
func (c *Config) Objects() ([]*unstructured.Unstructured, error) {
	var b builder
	b.add(c.namespace(), c.serviceAccount())
	b.add(c.permissions()...)
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

// builder collects objects of Go types and of none.
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
		delete(content, "status") // is the cluster's, even where its zero value has fields
		prune(content)
		b.objects = append(b.objects, &unstructured.Unstructured{Object: content})
	}
}

// unset are fields that Go's encoder writes although nothing is in them.
var unset = []string{"spec", "status", "resources", "strategy", "updateStrategy"}

// prune removes what is not set.
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

// selector is what the server's pods are known by.
func (c *Config) selector() map[string]string {
	return map[string]string{nameLabel: c.Name, componentLabel: component}
}

func (c *Config) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: c.selector()}
}

// clusterMeta is of objects outside namespaces, and of those in a namespace of the cluster's.
// They carry the namespace in their name, for two servers of one name may be deployed.
func (c *Config) clusterMeta(namespace, what string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: c.Name + "." + c.Namespace + ":" + what, Namespace: namespace, Labels: c.selector()}
}

func (c *Config) etcdName() string { return c.Name + "-etcd" }

// servingSecret is where the serving certificate is.
func (c *Config) servingSecret() string {
	if name, ok := strings.CutPrefix(c.Certificates, SecretPrefix); ok {
		return name
	}
	return requirements.ServingSecret(c.Name)
}

// serviceDNS is the name that the cluster wants in the certificate.
func (c *Config) serviceDNS() string { return c.Name + "." + c.Namespace + ".svc" }
