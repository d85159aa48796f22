// Package encryption encrypts stored objects by an EncryptionConfiguration file of k8s.io/apiserver. The cryptography,
// the key management plugins and the meaning of the file are those of k8s.io/apiserver.
//
// This package adds checks before anything is changed: it reports mistakes in the file, unreachable plugins, and keys
// that cannot decrypt stored objects, each as an error of one line. It also reloads a changed file and logs changes of
// the plugins' health.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
)

// Options select the configuration and its handling.
type Options struct {
	// File is the path of the configuration; if it is empty, nothing is encrypted.
	File string
	// Reload makes Run read the file again when it changes. It requires File.
	Reload bool
	// Server is the name of the server in the metrics of k8s.io/apiserver, which contain only its hash.
	Server string
	// Patience is how long Open waits for key management plugins. 0 means 20 seconds.
	Patience time.Duration
}

// Encryption provides the transformer of each resource. A nil Encryption encrypts nothing.
type Encryption struct {
	options Options
	// transformers is dynamic if the file may be reloaded, otherwise fixed.
	transformers value.ResourceTransformers
	dynamic      *encryptionconfig.DynamicTransformers
	health       []healthz.HealthChecker // of the plugins, made by k8s.io/apiserver

	current atomic.Pointer[config]
	// life ends the goroutines that k8s.io/apiserver runs for the plugins.
	life context.Context
	end  context.CancelFunc

	mu     sync.Mutex
	stored Stored
	reason string // the last logged reason why a plugin is unhealthy; empty if all are healthy
}

var _ value.ResourceTransformers = (*Encryption)(nil)

// defaultPatience equals the time that the storage waits for etcd.
const defaultPatience = 20 * time.Second

// Open reads the file and waits until its key management plugins answer. An error is one line, names the file and the
// remedy, and contains no secrets. Without a file, Open returns nil and no error. The caller must close the Encryption.
func Open(ctx context.Context, options Options) (*Encryption, error) {
	if options.File == "" {
		if options.Reload {
			return nil, errors.New("encryption: reloading needs a configuration file")
		}
		return nil, nil
	}
	if options.Patience == 0 {
		options.Patience = defaultPatience
	}
	e := &Encryption{options: options}
	e.life, e.end = context.WithCancel(context.WithoutCancel(ctx))
	c, err := e.open(ctx)
	if err != nil {
		e.end()
		return nil, err
	}
	e.current.Store(c)
	metrics.RecordEncryptionConfigLastConfigInfo(options.Server, c.hash)
	return e, nil
}

func (e *Encryption) open(ctx context.Context) (*config, error) {
	loading, abandon := context.WithCancel(e.life)
	c, loaded, err := e.load(loading)
	if err == nil {
		err = e.untilHealthy(ctx, c, loaded.HealthChecks, e.options.Patience)
	}
	if err != nil {
		abandon()
		return nil, err
	}
	e.health = loaded.HealthChecks
	context.AfterFunc(e.life, abandon)
	if !e.options.Reload {
		e.transformers = encryptionconfig.StaticTransformers(loaded.Transformers)
		return c, nil
	}
	e.dynamic = encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], abandon, loaded.KMSCloseGracePeriod)
	e.transformers = e.dynamic
	e.health = []healthz.HealthChecker{e.dynamic}
	return c, nil
}

// load reads the file. Goroutines that it starts end with ctx.
func (e *Encryption) load(ctx context.Context) (*config, *encryptionconfig.EncryptionConfiguration, error) {
	c, err := readConfig(e.options.File, e.options.Reload)
	if err != nil {
		return nil, nil, err
	}
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, e.options.File, e.options.Reload, e.options.Server)
	// If the file has changed since readConfig checked it, the error of k8s.io/apiserver may quote the new content,
	// including keys. So that error is dropped.
	if hash, hashErr := encryptionconfig.GetEncryptionConfigHash(e.options.File); hashErr != nil || hash != c.hash {
		return nil, nil, mistake(c.file, errors.New("it changed while it was read"))
	}
	if err != nil {
		return nil, nil, mistake(c.file, oneLine(err))
	}
	return c, loaded, nil
}

