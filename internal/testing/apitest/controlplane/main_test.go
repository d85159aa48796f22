package controlplane

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/program"
)

// TestMain lets the test binary be the program cluster as well.
func TestMain(m *testing.M) {
	testscript.Main(testlog.Quiet(m), map[string]func(){"cluster": func() { program.Main(cluster()) }})
}
