package main

import (
	"os"
	"testing"

	"github.com/annexapi/annex/annextest"
)

// The log of the server is printed if a test fails.
func TestMain(m *testing.M) {
	os.Exit(annextest.Main(m))
}

// The server runs in this process, on a port of its own, with its objects in memory.
func TestTheSamplesAreAccepted(t *testing.T) {
	skipWithoutKinds(t)
	annextest.Apply(t, annextest.Start(t, server()), "config/samples/*.yaml")
}

// What one version says, the others can hold.
func TestVersionsRoundTrip(t *testing.T) {
	skipWithoutKinds(t)
	annextest.RoundTrip(t, server())
}

// stored holds objects as the server has stored them; make golden begins to keep them.
const stored = "testdata/stored"

func TestStoredObjectsStayReadable(t *testing.T) {
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
