package mvcc

// latestValues bounds the encoded values of the latest versions that are in memory.
// Beyond that, those that were written longest ago are read from the journal. The
// core's mu guards it.
type latestValues struct {
	budget int64
	bytes  int64
	queue  []*version // longest ago first; those that have been replaced may be among them
	stale  int        // how many of them, at least
	slabs  slabs      // of all values in memory
}

// add takes a new version and what it replaces.
func (l *latestValues) add(v, replaced *version) {
	if replaced.live() != 0 {
		replaced.replaced = true
		if replaced.kept {
			l.bytes -= int64(replaced.size)
			l.stale++
		}
	}
	if v.deleted {
		return
	}
	v.kept = true
	l.bytes += int64(v.size)
	l.queue = append(l.queue, v)
	l.slabs.keep(v)
	for l.bytes > l.budget {
		l.drop()
	}
	if l.stale > len(l.queue)/2+1024 {
		l.tidy()
	}
}

// drop takes the oldest value out of memory. A version that has been replaced is the
// history's to drop.
func (l *latestValues) drop() {
	v := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	if v.replaced {
		l.stale--
		return
	}
	v.kept = false
	l.bytes -= int64(v.size)
	l.slabs.drop(v)
}

// tidy leaves out what has been replaced.
func (l *latestValues) tidy() {
	queue := make([]*version, 0, len(l.queue)-l.stale)
	for _, v := range l.queue {
		if !v.replaced {
			queue = append(queue, v)
		}
	}
	l.queue, l.stale = queue, 0
}
