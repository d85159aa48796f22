package coreapi

import (
	"context"
	"errors"
	"testing"
)

func TestDrain_waitsForEarlierCreates(t *testing.T) {
	var f inFlight
	leave := f.enter("lab")
	otherLeaves := f.enter("other")
	defer otherLeaves()

	if err := f.drain(t.Context(), "empty"); err != nil {
		t.Errorf("nothing in progress: %v", err)
	}
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	for range 2 {
		if err := f.drain(ctx, "lab"); !errors.Is(err, stopped) {
			t.Errorf("a create is in progress: %v", err)
		}
	}
	drained := make(chan error)
	go func() { drained <- f.drain(context.Background(), "lab") }()
	leave()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if len(f.creates) != 1 {
		t.Errorf("left behind: %v", f.creates)
	}
}
