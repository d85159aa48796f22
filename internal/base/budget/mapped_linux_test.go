package budget

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// smaps is the kernel's output for a program with relocations of the dynamic linker, and a breakpoint of a debugger.
const smaps = `00400000-00402000 r--p 00000000 fe:00 10020498                           /opt/a b/server
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me 
00402000-02bfe000 r-xp 00002000 fe:00 10020498                           /opt/a b/server
Rss:               40248 kB
Anonymous:             0 kB
02bfe000-02bff000 r-xp 027fe000 fe:00 10020498                           /opt/a b/server
Anonymous:             4 kB
02bff000-05a7d000 r--p 027ff000 fe:00 10020498                           /opt/a b/server
Anonymous:             0 kB
05a7d000-05a7e000 r--p 0567c000 fe:00 10020498                           /opt/a b/server
Anonymous:             4 kB
05a7e000-05b62000 rw-p 0567d000 fe:00 10020498                           /opt/a b/server
Anonymous:             0 kB
05b62000-05bd0000 rw-p 00000000 00:00 0 
Anonymous:             0 kB
05bd0000-05be0000 r-xs 00000000 fe:00 10020498                           /opt/a b/server
Anonymous:             0 kB
05be0000-05bf0000 r--p 05be0000 fe:00 10020498                           /opt/a b/server
Anonymous:             0 kB
SwapPss:               0 kB
Swap:                 64 kB
05bf0000-05c00000 r--p 05bf0000 fe:00 10020498                           /opt/a b/server
Anonymous:             0 kB
Swap:                  0 kB
c000000000-c000800000 rw-p 00000000 00:00 0                              [anon: Go: heap]
Anonymous:             0 kB
7f6e12a00000-7f6e12a28000 r--p 00000000 fe:00 1316                       /usr/lib/libc.so.6
Anonymous:             0 kB
7f6e12c00000-7f6e12c28000 r--p 00000000 fe:00 1317                       /mnt/opt/a b/server
Anonymous:             0 kB
`

func TestUnchangedMappings(t *testing.T) {
	got := unchangedMappings(strings.NewReader(smaps), "/opt/a b/server")
	want := []mapping{{0x400000, 0x402000}, {0x402000, 0x2bfe000}, {0x2bff000, 0x5a7d000}, {0x5bf0000, 0x5c00000}}
	if !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	for _, bad := range []string{"", "\n\n", "x-y r-xp 0 0 0 /opt/a b/server\nAnonymous: 0 kB\n", "10-z r-xp 0 0 0 /opt/a " +
		"b/server\nAnonymous: 0 kB\n", "Anonymous: 0 kB\n", "10-20\nAnonymous: 0 kB\n", "10-20 r-xp 0 0 0 /opt/a b/server\nAnonymous:\n"} {
		if got := unchangedMappings(strings.NewReader(bad), "/opt/a b/server"); len(got) > 0 {
			t.Errorf("%q: %x", bad, got)
		}
	}
}

// The program continues, with less of its file in memory.
func TestForgetProgram_programContinues(t *testing.T) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Skipf("no proc file system: %v", err)
	}
	said, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skipf("the kernel does not say what is mapped: %v", err)
	}
	if len(unchangedMappings(strings.NewReader(string(said)), program)) == 0 {
		t.Fatalf("nothing of %s is to be forgotten in:\n%s", program, said)
	}
	forgetProgram()
	TestUnchangedMappings(t)
}
