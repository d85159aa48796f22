// Package systemd tells the service manager that started a program how the program is. It is for
// programs: what NOTIFY_SOCKET says is of the process, and a server inside of another one leaves
// it to that.
package systemd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"
)

// Manager is the service manager; nothing happens if there is none. Its methods may be called
// concurrently.
type Manager struct {
	interval time.Duration // of the watchdog; 0 is none
}

// FromEnvironment returns the manager that started the process, as the environment variables say
// that systemd sets.
func FromEnvironment() (*Manager, error) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("watchdog of the service manager: %w", err)
	}
	return &Manager{interval}, nil
}

// Ready says that the program does what it was started for.
func (m *Manager) Ready() { m.notify(daemon.SdNotifyReady) }

// Stopping says that the program is about to end.
func (m *Manager) Stopping() { m.notify(daemon.SdNotifyStopping) }

// Watch tells the manager twice in its interval that the program is alive, as long as it is, until
// the context ends or the function returned is called. Otherwise the manager ends the program and
// starts it anew.
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
		klog.Background().Error(err, "The service manager was not told", "state", state)
	}
}