// untilHealthy waits until all plugins are healthy, at most for patience.
func (e *Encryption) untilHealthy(ctx context.Context, c *config, checks []healthz.HealthChecker, patience time.Duration) error {
	plugins := c.plugins()
	if len(plugins) == 0 {
		return nil
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		// A check calls the plugin only once in a few seconds and otherwise returns its last result.
		err := ask(patient, checks)
		switch {
		case err == nil:
			return nil
		case await.Sleep(patient, clock.RealClock{}, 100*time.Millisecond):
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			return mistake(c.file, fmt.Errorf("%w: start the plugin, or correct the endpoint; nothing was changed", named(plugins, err)))
		}
	}
}

// ask runs the health checks of the plugins and returns their errors.
func ask(ctx context.Context, checks []healthz.HealthChecker) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, check := range checks {
		errs = append(errs, check.Check(request))
	}
	return errors.Join(errs...)
}

// named replaces the numbers of plugins in an error of k8s.io/apiserver by their names.
func named(plugins []string, err error) error {
	text := oneLine(err).Error()
	for i, plugin := range plugins {
		text = strings.ReplaceAll(text, fmt.Sprintf("kms-provider-%d:", i), plugin+" is not well:")
	}
	return errors.New(text)
}

// TransformerForResource implements value.ResourceTransformers. It returns nil if nothing is encrypted.
func (e *Encryption) TransformerForResource(resource schema.GroupResource) value.Transformer {
	if e == nil {
		return nil
	}
	return e.transformers.TransformerForResource(resource)
}

// Key identifies the key that values of a resource are written with.
type Key struct {
	Provider string // aescbc, aesgcm, secretbox, kms or identity
	Name     string // of the key, or of the plugin; empty for identity
}

// Key returns the key with which values of a resource are written now; the zero Key if no rule applies to it.
func (e *Encryption) Key(resource schema.GroupResource) Key {
	if e == nil {
		return Key{}
	}
	return e.current.Load().key(resource)
}

// ReadKeys reads a configuration file and returns the function Key for it. It returns an error if the file is invalid.
// It does not call plugins.
func ReadKeys(file string) (func(schema.GroupResource) Key, error) {
	c, err := readConfig(file, false)
	if err != nil {
		return nil, err
	}
	return c.key, nil
}

func (c *config) key(resource schema.GroupResource) Key {
	r, ok := c.rule(resource)
	if !ok {
		return Key{}
	}
	key := Key{Provider: r.providers[0].kind}
	if len(r.providers[0].keys) > 0 {
		key.Name = r.providers[0].keys[0]
	}
	return key
}

func (k Key) String() string { return strings.TrimSpace(k.Provider + " " + k.Name) }

// HealthChecks returns the health checks of the key management plugins, with the name that k8s.io/apiserver gives them,
// or none if there cannot be any. Their errors contain no details, because anonymous callers may see them.
func (e *Encryption) HealthChecks() []healthz.HealthChecker {
	if e == nil {
		return nil
	}
	var checks []healthz.HealthChecker
	for _, check := range e.health {
		checks = append(checks, healthz.NamedCheck(check.Name(), func(r *http.Request) error {
			if check.Check(r) != nil {
				return errors.New("a key management plugin does not answer correctly: see the server's log")
			}
			return nil
		}))
	}
	return checks
}

// report logs changes of the plugins' health.
func (e *Encryption) report(ctx context.Context) {
	plugins := e.current.Load().plugins()
	if len(plugins) == 0 {
		return
	}
	reason := ""
	if err := ask(ctx, e.health); err != nil && ctx.Err() == nil {
		reason = named(plugins, err).Error()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if (reason == "") == (e.reason == "") {
		return
	}
	if e.reason = reason; reason != "" {
		klog.FromContext(ctx).Error(errors.New(reason), "A key management plugin does not answer: objects in memory stay readable, writes "+
			"fail after three minutes")
		return
	}
	klog.FromContext(ctx).Info("The key management plugins answer again")
}

// Close ends the goroutines for key management plugins. The transformers must not be used afterwards.
func (e *Encryption) Close() {
	if e != nil {
		e.end()
	}
}
