package mvcc

// latestValues bounds the encoded values of the latest versions that are in memory. Beyond the bound, the values that
// were written longest ago are read from the journal. A few large values would displace very many small ones, and
// reading a large value costs little compared with decoding it, so large values get only a part of the budget. The
// core's mu guards it.
type latestValues struct {
	slabs      slabs // hold the values in memory
	largeValue int64 // the size from which a value is large
	budget     int64 // for all values
	small      recentValues
	large      recentValues
	mostLarge  int64 // the part of the budget for large values
}

// recentValues are values in the order in which they were written.
type recentValues struct {
	bytes int64
	queue []*version // written longest ago first; may contain replaced versions
	stale int        // minimum number of replaced versions in queue
}

// newLatestValues returns an empty latestValues with the options of a core.
func newLatestValues(o Options) latestValues {
	l := latestValues{budget: o.ValueBytes, mostLarge: o.ValueBytes / largeValuesPart, largeValue: o.LargeValue}
	if o.Resident {
		l.slabs.off = true
		l.mostLarge = l.budget // the journal keeps the values in memory anyway
	}
	return l
}

// bytes returns the size of the values in memory.
func (l *latestValues) bytes() int64 { return l.small.bytes + l.large.bytes }

// of returns the recentValues that a version belongs to.
func (l *latestValues) of(v *version) *recentValues {
	if int64(v.size) >= l.largeValue {
		return &l.large
	}
	return &l.small
}

// add adds a new version and marks the version that it replaces.
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

// replace removes the size of a replaced version, whose value now belongs to the history.
func (r *recentValues) replace(v *version) {
	r.bytes -= int64(v.size)
	if r.stale++; r.stale > len(r.queue)/2+1024 {
		r.tidy()
	}
}

// drop removes the oldest value from memory. The value of a replaced version is left to the history.
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

// tidy removes replaced versions from the queue.
func (r *recentValues) tidy() {
	queue := make([]*version, 0, len(r.queue)-r.stale)
	for _, v := range r.queue {
		if !v.replaced {
			queue = append(queue, v)
		}
	}
	r.queue, r.stale = queue, 0
}
