package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc/pid/stat; Linux shows programs no other.
const clockTick = time.Second / 100

// processorTime returns the processor time that processes have used since they began.
func processorTime(pids []int) (time.Duration, error) {
	var used time.Duration
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// The name in parentheses may contain spaces; state is the first field after it.
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
		}
		for _, field := range fields[11:13] {
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
			used += time.Duration(ticks) * clockTick
		}
	}
	return used, nil
}

// resident returns the current memory of a process, in MB.
func resident(pid int) (float64, error) { return memoryOf(pid, "VmRSS") }

// memoryOf returns a figure of a process's memory by its name in /proc/PID/status, in MB: RssAnon is allocated
// memory, RssFile the resident part of its program, VmHWM the highest resident memory.
func memoryOf(pid int, name string) (float64, error) {
	value := valueIn(fmt.Sprintf("/proc/%d/status", pid), name)
	kilobytes, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 64)
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return kilobytes / 1024, nil
}

// resetPeak makes VmHWM begin anew.
func resetPeak(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the peak of memory: %w", err)
	}
	return nil
}

// valueIn returns the first value of a key in one of Linux's tables.
func valueIn(path, key string) string {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// load returns the machine's load average of a minute.
func load() string {
	data, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(data), " ")
	return first
}
