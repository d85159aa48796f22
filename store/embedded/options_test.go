package embedded

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

func TestLowDiskSpace_reportedOnlyBelowNearlyFull(t *testing.T) {
	var log bytes.Buffer
	event := databaseOptions(Options{}, nil, nil, slog.New(slog.NewTextHandler(&log, nil))).EventListener.LowDiskSpace
	event(pebble.LowDiskSpaceInfo{AvailBytes: 90 << 30, TotalBytes: 1 << 40, PercentThreshold: 10})
	if log.Len() != 0 {
		t.Errorf("a disk with 90 GiB available: %s", &log)
	}
	event(pebble.LowDiskSpaceInfo{AvailBytes: 1 << 30, TotalBytes: 100 << 30, PercentThreshold: 1})
	if want := "the disk is nearly full"; !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "available=1073741824") {
		t.Errorf("a disk with 1 GiB available: %q, without %q", &log, want)
	}
}
