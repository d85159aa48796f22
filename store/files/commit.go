package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/annexapi/annex/store/journal"
)

const (
	batchLimit = 512 // records in one commit
	syncLimit  = 64  // files that are written at once
)

// operation is one change to the files: a record, or an object file that is to be
// brought in line with the record there is.
type operation struct {
	record journal.Record
	// fresh says that the record is new.
	fresh bool
	// proposal is whose file the record has come from; nil if from none.
	proposal *Proposal
	// run is something else that must not happen beside a commit.
	run func() error
	// heals says that run is for a journal that has failed.
	heals bool
	done  chan struct{}
	err   error

	before  entry  // what was known of the key; without a key if nothing
	next    object // what will be
	place   place
	placed  bool
	side    string // temporary names of what has been written, empty if nothing has
	content string
	stamp   stamp // of the content
	present bool  // something is where the content goes
	touched bool  // the object file is not what it was thought to be: it was left alone
	durable bool  // the record is
}

// enqueue hands an operation to the committer. It needs mu.
func (j *Journal) enqueue(o *operation) {
	if o.run == nil {
		j.queued[o.record.Key]++
	}
	j.queue = append(j.queue, o)
	select {
	case j.work <- struct{}{}:
	default:
	}
}

// do runs something while nothing is committed.
func (j *Journal) do(run func() error) error {
	o := &operation{run: run, done: make(chan struct{})}
	j.mu.Lock()
	if err := j.errLocked(); err != nil {
		j.mu.Unlock()
		return err
	}
	j.enqueue(o)
	j.mu.Unlock()
	<-o.done
	return o.err
}

// commitAll commits what is enqueued until the journal is closed.
func (j *Journal) commitAll() {
	defer close(j.stopped)
	for {
		select {
		case <-j.work:
		case <-j.stop:
			for j.commitNext() {
			}
			return
		}
		for j.commitNext() {
		}
	}
}

// commitNext commits what can be committed at once: one operation for each key. It
// tells whether there was any.
func (j *Journal) commitNext() bool {
	j.mu.Lock()
	var batch []*operation
	keys := map[string]bool{}
	for _, o := range j.queue {
		if len(batch) == batchLimit || keys[o.record.Key] || o.run != nil && len(batch) > 0 {
			break
		}
		batch = append(batch, o)
		if o.run != nil {
			break
		}
		keys[o.record.Key] = true
		if e := j.entries[o.record.Key]; e != nil {
			o.before = *e
		}
	}
	if j.queue = j.queue[len(batch):]; len(j.queue) == 0 {
		j.queue = nil
	}
	failure := j.failure
	j.mu.Unlock()
	if len(batch) == 0 {
		return false
	}
	switch {
	case batch[0].heals:
		failure = batch[0].run()
	case failure != nil:
	case batch[0].run != nil:
		if failure = batch[0].run(); failure != nil {
			j.fail(failure, nil)
		}
	default:
		if failure = j.commit(batch); failure != nil {
			j.fail(failure, batch)
		}
	}
	j.mu.Lock()
	for _, o := range batch {
		if o.run == nil {
			if j.queued[o.record.Key]--; j.queued[o.record.Key] == 0 {
				delete(j.queued, o.record.Key)
			}
		}
	}
	j.mu.Unlock()
	for _, o := range batch {
		o.err = failure
		close(o.done)
		if o.touched && failure == nil {
			j.look(o.place.stem + yamlSuffix)
			j.look(o.place.stem + binarySuffix)
		}
	}
	return true
}

