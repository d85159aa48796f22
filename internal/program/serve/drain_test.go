package serve

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/program/plan"
)

func TestLeave_shutdownDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{
			plan:     &plan.Plan{Options: config.Options{ShutdownDelay: 5 * time.Second}},
			mode:     &standalone{},
			draining: make(chan struct{}),
			stopping: make(chan struct{}),
		}
		began := time.Now()
		go func() {
			<-s.draining
			if took := time.Since(began); took != 0 {
				t.Errorf("it was ready for another %s", took)
			}
		}()
		s.leave(t.Context())
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it answered for %s", took)
		}
		select {
		case <-s.stopping:
			t.Error("watches were ended")
		default:
		}
	})
}
