// Package envtest is controller-runtime's package of that name, with a control plane inside the test's own process. A suite
// changes one import line:
//
//	import "github.com/annexapi/annex/workloads/envtest"
//
// There is no kube-apiserver, no etcd, and no file to download: Start takes a few hundred milliseconds, and nothing stays
// behind when the process ends. CRDs, webhooks and users are set up by the same fields and methods.
package envtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/base/dialed"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/workloads"
)

// Environment is a control plane for a test. Its fields have the names and meanings of controller-runtime's, except that
// fields about programs and their files have no effect: there are none. Its zero value is usual. It must not be used
// concurrently.
type Environment struct {
	// ControlPlane may not have arguments: no process gets them.
	ControlPlane ControlPlane
	// Scheme has the types whose conversion webhooks are served. Nil means client-go's.
	Scheme *runtime.Scheme
	// Config is the administrator's client configuration, which Start sets. With UseExistingCluster, it is the
	// configuration of that cluster; nil means the usual one of the user.
	Config *rest.Config
	// KubeConfig is a kubeconfig with the content of Config, which Start sets.
	KubeConfig []byte

	CRDInstallOptions     CRDInstallOptions
	WebhookInstallOptions WebhookInstallOptions
	// ErrorIfCRDPathMissing makes a missing path an error of Start.
	ErrorIfCRDPathMissing bool
	// CRDs and CRDDirectoryPaths are added to those of CRDInstallOptions.
	CRDs              []*apiextensionsv1.CustomResourceDefinition
	CRDDirectoryPaths []string

	// UseExistingCluster uses the cluster of Config instead. Nil is decided by the environment variable
	// USE_EXISTING_CLUSTER, whose value true means true.
	UseExistingCluster *bool
	// LikeCluster deletes namespaces, collects garbage and creates service accounts, as a cluster does and
	// controller-runtime's environment does not.
	LikeCluster bool
	// Snapshot is a file that WriteSnapshot has written. The control plane begins with its objects. Empty means none.
	Snapshot string
	// Controllers are the names of controllers of kube-controller-manager that run, such as deployment-controller and
	// replicaset-controller, beside those that LikeCluster runs; all means all of workloads.Options.Controllers and
	// LikeCluster's. The pods that they create stay pending. Empty means none.
	Controllers []string

	// ControlPlaneStartTimeout bounds the start; 0 means 20 seconds. ControlPlaneStopTimeout bounds the wait for requests in
	// flight at the end; 0 means a second.
	ControlPlaneStartTimeout, ControlPlaneStopTimeout time.Duration

	// These fields have no effect.
	DownloadBinaryAssets                                      bool
	DownloadBinaryAssetsVersion, DownloadBinaryAssetsIndexURL string
	BinaryAssetsDirectory                                     string
	AttachControlPlaneOutput                                  bool

	inner  *envtest.Environment
	server *server
}

// Start starts the control plane and installs CustomResourceDefinitions and webhooks. It returns the administrator's client
// configuration. After an error, nothing is left running.
func (e *Environment) Start() (*rest.Config, error) {
	if e.inner != nil || e.server != nil {
		return nil, errors.New("start the environment: it has been started already")
	}
	if !e.usesExistingCluster() {
		if err := e.startFirst(); err != nil {
			return nil, fmt.Errorf("start the environment: %w", err)
		}
	}
	existing := true
	inner := &envtest.Environment{
		Scheme: e.Scheme, Config: e.Config, KubeConfig: e.KubeConfig, UseExistingCluster: &existing,
		CRDInstallOptions: e.CRDInstallOptions, WebhookInstallOptions: e.WebhookInstallOptions,
		ErrorIfCRDPathMissing: e.ErrorIfCRDPathMissing, CRDs: e.CRDs, CRDDirectoryPaths: e.CRDDirectoryPaths,
	}
	config, err := inner.Start()
	if err != nil {
		return nil, errors.Join(err, inner.WebhookInstallOptions.Cleanup(), e.stopServer())
	}
	e.inner = inner
	e.Scheme, e.Config, e.KubeConfig, e.CRDs = inner.Scheme, inner.Config, inner.KubeConfig, inner.CRDs
	e.CRDInstallOptions, e.WebhookInstallOptions = inner.CRDInstallOptions, inner.WebhookInstallOptions
	return config, nil
}