// commit makes a batch durable: first the side files, then the object files.
func (j *Journal) commit(batch []*operation) error {
	// A record that another one has overtaken needs no object file any more.
	live := batch[:0:0]
	for _, o := range batch {
		if o.fresh || o.before.revision == o.record.Revision {
			live = append(live, o)
		}
	}
	if err := j.reserveFor(live); err != nil {
		return err
	}
	if err := parallel(len(live), func(i int) error { return j.prepare(live[i], i) }); err != nil {
		return err
	}
	dirs := map[string]bool{}
	for _, o := range live {
		to := sidePath(o.record.Key)
		if err := j.moveInto(o.side, to); err != nil {
			return err
		}
		dirs[path.Dir(to)] = true
	}
	if err := j.syncAll(dirs); err != nil {
		return err
	}
	for _, o := range live {
		o.durable = true
	}
	dirs = map[string]bool{}
	for _, o := range live {
		if err := j.putObject(o, dirs); err != nil {
			return err
		}
	}
	if err := j.syncAll(dirs); err != nil {
		return err
	}
	for _, o := range live {
		if o.record.Deleted {
			if err := j.files.Remove(sidePath(o.record.Key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, o := range live {
		j.settle(o)
		j.committed = max(j.committed, o.record.Revision)
	}
	return nil
}

func (j *Journal) reserveFor(batch []*operation) error {
	for _, o := range batch {
		if o.record.Revision > j.state.Ceiling {
			// Everything before this batch is finished.
			return j.reserveAbove(batch)
		}
	}
	return nil
}

func (j *Journal) reserveAbove(batch []*operation) error {
	first, last := uint64(0), uint64(0)
	for _, o := range batch {
		if o.fresh {
			last = max(last, o.record.Revision)
			if first == 0 || o.record.Revision < first {
				first = o.record.Revision
			}
		}
	}
	next := j.state
	next.Ceiling, next.Finished, next.Closed = last+revisionRun, j.finished(first-1), false
	return j.writeState(next)
}

// prepare decides what becomes of the object file, and writes both files under
// temporary names.
func (j *Journal) prepare(o *operation, n int) error {
	content, err := j.decide(o)
	if err != nil {
		return err
	}
	data, err := sideRecord{o.record, o.next}.encode()
	if err != nil {
		return err
	}
	o.side = path.Join(tempDir, strconv.Itoa(n)+recordSuffix)
	if _, err := j.write(o.side, data); err != nil {
		return err
	}
	if content == nil {
		return nil
	}
	o.content = path.Join(tempDir, strconv.Itoa(n)+o.next.Suffix)
	info, err := j.write(o.content, content)
	if err == nil {
		o.stamp = stampOf(info)
	}
	return err
}

// decide says what the object file will be, and returns its content if it has to be
// written.
func (j *Journal) decide(o *operation) ([]byte, error) {
	o.place, o.placed = j.layout.place(o.record.Key)
	if !o.placed {
		return nil, nil
	}
	before := o.before.object
	replaces := before.SHA256
	if o.proposal != nil && !o.proposal.Deleted() {
		replaces = o.proposal.hash
	}
	if o.record.Deleted {
		o.next = object{Suffix: before.Suffix, Replaces: replaces}
		if o.proposal != nil && !o.proposal.Deleted() {
			o.next.Suffix = yamlSuffix
		}
		return nil, nil
	}
	content, readable := render(o.record.Value, o.place.resource)
	suffix := yamlSuffix
	if !readable {
		content, suffix = o.record.Value, binarySuffix
	}
	says := digestOf(content)
	switch {
	case o.proposal != nil && suffix == yamlSuffix && o.proposal.agrees(says, o.place.resource):
		o.next = object{Suffix: suffix, SHA256: o.proposal.hash, Says: says}
		return nil, nil
	case o.fresh && o.proposal == nil && o.before.settled && suffix == before.Suffix && says == before.Says:
		o.next = object{Suffix: suffix, SHA256: before.SHA256, Says: says}
		return nil, nil
	}
	o.next = object{Suffix: suffix, SHA256: says, Says: says, Replaces: replaces}
	return content, nil
}

// putObject does with the object file what was decided, unless somebody has
// touched it meanwhile, and notes the directory that is to be synced.
func (j *Journal) putObject(o *operation, dirs map[string]bool) error {
	if !o.placed {
		return nil
	}
	remove, err := j.replaced(o)
	if err != nil {
		return err
	}
	if o.content != "" {
		to := o.place.stem + o.next.Suffix
		if o.touched {
			if err := j.files.Remove(o.content); err != nil {
				return err
			}
			return nil
		}
		if err := j.install(o, to); err != nil {
			if o.touched || !obstructed(err) {
				return err
			}
			// It is not the disk that fails. The record is safe; a look at the file says
			// what is wrong.
			o.touched = true
			_ = j.files.Remove(o.content)
			return nil
		}
		dirs[path.Dir(to)] = true
	}
	if remove != "" && !o.touched {
		displaced := displacedPath(o.record.Revision, path.Ext(remove))
		touched, err := j.takeAway(remove, displaced, func() (bool, error) { return j.isKnown(displaced, remove, o) })
		switch {
		case err == nil:
			dirs[path.Dir(remove)] = true
			o.touched = touched
		case touched:
			return err
		case errors.Is(err, fs.ErrNotExist):
		case obstructed(err):
			o.touched = true
		default:
			return err
		}
	}
	return nil
}

// replaced checks that what is in the place of the object file may go, and sets
// touched if not. It returns the file to be removed.
func (j *Journal) replaced(o *operation) (remove string, err error) {
	was := o.before.path()
	if o.content == "" && !o.record.Deleted {
		if o.proposal == nil && was != "" {
			// The file stays, but an edit of it must not wait for the last write.
			ours, err := j.mayGo(was, o)
			o.touched = err == nil && !ours
			return "", err
		}
		return "", nil
	}
	if o.proposal != nil && !o.proposal.Deleted() {
		was = o.place.stem + yamlSuffix
	}
	to := o.place.stem + o.next.Suffix
	if was != "" && (o.record.Deleted || was != to) {
		remove = was
	}
	for _, name := range []string{o.place.stem + yamlSuffix, o.place.stem + binarySuffix} {
		if name != was && name != to {
			continue
		}
		ours, err := j.mayGo(name, o)
		if err != nil {
			return "", err
		}
		if !ours {
			o.touched = true
		}
	}
	return remove, nil
}

// mayGo reports whether what is in a place is known: the file that the server left
// there, or the one that the operation is about.
func (j *Journal) mayGo(name string, o *operation) (bool, error) {
	known, err := j.isKnown(name, name, o)
	if errors.Is(err, fs.ErrNotExist) {
		// A file that was there and is gone was removed by somebody.
		own := o.before.path() == name
		return o.record.Deleted || o.proposal.isOf(name) && o.proposal.Deleted() || !own && !o.proposal.isOf(name), nil
	}
	if o.content != "" && name == o.place.stem+o.next.Suffix {
		o.present = true
	}
	return known, err
}

// isKnown is mayGo for a file that has been moved from its place to another one.
func (j *Journal) isKnown(at, name string, o *operation) (bool, error) {
	info, err := j.files.Stat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, err
	case err != nil && obstructed(err):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, nil
	}
	// What a person has written counts, not what it was written over.
	want, stamp := o.before.object.SHA256, o.before.stamp
	switch {
	case o.proposal.isOf(name):
		want, stamp = o.proposal.hash, o.proposal.stamp
	case o.before.path() != name:
		return false, nil
	}
	if s := stampOf(info); s.same(stamp) && !s.racy(time.Now()) {
		return true, nil
	}
	_, hash, err := j.hash(at)
	if err != nil {
		if obstructed(err) {
			return false, nil
		}
		return false, err
	}
	return hash == want, nil
}

// obstructed reports errors that are due to what people made of the tree, not to a
// disk that fails.
func obstructed(err error) bool {
	for _, cause := range []error{fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.ELOOP, syscall.EXDEV} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// settle takes over what a committed operation has changed. It needs mu.
func (j *Journal) settle(o *operation) {
	e := j.entries[o.record.Key]
	if o.record.Deleted {
		if e != nil {
			j.forget(e)
		}
		return
	}
	if e == nil {
		e = &entry{key: o.record.Key, place: o.place, placed: o.placed}
		j.know(e)
	}
	e.revision, e.object, e.settled, e.behind = o.record.Revision, o.next, true, false
	e.touched = o.touched
	switch {
	case o.touched:
		e.stamp = stamp{}
	case o.content != "":
		e.stamp = o.stamp
	case o.proposal != nil:
		e.stamp = o.proposal.stamp
	}
}

// moveInto moves a file into a directory, which is made if need be.
func (j *Journal) moveInto(from, to string) error { return j.move(from, to, j.files.Rename) }

// moveNew is moveInto if nothing is there yet; else the error matches fs.ErrExist.
func (j *Journal) moveNew(from, to string) error {
	return j.move(from, to, func(from, to string) error {
		err := j.files.RenameNew(from, to)
		if errors.Is(err, errors.ErrUnsupported) {
			return j.files.Rename(from, to)
		}
		return err
	})
}

func (j *Journal) move(from, to string, rename func(from, to string) error) error {
	dir := path.Dir(to)
	if err := j.mkdir(dir); err != nil {
		return err
	}
	err := rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		// Somebody has removed the directory.
		clear(j.dirs)
		j.dirs["."] = true
		if err := j.mkdir(dir); err != nil {
			return err
		}
		err = rename(from, to)
	}
	return err
}

// mkdir makes a directory and those that it is in, durably.
func (j *Journal) mkdir(dir string) error {
	if j.dirs[dir] {
		return nil
	}
	parent := path.Dir(dir)
	if err := j.mkdir(parent); err != nil {
		return err
	}
	if err := j.files.Mkdir(dir); err != nil {
		return err
	}
	if err := j.files.SyncDir(parent); err != nil {
		return err
	}
	j.dirs[dir] = true
	return nil
}

func (j *Journal) syncAll(dirs map[string]bool) error {
	list := make([]string, 0, len(dirs))
	for dir := range dirs {
		list = append(list, dir)
	}
	return parallel(len(list), func(i int) error { return j.files.SyncDir(list[i]) })
}

// write writes and syncs a file.
func (j *Journal) write(name string, data []byte) (info fs.FileInfo, err error) {
	file, err := j.files.Create(name)
	if err != nil {
		return nil, err
	}
	n, err := file.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		info, err = file.Stat()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil && info.Size() != int64(len(data)) {
		err = fmt.Errorf("write %s: %d bytes have arrived of %d", name, info.Size(), len(data))
	}
	return info, err
}

// read reads a file of at most so many bytes.
func (j *Journal) read(name string, limit int64) ([]byte, error) {
	file, err := j.files.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errTooLarge
	}
	return data, err
}

var errTooLarge = errors.New("too large")

// hash reads an object file.
func (j *Journal) hash(name string) (data []byte, hash digest, err error) {
	// One that the server wrote may be larger than one that it takes.
	if data, err = j.read(name, 64<<20); err != nil {
		return nil, digest{}, err
	}
	return data, digestOf(data), nil
}

// parallel calls do for 0 to n-1, several at once, and returns the first error, or one
// that is not transient.
func parallel(n int, do func(i int) error) error {
	if n == 1 {
		return do(0)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := 0
	for range min(n, syncLimit) {
		group.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				failed := first != nil
				mu.Unlock()
				if i >= n || failed {
					return
				}
				if err := do(i); err != nil {
					mu.Lock()
					if first == nil || errors.Is(first, journal.ErrTransient) && !errors.Is(err, journal.ErrTransient) {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	return first
}
