package budget

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

func TestPages_Map_allowsLargePagesUntilEnd(t *testing.T) {
	if !largeOnRequest() {
		t.Skip("this kernel has no large pages on request")
	}
	memory := make([]byte, 3*largePage)
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	var p Pages
	p.Map(memory)
	p.Map(memory[:1]) // again is no harm
	for at := begin; at < begin+uintptr(len(memory)); at += largePage {
		if flags := flagsOf(t, at); !strings.Contains(flags, " hg") {
			t.Errorf("the kernel may not use large pages after Map: %s", flags)
		}
	}
	p.End()
	p.End()
	for at := begin; at < begin+uintptr(len(memory)); at += largePage {
		if flags := flagsOf(t, at); strings.Contains(flags, " hg") {
			t.Errorf("the kernel may use large pages after End: %s", flags)
		}
	}
	for i, b := range memory {
		if b != 0 {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
}

// flagsOf returns the flags of the mapping that has an address.
func flagsOf(t *testing.T, at uintptr) string {
	t.Helper()
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	within := false
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var first, last uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &first, &last); n == 2 {
			within = first <= at && at < last
		}
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && within {
			return flags
		}
	}
	t.Fatalf("no mapping has the address %x", at)
	return ""
}
