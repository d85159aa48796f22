package main

import (
	"testing"

	"github.com/annexapi/annex/annextest"
)

// The server runs in this process, on a port of its own, with its objects in memory.
func TestTheSamplesAreAccepted(t *testing.T) {
	skipWithoutKinds(t)
	annextest.Apply(t, annextest.Start(t, server()), "config/samples/*.yaml")
}

func skipWithoutKinds(t *testing.T) {
	t.Helper()
	if len(server().Groups) == 0 {
		t.Skip("no kinds yet: annex create api adds one")
	}
}
