package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticks is the number of the kernel's clock ticks in a second, which is the same on all systems that Go runs on.
const ticks = 100

// resetPeak makes the kernel count the peak of a process's memory anew.
func resetPeak(pid int) error {
	if pid == 0 {
		return nil
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the peak of memory: %w", err)
	}
	return nil
}

// peak returns the most resident memory of a process since resetPeak, in bytes; 0 without a process.
func peak(pid int) (int64, error) { return statusOf(pid, "VmHWM:") }

// resident returns the resident memory of a process, in bytes; 0 without a process.
func resident(pid int) (int64, error) { return statusOf(pid, "VmRSS:") }

func statusOf(pid int, name string) (int64, error) {
	if pid == 0 {
		return 0, nil
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of the server: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, fmt.Errorf("read the memory of the server: /proc/%d/status has no %s", pid, name)
}

// processorTime returns the processor time that a process has used; 0 without a process.
func processorTime(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of the server: %w", err)
	}
	// The fields after the name, which may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the processor time of the server: %q", stat)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticks, err
}
