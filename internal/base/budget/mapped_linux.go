package budget

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetProgram makes the kernel drop the unchanged pages of the program's file from the process. They stay in the
// kernel's cache, from which needed pages return, 64 KiB or more at once.
//
// A start touches most of a program, and the kernel maps more than is touched: 65 to 90 MB, of which a server needs 7
// while it is idle, and 45 under load. Dropping pages alone would mark the pages touched before as used, and the
// kernel would evict other pages first, so the pages are marked cold before.
func forgetProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer func() { _ = maps.Close() }()
	for _, m := range unchangedMappings(maps, program) {
		for _, advice := range []uintptr{unix.MADV_COLD, unix.MADV_DONTNEED} {
			// It is advice: a kernel that does not support it does nothing.
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, advice)
		}
	}
}

// mapping is a part of the address space.
type mapping struct{ start, end uintptr }

// unchangedMappings returns the mappings of a file that are not writable and in which nothing was changed: the kernel
// would drop changes as well, such as relocations of the dynamic linker or a debugger's breakpoint. It parses the
// kernel's smaps.
func unchangedMappings(smaps io.Reader, file string) []mapping {
	var found []mapping
	var current mapping
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		// start-end permissions offset device inode path, or Name: value
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if first, last, ok := strings.Cut(fields[0], "-"); ok {
			current = mapping{}
			start, err := strconv.ParseUint(first, 16, 64)
			if err != nil {
				continue
			}
			end, err := strconv.ParseUint(last, 16, 64)
			if err != nil || len(fields) < 6 {
				continue
			}
			_, path, _ := strings.Cut(line, "/")
			if permissions := fields[1]; "/"+path == file && (permissions == "r-xp" || permissions == "r--p") {
				current = mapping{uintptr(start), uintptr(end)}
			}
			continue
		}
		if len(fields) < 2 {
			continue
		}
		switch changed := fields[1] != "0"; {
		case fields[0] == "Anonymous:" && !changed && current.end > current.start:
			found = append(found, current)
		case fields[0] == "Swap:" && changed && len(found) > 0 && found[len(found)-1] == current:
			found = found[:len(found)-1] // it has changed pages in memory
		}
	}
	if lines.Err() != nil {
		return nil
	}
	return found
}
