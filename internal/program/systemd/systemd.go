// Package systemd reports the state of a program to the service manager that started it. It is for whole programs:
// NOTIFY_SOCKET belongs to the process, so a server that is embedded in a program must leave the notification to
// the program.
package systemd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"
)

// Manager is the service manager. Without one, its methods do nothing. They may be called concurrently.
type Manager struct {
	interval time.Duration // of the watchdog; 0 disables it
}

// FromEnvironment returns the manager that started the process, from the environment variables that systemd sets.
// It returns an error if the variables of the watchdog are invalid.
func FromEnvironment() (*Manager, error) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("watchdog of the service manager: %w", err)
	}
	return &Manager{interval}, nil
}

// Ready notifies the manager that the program has started.
func (m *Manager) Ready() { m.notify(daemon.SdNotifyReady) }

// Stopping notifies the manager that the program is about to end.
func (m *Manager) Stopping() { m.notify(daemon.SdNotifyStopping) }

// Watch notifies the manager twice per watchdog interval while alive returns true, until the context ends or the
// returned function is called. When notifications stop, the manager restarts the program.
func (m *Manager) Watch(ctx context.Context, alive func(context.Context) bool) (end func()) {
	if m.interval == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(m.interval / 2)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if alive(ctx) {
				m.notify(daemon.SdNotifyWatchdog)
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

func (m *Manager) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		klog.Background().Error(err, "Failed to notify the service manager", "state", state)
	}
}
