package logfile

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// Not parallel: the log belongs to the process.
func TestLosses_loggedOncePerMinute(t *testing.T) {
	var log strings.Builder
	defer klog.CaptureState().Restore()
	klog.SetLogger(funcr.New(func(_, line string) { log.WriteString(line + "\n") }, funcr.Options{}))
	synctest.Test(t, func(t *testing.T) {
		l := NewLosses("Lines")
		full := errors.New("the disk is full")
		expect := func(when string, want ...string) {
			t.Helper()
			if n := strings.Count(log.String(), "\n"); n != len(want) {
				t.Errorf("%s: %d lines, want %d:\n%s", when, n, len(want), log.String())
			}
			for _, part := range want {
				if !strings.Contains(log.String(), part) {
					t.Errorf("%s: no %s in\n%s", when, part, log.String())
				}
			}
			log.Reset()
		}
		for range 1000 {
			l.Add(2, full)
		}
		expect("at once", `"msg"="Lines are lost" "error"="the disk is full" "lost"=2`)
		time.Sleep(reportInterval)
		l.Add(1, full)
		expect("a minute later", `"lost"=1999`)
		l.Add(3, full)
		l.Report()
		l.Report()
		expect("at the end", `"lost"=3`)
		if l.Total() != 2004 {
			t.Errorf("%d lost", l.Total())
		}
	})
}
