package serve

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
)

// holder describes the process that listens on a port: its program and its number, which Linux shows of the processes of the same
// user. It is "another program" if the process is unknown.
func holder(port string) string {
	unknown := "another program"
	number, err := strconv.Atoi(port)
	if err != nil {
		return unknown
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for _, socket := range listeningSockets(string(text), number) {
			if process, ok := processOf(socket); ok {
				return process
			}
		}
	}
	return unknown
}

// listeningSockets returns the inodes of the sockets in a table of the kernel that listen on a port.
func listeningSockets(table string, port int) []string {
	const listening, local, state, inode = "0A", 1, 3, 9
	suffix := fmt.Sprintf(":%04X", port)
	var found []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > inode && fields[state] == listening && strings.HasSuffix(fields[local], suffix) {
			found = append(found, fields[inode])
		}
	}
	return found
}

// processOf describes the process that has opened a socket.
func processOf(inode string) (string, bool) {
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return "", false
	}
	for _, file := range files {
		if target, err := os.Readlink(file); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		process := filepath.Dir(filepath.Dir(file))
		name, err := os.ReadFile(filepath.Join(process, "comm"))
		if err != nil {
			return "", false
		}
		return fmt.Sprintf("%s (process %s)", strings.Map(printable, string(name)), filepath.Base(process)), true
	}
	return "", false
}

// printable removes runes of a process's name, which any process chooses itself, that are not for a terminal.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return -1
}

// freePort returns a free port of a host above the given one, or 0, with which the system chooses one.
func freePort(host, port string) int {
	const tried = 20
	number, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	for next := number + 1; next <= min(number+tried, 65535); next++ {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(next))); err == nil {
			if l.Close() == nil {
				return next
			}
		}
	}
	return 0
}
