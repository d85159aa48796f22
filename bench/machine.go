package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// machine describes the machine that the figures depend on.
type machine struct {
	processor  string
	processors int
	memory     string
	kernel     string
	fileSystem string
	goVersion  string
}

func describeMachine(dir string) (machine, error) {
	m := machine{processors: runtime.NumCPU(), goVersion: runtime.Version()}
	m.processor = valueIn("/proc/cpuinfo", "model name")
	m.memory = valueIn("/proc/meminfo", "MemTotal")
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, fmt.Errorf("this needs Linux: %w", err)
	}
	m.kernel = strings.TrimSpace(string(release))
	m.fileSystem, err = fileSystemOf(dir)
	return m, err
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

// fileSystemOf returns the type of a directory's file system.
func fileSystemOf(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return "", err
	}
	found, longest := "unknown", -1
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		point := strings.TrimSuffix(fields[1], "/")
		if (dir == point || strings.HasPrefix(dir, point+"/")) && len(point) > longest {
			found, longest = fields[2], len(point)
		}
	}
	return found, nil
}
