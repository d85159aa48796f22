// Package encryption encrypts what is stored, as upstream's EncryptionConfiguration
// file says. The cryptography, the key management plugins and the meaning of the
// file are upstream's. What is added here are errors of one line, before anything is
// changed, about mistakes in the file, plugins that cannot be reached, and keys that
// cannot decrypt what is stored.
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

// Options say what is encrypted how.
type Options struct {
	// File is the configuration; without one, nothing is encrypted.
	File string
	// Reload has Run read the file again when it changes.
	Reload bool
	// Server names the server in upstream's metrics, which hash it.
	Server string
	// Patience is how long Open waits for key management plugins. 0 means 20 seconds.
	Patience time.Duration
}

// Encryption gives each resource its transformer. The nil Encryption encrypts
// nothing.
type Encryption struct {
	options Options
	// transformers is dynamic if the file may be read again, else fixed.
	transformers value.ResourceTransformers
	dynamic      *encryptionconfig.DynamicTransformers
	health       []healthz.HealthChecker // of the plugins, by upstream

	current atomic.Pointer[config]
	// life cancels the goroutines that upstream runs for the plugins.
	life context.Context
	end  context.CancelFunc

	mu     sync.Mutex
	stored Stored
	reason string // last logged, why the plugins are not well
}

var _ value.ResourceTransformers = (*Encryption)(nil)

// defaultPatience is as long as the storage waits for etcd.
const defaultPatience = 20 * time.Second

// Open reads the file, and waits for its key management plugins to answer. An
// error takes one line, names the file and says what to do; it holds nothing of the
// secrets in it. Without a file it returns nil.
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

// load reads the file. What it starts ends with ctx.
func (e *Encryption) load(ctx context.Context) (*config, *encryptionconfig.EncryptionConfiguration, error) {
	c, err := readConfig(e.options.File, e.options.Reload)
	if err != nil {
		return nil, nil, err
	}
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, e.options.File, e.options.Reload, e.options.Server)
	// If the file is not the one that readConfig has checked, upstream's error may quote it,
	// keys included: it is dropped.
	if hash, hashErr := encryptionconfig.GetEncryptionConfigHash(e.options.File); hashErr != nil || hash != c.hash {
		return nil, nil, mistake(c.file, errors.New("it changed while it was read"))
	}
	if err != nil {
		return nil, nil, mistake(c.file, oneLine(err))
	}
	return c, loaded, nil
}

// untilHealthy waits until all plugins are well.
func (e *Encryption) untilHealthy(ctx context.Context, c *config, checks []healthz.HealthChecker, patience time.Duration) error {
	plugins := c.plugins()
	if len(plugins) == 0 {
		return nil
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		// Upstream asks the plugin anew only once in a few seconds.
		err := ask(patient, checks)
		switch {
		case err == nil:
			return nil
		case await.Sleep(patient, clock.RealClock{}, 100*time.Millisecond):
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			return mistake(c.file, fmt.Errorf("%w: start it, or correct the endpoint; nothing was changed", named(plugins, err)))
		}
	}
}

// ask returns what is wrong with the plugins.
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

// named replaces the numbers of plugins in an error of upstream's by their names.
func named(plugins []string, err error) error {
	text := oneLine(err).Error()
	for i, plugin := range plugins {
		text = strings.ReplaceAll(text, fmt.Sprintf("kms-provider-%d:", i), plugin+" is not well:")
	}
	return errors.New(text)
}

// TransformerForResource implements value.ResourceTransformers. It is nil if
// nothing is encrypted.
func (e *Encryption) TransformerForResource(resource schema.GroupResource) value.Transformer {
	if e == nil {
		return nil
	}
	return e.transformers.TransformerForResource(resource)
}

// Key says how values of a resource are encrypted from now on.
type Key struct {
	Provider string // aescbc, aesgcm, secretbox, kms or identity
	Name     string // of the key, or of the plugin; empty for identity
}

// Key returns how values of a resource are encrypted when they are written; the
// zero Key if no rule is for them.
func (e *Encryption) Key(resource schema.GroupResource) Key {
	if e == nil {
		return Key{}
	}
	return e.current.Load().key(resource)
}

// ReadKeys returns what Key would return with a configuration file, and what is
// wrong with that. It asks no plugin.
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

// HealthChecks are the checks of the key management plugins, under upstream's
// name; none if there cannot be any. Anonymous callers may see their errors.
func (e *Encryption) HealthChecks() []healthz.HealthChecker {
	if e == nil {
		return nil
	}
	var checks []healthz.HealthChecker
	for _, check := range e.health {
		checks = append(checks, healthz.NamedCheck(check.Name(), func(r *http.Request) error {
			if check.Check(r) != nil {
				return errors.New("a key management plugin does not answer as it should: the server's log says why")
			}
			return nil
		}))
	}
	return checks
}

// report logs when the plugins' health changes.
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
		klog.FromContext(ctx).Error(errors.New(reason), "A key management plugin does not answer: what has been read stays readable, writes "+
			"fail in three minutes")
		return
	}
	klog.FromContext(ctx).Info("The key management plugins answer again")
}

// Close ends what runs for key management plugins. Transformers must not be used
// any more.
func (e *Encryption) Close() {
	if e != nil {
		e.end()
	}
}
