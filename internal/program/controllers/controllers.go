// Package controllers runs the controllers that a user declares with a server. It selects them and restarts
// controllers that fail.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/model/define"
)

// All selects all controllers that are not off.
const All = "*"

// Select returns the selected controllers in the order of their declaration. In a selection, * adds all controllers that
// are not off, define.EveryController adds those, too, a name adds one, and -name removes one. An unknown name is an error.
func Select(all []define.Controller, selection []string) ([]define.Controller, error) {
	for _, s := range selection {
		name := strings.TrimPrefix(s, "-")
		if s != All && s != define.EveryController && !slices.ContainsFunc(all, func(c define.Controller) bool { return c.Name == name }) {
			return nil, fmt.Errorf("unknown controller %q; there %s", name, are(all))
		}
	}
	var selected []define.Controller
	for _, c := range all {
		added := slices.ContainsFunc(selection, func(s string) bool {
			return s == c.Name || s == define.EveryController || s == All && !c.Off
		})
		if added && !slices.Contains(selection, "-"+c.Name) {
			selected = append(selected, c)
		}
	}
	return selected, nil
}

func are(all []define.Controller) string {
	if len(all) == 0 {
		return "are none"
	}
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.Name
	}
	if len(names) == 1 {
		return "is only " + names[0]
	}
	return "are " + strings.Join(names, ", ")
}

// Waits before a failed controller restarts: the first wait, the longest wait, and how long a controller must have
// run for its next wait to be the first again.
const (
	firstWait   = time.Second
	longestWait = time.Minute
	goodRun     = 5 * time.Minute
)

// Run runs controllers until the context ends and all of them have returned. A controller that fails or panics is
// restarted after a wait that doubles from a second to a minute; a controller that returns nil is done. Failures
// are logged.
func Run(ctx context.Context, selected []define.Controller, env any, c clock.Clock) {
	var all sync.WaitGroup
	for _, controller := range selected {
		all.Go(func() { keepRunning(ctx, controller, env, c) })
	}
	all.Wait()
}

func keepRunning(ctx context.Context, controller define.Controller, env any, c clock.Clock) {
	log := klog.FromContext(ctx).WithValues("controller", controller.Name)
	delay := restarts()
	for {
		began := c.Now()
		err := runOnce(ctx, controller, env)
		switch {
		case ctx.Err() != nil:
			if err != nil && !errors.Is(err, ctx.Err()) {
				log.Error(err, "Controller ended with an error")
			}
			return
		case err == nil:
			log.Info("Controller finished")
			return
		}
		if c.Since(began) >= goodRun {
			delay = restarts()
		}
		pause := delay()
		log.Error(err, "Controller failed", "runsAgainAfter", pause)
		if !await.Sleep(ctx, c, pause) {
			return
		}
	}
}

// restarts returns a function that returns the waits before successive restarts.
func restarts() func() time.Duration {
	return wait.Backoff{Duration: firstWait, Factor: 2, Cap: longestWait, Steps: math.MaxInt}.DelayFunc()
}

// runOnce turns a panic into an error: a panicking controller must not end the server.
func runOnce(ctx context.Context, controller define.Controller, env any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return controller.Run(ctx, env)
}
