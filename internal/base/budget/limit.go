package budget

import (
	"bytes"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// share is the divisor of the process's memory for the default budget. As much again is for garbage, the rest for
// stored objects and caches.
const share = 4

// mostByDefault bounds the default. Lists in their stored form need hardly any memory. Lists that need much, such as
// tables of very many objects, are computed by a few processors, so running more of them concurrently makes none of
// them faster.
const mostByDefault = 1 << 30

// unknownMemory is assumed for a machine whose memory cannot be determined.
const unknownMemory = 4 << 30

// Default returns the default budget of a process in bytes: a quarter of the memory that it may use, and at most 1
// GiB.
func Default() int64 { return min(Available()/share, mostByDefault) }

// Available returns the memory that the process may use, in bytes: the smallest of Go's soft memory limit
// (GOMEMLIMIT), the limit of its container and the memory of the machine; 4 GiB if none of them is known.
func Available() int64 {
	limit := debug.SetMemoryLimit(-1) // changes nothing
	if container := ContainerLimit(); container > 0 {
		limit = min(limit, container)
	}
	if machine := machineMemory(); machine > 0 {
		limit = min(limit, machine)
	}
	if limit == math.MaxInt64 {
		limit = unknownMemory
	}
	return limit
}

// ContainerLimit returns the smallest memory limit of the process's control group and its parents, in bytes; 0 if
// there is none.
func ContainerLimit() int64 { return containerLimit(os.ReadFile) }

// containerLimit reads the kernel's files about control groups, of version 2 and 1.
func containerLimit(read func(name string) ([]byte, error)) int64 {
	groups, err := read("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	limit := int64(math.MaxInt64)
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		switch {
		case parts[1] == "memory":
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case parts[0] != "0":
			continue
		}
		// In a container the path may be the host's, while only the root exists.
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			if text, err := read(path.Join(root, at, file)); err == nil {
				if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && n > 0 {
					limit = min(limit, n)
				}
			}
			if at == "/" {
				break
			}
		}
	}
	// Version 1 represents "no limit" by a number near the largest one.
	if limit >= math.MaxInt64/2 {
		return 0
	}
	return limit
}

// soft is the part of a container's limit that the garbage collector may let the process use: the rest is for memory
// that it does not know of.
const soft = 0.9

// SetSoftLimit makes the garbage collector work harder as the process comes near the limit of its container, unless
// GOMEMLIMIT is set in the environment or there is no such limit. Only the process's main function may call it,
// because it affects the whole process.
func SetSoftLimit() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit := ContainerLimit(); limit > 0 {
		debug.SetMemoryLimit(int64(float64(limit) * soft))
	}
}
