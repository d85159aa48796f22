package mvcc

import (
	"sync"

	"github.com/annexapi/annex/internal/base/budget"
)

// prepared makes memory for slabs in a goroutine of its own. A replay fills new memory as fast as it reads, and would otherwise
// spend half of its time waiting for the kernel to map pages.
type prepared struct {
	begin  sync.Once
	memory chan []byte
	end    chan struct{}
	work   sync.WaitGroup
}

// preparedSlabs is the number of slabs that are prepared ahead.
const preparedSlabs = 8

func newPrepared() *prepared {
	return &prepared{memory: make(chan []byte, preparedSlabs), end: make(chan struct{})}
}

// next returns memory of slabSize bytes. The goroutine begins with the first call, so that a small replay has none.
func (p *prepared) next() []byte {
	p.begin.Do(func() { p.work.Go(p.prepare) })
	return <-p.memory
}

func (p *prepared) prepare() {
	var pages budget.Pages
	defer pages.End()
	for {
		memory := make([]byte, slabSize)
		pages.Map(memory)
		select {
		case p.memory <- memory:
		case <-p.end:
			return
		}
	}
}

// stop ends the goroutine. next must not be called any more.
func (p *prepared) stop() {
	close(p.end)
	p.work.Wait()
}
