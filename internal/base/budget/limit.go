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

// share is the part of the process's memory that is the default budget. As much again
// is for garbage, the rest for what is stored and its caches.
const share = 4

// mostByDefault bounds the default: lists as they are stored need hardly any memory, and those that need much, tables of very many
// objects say, are computed by a few processors, so that having more of them at once makes none of them faster.
const mostByDefault = 1 << 30

// unknownMemory is taken for a machine's memory where it cannot be told.
const unknownMemory = 4 << 30

// Default is the budget of a process that is given none: a quarter of the memory that it
// may use, and 1 GiB at most.
func Default() int64 { return min(Available()/share, mostByDefault) }

// Available is the memory that the process may use, in bytes: the smallest of Go's soft memory limit (GOMEMLIMIT), the
// limit of its container and the memory of the machine; 4 GiB if none of them can be told.
func Available() int64 {
	limit := debug.SetMemoryLimit(-1) // which changes nothing
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

// ContainerLimit is the memory limit of the control group that the process is in, or of
// one that it is in, in bytes; 0 if there is none.
func ContainerLimit() int64 { return containerLimit(os.ReadFile) }

// containerLimit reads what the kernel says of control groups, of version 2 and 1.
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
		// In a container the path may be the host's, and only the root be there.
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
	// Version 1 says "no limit" by a number about as large as there are.
	if limit >= math.MaxInt64/2 {
		return 0
	}
	return limit
}

// soft is how much of a container's limit the garbage collector may let the process use:
// the rest is for what it does not know of.
const soft = 0.9

// SetSoftLimit makes the garbage collector work harder as the process comes near the
// limit of its container, unless the environment (GOMEMLIMIT) says otherwise or there is
// no such limit. It is the process's own decision: only its main function may call it.
func SetSoftLimit() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit := ContainerLimit(); limit > 0 {
		debug.SetMemoryLimit(int64(float64(limit) * soft))
	}
}
