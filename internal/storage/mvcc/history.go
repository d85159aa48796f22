package mvcc

// history holds every event that has not been compacted, one for each revision. The core's mu guards it.
type history struct {
	events []*version // starts with revision after+1
	after  uint64
	bytes  int64 // sum of the weights of all events

	// The values that events up to cold replaced are no longer in memory; hotBytes is the size of the values that later
	// events replaced.
	cold     uint64
	hotBytes int64

	// drop removes a value from memory.
	drop func(*version)
}

func (h *history) start(revision uint64) { h.after, h.cold = revision, revision }

// append adds the next event. It drops the oldest replaced values beyond hotLimit bytes.
func (h *history) append(v *version, hotLimit int64) {
	h.events = append(h.events, v)
	replaced := v.previous.Load()
	h.bytes += v.weight(replaced)
	h.hotBytes += replaced.hot()
	for h.hotBytes > hotLimit {
		h.cool()
	}
}

// cool drops the oldest replaced value from memory.
func (h *history) cool() {
	replaced := h.at(h.cold + 1).previous.Load()
	h.cold++
	if bytes := replaced.hot(); bytes > 0 {
		h.hotBytes -= bytes
		h.drop(replaced)
	}
}

// at returns the event of a revision, which must be in the history.
func (h *history) at(revision uint64) *version { return h.events[revision-h.after-1] }

func (h *history) last() uint64 { return h.after + uint64(len(h.events)) }

// upTo returns the events up to and including a revision.
func (h *history) upTo(revision uint64) []*version {
	if revision <= h.after {
		return nil
	}
	return h.events[:revision-h.after]
}

// trim removes the events up to a revision.
func (h *history) trim(revision uint64) {
	for h.cold < revision {
		h.cool()
	}
	gone := h.upTo(revision)
	for _, v := range gone {
		h.bytes -= v.weight(v.previous.Load())
	}
	h.after += uint64(len(gone))
	h.events = h.events[len(gone):]
	clear(gone)
}

// hot returns the size of the value that a replaced version may keep in memory.
func (v *version) hot() int64 {
	if v.live() == 0 {
		return 0
	}
	return int64(v.size)
}
