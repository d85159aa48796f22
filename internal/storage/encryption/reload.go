package encryption

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/base/filewatch"
)

// healthInterval is the time between two health checks of the plugins for the log.
const healthInterval = 10 * time.Second

// Run logs changes of the key management plugins' health and, if Options.Reload is set, reads the file again when it
// changes, until ctx is done. The current configuration stays in effect, and the reason is logged, if the new file is
// invalid, if its plugins do not answer, or if it fails Check for the stored objects.
func (e *Encryption) Run(ctx context.Context) {
	if e == nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	if e.options.Reload {
		all.Go(func() { filewatch.Run(ctx, "Encryption configuration", e.options.File, e.follow) })
	}
	for await.Sleep(ctx, clock.RealClock{}, healthInterval) {
		e.report(ctx)
	}
}

func (e *Encryption) follow(ctx context.Context) error {
	replaced, err := e.reload(ctx)
	if replaced {
		klog.FromContext(ctx).Info("Reloaded the encryption configuration", "file", e.options.File)
	}
	return err
}

// reload applies a changed file. It reports whether it replaced the configuration.
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