// Stop ends the control plane. Its objects are gone. It does nothing for an environment that is not started.
func (e *Environment) Stop() error {
	var err error
	if e.inner != nil {
		err = e.inner.Stop()
		e.inner = nil
	}
	return errors.Join(err, e.stopServer())
}

// Fork starts another environment with the objects of this one, which must be started and have a control plane of its own:
// the objects, with their revisions, as they are when Fork is called. Neither sees later writes to the other, so tests can
// each have a whole, prepared cluster. The copy of the objects takes microseconds, whatever their number; the start of the
// control plane takes most of the time. If the objects of this environment did not change between two forks, Fork starts the
// control plane of a next one in the background, and a later Fork returns that at once; Stop ends it if it was not used. Stop
// must be called on both, in any order.
//
// The users of this environment, but no tokens of its service accounts, are valid in the fork too. The fork has the webhook
// configurations of this one, which call the same webhook server.
func (e *Environment) Fork() (*Environment, error) {
	if e.server == nil {
		return nil, errors.New("fork the environment: it has no control plane of its own that is started")
	}
	fork := *e
	fork.inner, fork.server, fork.Config, fork.KubeConfig, fork.Snapshot = nil, nil, nil, nil, ""
	s, err := e.server.fork(e.settings())
	if err == nil {
		err = fork.adopt(s)
	}
	if err != nil {
		return nil, fmt.Errorf("fork the environment: %w", err)
	}
	options := CRDInstallOptions{PollInterval: 5 * time.Millisecond, MaxTime: cmp.Or(fork.CRDInstallOptions.MaxTime, 10*time.Second)}
	if err := envtest.WaitForCRDs(fork.Config, fork.CRDs, options); err != nil {
		return nil, errors.Join(fmt.Errorf("fork the environment: wait for definitions: %w", err), fork.Stop())
	}
	return &fork, nil
}

// WriteSnapshot writes the objects of the environment, which must be started and have a control plane of its own, to a file
// for Environment.Snapshot. The file is text, has the same content for the same objects, and has their Secrets, too. It replaces
// the file as a whole.
func (e *Environment) WriteSnapshot(path string) error {
	if e.server == nil {
		return errors.New("write a snapshot: the environment has no control plane of its own that is started")
	}
	return e.server.objects.WriteFile(path)
}

// AddUser adds a user with a client certificate to an environment that is started. base has further settings of the user's
// client configuration; nil means none.
func (e *Environment) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if e.server == nil {
		return nil, errors.New("add a user: the environment has no control plane of its own that is started")
	}
	return e.server.addUser(user, base)
}

func (e *Environment) usesExistingCluster() bool {
	if e.UseExistingCluster == nil {
		return strings.EqualFold(os.Getenv("USE_EXISTING_CLUSTER"), "true")
	}
	return *e.UseExistingCluster
}

// startFirst starts the control plane of an environment that is no fork.
func (e *Environment) startFirst() error {
	if args := e.ControlPlane.GetAPIServer().Configure().AsStrings(nil); len(args) > 0 {
		return fmt.Errorf("ControlPlane has arguments of a kube-apiserver, %s, and there is no process to get them: "+
			"use KUBEBUILDER_ASSETS=$(annex envtest) and controller-runtime's package", strings.Join(args, " "))
	}
	authority, err := newAuthority()
	if err != nil {
		return err
	}
	objects := &memory.Store{}
	if e.Snapshot != "" {
		if objects, err = memory.ReadFile(e.Snapshot); err != nil {
			return err
		}
	}
	s, err := startServer(objects, authority, e.settings())
	if err != nil {
		return err
	}
	return e.adopt(s)
}

