package typescript_test

import (
	"os"
	"testing"

	"github.com/annexapi/annex/internal/testing/testlog"
)

func TestMain(m *testing.M) { os.Exit(testlog.Quiet(m).Run()) }
