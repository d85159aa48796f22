package encryption

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/klog/v2"
)

const (
	// pollInterval is how often the file is looked at when the system does not tell
	// about changes, and how often a file that was refused is tried again.
	pollInterval = time.Minute
	// healthInterval is how often the plugins are asked for what is to be logged.
	healthInterval = 10 * time.Second
)

// Run logs what becomes of the key management plugins and, if Options.Reload is
// set, reads the file again when it changes, until ctx is done. A file that is
// wrong, whose plugins do not answer, or with which something that is stored could
// not be read, is logged and changes nothing: what was read last stays in force.
func (e *Encryption) Run(ctx context.Context) {
	if e == nil {
		return
	}
	logger := klog.FromContext(ctx)
	var events <-chan fsnotify.Event
	var failures <-chan error
	if e.options.Reload {
		// The folder is watched, because editors and mounted secrets replace files.
		watcher, err := fsnotify.NewWatcher()
		if err == nil {
			defer watcher.Close()
			err = watcher.Add(filepath.Dir(e.options.File))
			events, failures = watcher.Events, watcher.Errors
		}
		if err != nil {
			logger.Error(err, "Encryption configuration is polled, its folder cannot be watched", "file", e.options.File, "interval", pollInterval)
		}
	}
	poll, health := time.NewTicker(pollInterval), time.NewTicker(healthInterval)
	defer poll.Stop()
	defer health.Stop()
	var reported string
	for changed := true; ; {
		if changed && e.options.Reload {
			switch replaced, err := e.reload(ctx); {
			case ctx.Err() != nil:
				return
			case err == nil:
				if reported = ""; replaced {
					logger.Info("Encryption configuration was read again", "file", e.options.File)
				}
			case err.Error() != reported:
				reported = err.Error()
				logger.Error(err, "Encryption configuration was not read again, the one before stays in force")
			}
		}
		changed = false
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			changed = e.concerns(event)
		case <-failures:
			changed = true
		case <-poll.C:
			changed = true
		case <-health.C:
			e.report(ctx)
		}
	}
}

// concerns says whether an event in the file's folder may have changed the file.
// A mounted secret is a link through one called ..data, which is what is replaced.
func (e *Encryption) concerns(event fsnotify.Event) bool {
	name := filepath.Base(event.Name)
	return name == filepath.Base(e.options.File) || name == "..data"
}

// reload puts a changed file in force, and tells whether it did.
func (e *Encryption) reload(ctx context.Context) (replaced bool, err error) {
	if hash, err := encryptionconfig.GetEncryptionConfigHash(e.options.File); err == nil && hash == e.current.Load().hash {
		return false, nil
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			metrics.RecordEncryptionConfigAutomaticReloadFailure(e.options.Server)
		}
	}()
	loading, abandon := context.WithCancel(e.life)
	defer func() {
		if !replaced {
			abandon()
		}
	}()
	c, loaded, err := e.load(loading)
	if err != nil {
		return false, err
	}
	if err := e.untilHealthy(ctx, c, loaded.HealthChecks, e.options.Patience); err != nil {
		return false, err
	}
	e.mu.Lock()
	stored := e.stored
	e.mu.Unlock()
	if stored != nil {
		if err := check(ctx, stored, c, encryptionconfig.StaticTransformers(loaded.Transformers)); err != nil {
			return false, err
		}
	}
	e.dynamic.Set(loaded.Transformers, abandon, loaded.HealthChecks[0], loaded.KMSCloseGracePeriod)
	e.current.Store(c)
	metrics.RecordEncryptionConfigAutomaticReloadSuccess(e.options.Server, c.hash)
	return true, nil
}
