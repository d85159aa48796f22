package budget

// Pages maps memory that fills fast, as that of a start that reads a large storage. The kernel maps a page when it is first used,
// which costs a virtual machine 10 us and more for each 4 KiB, and half of the time of such a start. A page of 2 MiB costs little
// more than one of 4 KiB. The zero value is ready for use, by one goroutine at a time.
type Pages struct {
	large map[uintptr]struct{} // addresses of large pages that the kernel may use
	asks  bool                 // the kernel uses them on request
}

// smallPage is the size of the smallest pages of all systems.
const smallPage = 4 << 10

// Map has the kernel map all pages of memory that has not been used yet, as large ones if it supports them on request. End has to
// follow. Memory beside it, in the same large page, is mapped as well.
func (p *Pages) Map(memory []byte) {
	p.advise(memory)
	for at := 0; at < len(memory); at += smallPage {
		memory[at] = 0
	}
}
