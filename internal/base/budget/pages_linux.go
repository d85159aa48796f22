package budget

import (
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const largePage = 2 << 20

// advise lets the kernel use large pages for memory. Go's heap grows by multiples of them.
func (p *Pages) advise(memory []byte) {
	if p.large == nil {
		p.large, p.asks = map[uintptr]struct{}{}, largeOnRequest()
	}
	if !p.asks {
		return
	}
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	for at := begin &^ (largePage - 1); at < begin+uintptr(len(memory)); at += largePage {
		if _, known := p.large[at]; !known {
			p.large[at] = struct{}{}
			madvise(at, unix.MADV_HUGEPAGE)
		}
	}
}

// End keeps the large pages that are in use, and lets the kernel make no others: it would give back to the process what the heap
// has released in between.
func (p *Pages) End() {
	for at := range p.large {
		madvise(at, unix.MADV_NOHUGEPAGE)
	}
	p.large = nil
}

// madvise ignores errors: it is advice, which a kernel without large pages does not take.
func madvise(at uintptr, advice uintptr) {
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, at, largePage, advice)
}

// largeOnRequest reports whether the kernel uses large pages only where a process asks for them. Elsewhere it uses them always or
// never.
func largeOnRequest() bool {
	enabled, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && strings.Contains(string(enabled), "[madvise]")
}
