package mvcc

import (
	"context"
	"sort"

	"github.com/annexapi/annex/store/journal"
)

// replay rebuilds the state from the journal. The compacted revision is known only at the end of a replay, so records
// are linked first and checked afterwards.
func (c *Core) replay(ctx context.Context) error {
	var versions []*version
	link := c.linker()
	ahead := newPrepared()
	defer ahead.stop()
	c.values.slabs.ahead = ahead
	values := slabs{off: c.options.Resident, again: c.values.slabs.again, ahead: ahead}
	linked := 0
	compacted, err := c.journal().Replay(ctx, func(r journal.Record) error {
		if len(versions) > 0 && r.Revision <= versions[len(versions)-1].revision {
			return journal.Damaged(r.Revision, "comes after revision %d", versions[len(versions)-1].revision)
		}
		if r.Revision <= firstRevision {
			return journal.Damaged(r.Revision, "the first revision ever is %d", firstRevision+1)
		}
		if n := len(versions) - linked; n >= linkBatch && !values.room(len(r.Value)) || n >= mostLinked {
			link.queue <- versions[linked:]
			linked = len(versions)
			values.inUse = nil // the linker owns this slab from now on
		}
		versions = append(versions, values.versionOf(r))
		return ctx.Err()
	})
	link.queue <- versions[linked:]
	link.end()
	if err != nil {
		return err
	}

	c.compacted.Store(compacted)
	revision := max(compacted, firstRevision)
	base := sort.Search(len(versions), func(i int) bool { return versions[i].revision > compacted })
	for _, v := range versions[:base] {
		if err := checkBase(v, compacted); err != nil {
			return err
		}
	}
	c.history.start(revision)
	c.history.events = make([]*version, 0, len(versions)-base)
	for _, v := range versions[base:] {
		revision++
		if err := checkEvent(v, revision); err != nil {
			return err
		}
		c.history.append(v, c.options.HotBytes)
	}
	c.values.slabs.settle(versions)
	c.assigned = revision
	c.published.Store(revision)
	for v := range c.latest.from("") {
		c.expiry.add(v)
	}
	return nil
}

// linkBatch is the number of versions that are linked at once. A batch grows beyond it, up to mostLinked, until its
// values have filled a slab.
const linkBatch, mostLinked = 128, 8192

// memoryAgain is the largest number of slabs that wait to be reused.
const memoryAgain = 64

// linker puts versions into the tree in a goroutine of its own, while replay reads and checks records.
type linker struct {
	queue chan []*version
	done  chan struct{}
}

func (c *Core) linker() *linker {
	l := &linker{queue: make(chan []*version, 8), done: make(chan struct{})}
	c.values.slabs.again = make(chan []byte, memoryAgain)
	go func() {
		defer close(l.done)
		// It is not known yet which replaced versions the history needs, and all values that were ever replaced may be
		// many times the size of the values that stay. So only the newest HotBytes of replaced values are kept.
		var replacedBytes int64
		var hot []*version
		for batch := range l.queue {
			for _, v := range batch {
				replaced := c.latest.set(v)
				v.previous.Store(replaced)
				if replaced != nil {
					v.key = replaced.key // equal; all versions of a key share one string
				}
				c.values.add(v, replaced)
				if replaced.hot() == 0 {
					continue
				}
				hot = append(hot, replaced)
				for replacedBytes += replaced.hot(); replacedBytes > c.options.HotBytes; hot = hot[1:] {
					replacedBytes -= hot[0].hot()
					c.values.slabs.drop(hot[0])
				}
			}
		}
	}()
	return l
}

// end waits until all versions are linked.
func (l *linker) end() {
	close(l.queue)
	<-l.done
}

// firstRevision is the revision of an empty store; 0 means "any" in the API.
const firstRevision = 1

// checkBase checks a record at or below the compacted revision: compaction leaves only objects there, and one for each
// key.
func checkBase(v *version, compacted uint64) error {
	if previous := v.previous.Load(); v.deleted || previous != nil {
		return journal.Damaged(v.revision, "of %q should have left nothing behind when revision %d was compacted", v.key, compacted)
	}
	return nil
}

// checkEvent checks a record of the history: no revision is missing, and each event matches the previous version of its
// key.
func checkEvent(v *version, revision uint64) error {
	switch previous := v.previous.Load(); {
	case v.revision != revision:
		return journal.Damaged(revision, "is missing, the next record is revision %d", v.revision)
	case v.superseded != previous.live():
		return journal.Damaged(
			v.revision,
			"of %q replaces revision %d, but the object before it is revision %d",
			v.key,
			v.superseded,
			previous.live(),
		)
	case v.deleted && v.superseded == 0:
		return journal.Damaged(v.revision, "deletes %q, which did not exist", v.key)
	}
	return nil
}
