package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cpuTime returns the processor time that this process and the backend's etcd server, if there is one, have used.
func (s *system) cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	used := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if s.server != nil {
		used += processTime(b, s.server.Process.Pid)
	}
	return used
}

// clockTick is the unit of /proc/pid/stat; Linux shows programs no other.
const clockTick = time.Second / 100

func processTime(b *testing.B, pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// The name in parentheses may contain spaces; state is the first field after it.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}

// reportMemory reports the current and the highest resident memory.
func (s *system) reportMemory(b *testing.B) {
	b.ReportMetric(residentMB(b, "self", "VmRSS"), "RSS-MB")
	b.ReportMetric(residentMB(b, "self", "VmHWM"), "peak-RSS-MB")
	if s.server != nil {
		b.ReportMetric(residentMB(b, strconv.Itoa(s.server.Process.Pid), "VmRSS"), "etcd-RSS-MB")
	}
}

func residentMB(b *testing.B, pid, name string) float64 {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kilobytes, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			if err != nil {
				b.Fatal(err)
			}
			return kilobytes / 1024
		}
	}
	b.Fatalf("no %s in /proc/%s/status", name, pid)
	return 0
}

// meter measures the cost of a number of operations.
type meter struct {
	system *system
	b      *testing.B
	start  time.Time
	cpu    time.Duration
}

func (s *system) measure(b *testing.B) *meter {
	return &meter{system: s, b: b, start: time.Now(), cpu: s.cpuTime(b)}
}

// done reports the rate of operations and the processor time of each. The time of one benchmark iteration, which
// covers all of them, is meaningless.
func (m *meter) done(operation string, count int) {
	elapsed, used := time.Since(m.start), m.system.cpuTime(m.b)-m.cpu
	m.b.ReportMetric(float64(count)/elapsed.Seconds(), operation+"s/s")
	m.b.ReportMetric(float64(used.Nanoseconds())/1e3/float64(count), "cpu-us/"+operation)
	m.b.ReportMetric(0, "ns/op")
}