func (e *Environment) settings() settings {
	return settings{
		likeCluster: e.LikeCluster, controllers: slices.Clone(e.Controllers),
		timeout:     cmp.Or(e.ControlPlaneStartTimeout, 20*time.Second),
		stopTimeout: cmp.Or(e.ControlPlaneStopTimeout, time.Second),
	}
}

// adopt makes a started control plane that of the environment. After an error, the control plane is stopped.
func (e *Environment) adopt(s *server) error {
	admin, err := s.addUser(User{Name: "admin", Groups: []string{"system:masters"}}, &rest.Config{QPS: 1000, Burst: 2000})
	if err != nil {
		return errors.Join(err, s.stop())
	}
	e.server, e.Config = s, admin.Config()
	if e.KubeConfig, err = admin.KubeConfig(); err != nil {
		return errors.Join(err, e.stopServer())
	}
	return nil
}

func (e *Environment) stopServer() error {
	if e.server == nil {
		return nil
	}
	s := e.server
	e.server, e.Config, e.KubeConfig = nil, nil, nil
	return s.stop()
}

// kinds returns the kinds of all environments of the process.
var kinds = sync.OnceValue(func() *controlplane.Extension { return workloads.New(workloads.Options{}) })

// server is a control plane in this process.
type server struct {
	objects     *memory.Store
	authority   *authority
	url         string
	trusted     []byte
	cancel      context.CancelFunc
	done        chan error
	connections dialed.Connections
	// forked is the revision of the objects of the last fork, 0 before the first, and spare may become the next.
	forked uint64
	spare  *spare
}

// startServer returns when the server is ready. After an error, nothing is left running.
func startServer(objects *memory.Store, authority *authority, with settings) (*server, error) {
	s := &server{objects: objects, authority: authority, done: make(chan error, 1)}
	if err := s.start(with); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *server) start(with settings) error {
	options := annex.Options{
		Storage: s.objects, Listen: "127.0.0.1:0", ClientCA: s.authority.certificate(), ShutdownTimeout: with.stopTimeout,
	}
	options.Controllers = append([]string{}, with.controllers...)
	if with.likeCluster {
		options.Controllers = append(options.Controllers, "*")
	} else {
		options.Admission.DisablePlugins = []string{"ServiceAccount"}
	}
	definition := annex.Server{
		Name: "envtest", ControlPlane: controlplane.New(controlplane.Options{Extension: kinds()}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	instance, err := annex.New(ctx, definition, options)
	if err != nil {
		cancel()
		return err
	}
	ready := make(chan struct{})
	go func() { s.done <- instance.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-s.done:
		s.done <- nil
		return errors.Join(fmt.Errorf("the control plane ended before it was ready: %w", err), s.stop())
	case <-time.After(with.timeout):
		return errors.Join(fmt.Errorf("the control plane is not ready after %s", with.timeout), s.stop())
	}
	config, err := instance.ClientConfig()
	if err != nil {
		return errors.Join(err, s.stop())
	}
	s.url, s.trusted = instance.URL(), slices.Clone(config.CAData)
	return nil
}

func (s *server) stop() error {
	err := s.endSpare()
	s.cancel()
	s.connections.Close()
	return errors.Join(err, <-s.done)
}

func (s *server) addUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if user.Name == "" {
		return nil, errors.New("add a user: User.Name is empty, and a server takes such a certificate for nobody's: set it")
	}
	certificate, key, err := s.authority.issue(user.Name, user.Groups)
	if err != nil {
		return nil, fmt.Errorf("add the user %s: %w", user.Name, err)
	}
	config := &rest.Config{}
	if base != nil {
		config = rest.CopyConfig(base)
	}
	config.Host, config.Dial = s.url, s.connections.Dial
	config.TLSClientConfig = rest.TLSClientConfig{CAData: s.trusted, CertData: certificate, KeyData: key}
	return &AuthenticatedUser{config}, nil
}
