package mvcc

// latestValues bounds the encoded values of the latest versions that are in memory.
// Beyond that, those that were written longest ago are read from the journal. A few
// large values would take the place of very many others, and reading one costs little
// beside decoding it, so that they share a part of the budget. The core's mu guards it.
type latestValues struct {
	slabs      slabs // of all values in memory
	largeValue int64 // the size from which a value is large
	budget     int64 // of all of them
	small      recentValues
	large      recentValues
	mostLarge  int64 // the part of the budget
}

// recentValues are values in the order in which they were written.
type recentValues struct {
	bytes int64
	queue []*version // longest ago first; those that have been replaced may be among them
	stale int        // how many of them, at least
}

// newLatestValues returns an empty one with the options of a core.
func newLatestValues(o Options) latestValues {
	l := latestValues{budget: o.ValueBytes, mostLarge: o.ValueBytes / largeValuesPart, largeValue: o.LargeValue}
	if o.Resident {
		l.slabs.off = true
		l.mostLarge = l.budget // the journal has them in memory
	}
	return l
}

// bytes is how much is in memory.
func (l *latestValues) bytes() int64 { return l.small.bytes + l.large.bytes }

// of returns where a version's value counts.
func (l *latestValues) of(v *version) *recentValues {
	if int64(v.size) >= l.largeValue {
		return &l.large
	}
	return &l.small
}

// add takes a new version and what it replaces.
func (l *latestValues) add(v, replaced *version) {
	if replaced.live() != 0 {
		replaced.replaced = true
		if replaced.kept {
			l.of(replaced).replace(replaced)
		}
	}
	if v.deleted {
		return
	}
	v.kept = true
	in := l.of(v)
	in.bytes += int64(v.size)
	in.queue = append(in.queue, v)
	l.slabs.keep(v)
	for l.large.bytes > l.mostLarge {
		l.large.drop(&l.slabs)
	}
	for l.bytes() > l.budget {
		if l.small.bytes > 0 {
			l.small.drop(&l.slabs)
		} else {
			l.large.drop(&l.slabs)
		}
	}
}

// replace takes out a version that has been replaced, whose value is the history's now.
func (r *recentValues) replace(v *version) {
	r.bytes -= int64(v.size)
	if r.stale++; r.stale > len(r.queue)/2+1024 {
		r.tidy()
	}
}

// drop takes the oldest value out of memory. A version that has been replaced is the
// history's to drop.
func (r *recentValues) drop(slabs *slabs) {
	v := r.queue[0]
	r.queue[0] = nil
	r.queue = r.queue[1:]
	if v.replaced {
		r.stale--
		return
	}
	v.kept = false
	r.bytes -= int64(v.size)
	slabs.drop(v)
}

// tidy leaves out what has been replaced.
func (r *recentValues) tidy() {
	queue := make([]*version, 0, len(r.queue)-r.stale)
	for _, v := range r.queue {
		if !v.replaced {
			queue = append(queue, v)
		}
	}
	r.queue, r.stale = queue, 0
}
