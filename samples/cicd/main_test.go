package main

import (
	"os"
	"testing"

	"github.com/annexapi/annex/annextest"
)

// The server runs in this process, on a free port, with its objects in memory.
func TestSamples_areAccepted(t *testing.T) {
	skipWithoutKinds(t)
	annextest.Apply(t, annextest.Start(t, server()), "config/samples/*.yaml")
}

// Each version can represent the values of all others.
func TestVersions_roundTrip(t *testing.T) {
	skipWithoutKinds(t)
	annextest.RoundTrip(t, server())
}

// stored is the folder of stored objects, which make golden creates.
const stored = "testdata/stored"

func TestStoredObjects_stayReadable(t *testing.T) {
	if _, err := os.Stat(stored); err != nil {
		t.Skip("no objects are kept yet: make golden")
	}
	annextest.GoldenObjects(t, server(), stored)
}

func skipWithoutKinds(t *testing.T) {
	t.Helper()
	if len(server().Groups) == 0 {
		t.Skip("no kinds yet: annex create api adds one")
	}
}
